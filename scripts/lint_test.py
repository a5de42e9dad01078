"""Shows scripts/lint.py trees that break each of its rules: a rule that cannot fail is none. Run by `./dev lint`."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lint  # noqa: E402

HEADER = "// What it is, and who calls it.\n#pragma once\n"

# A tree without a fault.
CLEAN = {
    ".clang-format": "BasedOnStyle: Google\nColumnLimit: 120\nIncludeBlocks: Preserve\n",
    "dev": "#!/usr/bin/env bash\ncase $command in\n  help | -h) help ;;\n  test) test_all ;;\n  asan | tsan)\n    run ;;\n"
           "  bench) run ;;\nesac\n",
    "README.md": "# Everstep\n\nRun `./dev test` and `./dev bench step`, then\n\n```\n./dev tsan\neverstep status --json\n```\n\n"
                 "See [the trace](docs/trace.md#one-step).\n",
    "docs/trace.md": "# One step\n\n`ps/server.cc` starts it; shown by `tests/ps/server_test.cc`.\n",
    "bench/CMakeLists.txt": "add_executable(everstep-bench-step step.cc)\n",
    "base/status.h": HEADER + "\n#include <string>\n",
    "base/checksum.cc": "#include <xxhash.h>\n\n#include \"base/status.h\"\n",
    "schema/codec.cc": "#include <flatbuffers/flatbuffers.h>\n\n"
                       "#include \"base/status.h\"\n#include \"wire_generated.h\"\n",
    "transport/zmq/socket.cc": "#include <sys/socket.h>\n#include <zmq.h>\n\n#include \"base/status.h\"\n",
    "ps/server.cc": "#include \"schema/codec.h\"\n#include \"transport/transport.h\"\n",
    "worker/torch_bridge.cc": "#include <torch/torch.h>\n\n#include \"schema/codec.h\"\n",
    "ctl/status.cc": "#include <CLI/CLI.hpp>\n\nconst char* kName = \"status\";\nconst char* kJson = \"--json\";\n",
    "tests/ps/server_test.cc": "#include <gtest/gtest.h>\n\n#include \"ps/server.h\"\n#include \"worker/worker.h\"\n",
}

# All but the one that starts clang-format, which is slow.
FAST_RULES = [rule for rule in lint.RULES if rule is not lint.layout]


class LintTest(unittest.TestCase):
    def lint(self, changes: dict[str, str], rules=FAST_RULES) -> list[lint.Finding]:
        files = {**CLEAN, **changes}
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8", newline="") as file:
                    file.write(text)
            return lint.run(lint.Tree(root, list(files)), rules)

    def assert_found(self, rule: str, path: str, changes: dict[str, str], fatal: bool = True):
        findings = self.lint(changes, lint.RULES if rule == "layout" else FAST_RULES)
        self.assertEqual([(rule, path, fatal)], [(f.rule, f.path, f.fatal) for f in findings],
                         "\n".join(map(str, findings)))

    def test_clean_tree(self):
        self.assertEqual([], self.lint({}, lint.RULES))

    def test_layer_law(self):
        for path, header in [("base/a.cc", "schema/ids.h"), ("schema/a.cc", "transport/transport.h"),
                             ("transport/a.cc", "schema/ids.h"), ("checkpoint/a.cc", "ps/server.h"),
                             ("ps/a.cc", "worker/worker.h"), ("worker/a.cc", "ps/server.h"),
                             ("worker/a.cc", "checkpoint/store.h"), ("ctl/a.cc", "ps/server.h"),
                             ("ps/a.cc", "tests/support/seed.h")]:
            with self.subTest(path=path, header=header):
                self.assert_found("layer-law", path, {path: f'#include "{header}"\n'})

    def test_include_path(self):
        self.assert_found("include-path", "ps/a.cc", {"ps/a.cc": '#include "server.h"\n'})

    def test_third_party_doors(self):
        for path, header in [("ps/a.cc", "<zmq.h>"), ("transport/a.cc", "<zmq.hpp>"), ("ps/a.cc", "<torch/torch.h>"),
                             ("worker/worker.h", "<ATen/ATen.h>"), ("schema/ids.cc", "<flatbuffers/base.h>"),
                             ("tests/a_test.cc", '"wire_generated.h"'), ("ps/a.cc", "<tbb/parallel_for.h>"),
                             ("worker/a.cc", "<oneapi/tbb.h>"), ("ps/a.cc", "<xxhash.h>"), ("ps/a.cc", "<CLI/CLI.hpp>"),
                             ("schema/job.cc", "<nlohmann/json.hpp>"), ("base/a.cc", "<gtest/gtest.h>"),
                             ("ps/a.cc", "<benchmark/benchmark.h>"), ("base/a.cc", "<boost/any.hpp>")]:
            with self.subTest(path=path, header=header):
                guard = HEADER + "\n" if path.endswith(".h") else ""
                self.assert_found("third-party-door", path, {path: f"{guard}#include {header}\n"})

    def test_pragma_once(self):
        self.assert_found("pragma-once", "ps/a.h", {"ps/a.h": "// What it is.\n#include <map>\n"})

    def test_header_comment(self):
        self.assert_found("header-comment", "ps/a.h", {"ps/a.h": "#pragma once\n\n#include <map>\n"})

    def test_file_size(self):
        long = {"ps/a.cc": "int x;\n" * (lint.MAX_LINES + 10)}
        self.assert_found("file-size", "ps/a.cc", {"ps/a.cc": "int x;\n" * (lint.WARN_LINES + 1)}, fatal=False)
        self.assert_found("file-size", "ps/a.cc", long)
        listed = lint.SIZE_EXCEPTIONS
        self.assertEqual([], self.lint({**long, listed: f"ps/a.cc {lint.MAX_LINES + 10} the state machine\n"}))
        self.assert_found("file-size", "ps/a.cc", {**long, listed: f"ps/a.cc {lint.MAX_LINES + 9} the state machine\n"})

    def test_size_exceptions_only_shrink(self):
        listed = lint.SIZE_EXCEPTIONS
        long = {"ps/a.cc": "int x;\n" * (lint.MAX_LINES + 10)}
        self.assert_found("file-size", listed, {**long, listed: f"ps/a.cc {lint.MAX_LINES + 50} too generous\n"})
        self.assert_found("file-size", listed, {listed: f"ctl/status.cc {lint.MAX_LINES + 1} is short\n"})
        self.assert_found("file-size", listed, {listed: f"ps/gone.cc {lint.MAX_LINES + 1} is gone\n"})
        self.assert_found("file-size", listed, {**long, listed: f"ps/a.cc {lint.MAX_LINES + 10}\n"})

    def test_names(self):
        for path in ["ps/Server.cc", "ps/a-b.cc", "ps/a.cpp", "scripts/Do.py"]:
            with self.subTest(path=path):
                self.assert_found("names", path, {path: "\n" if path.endswith(".py") else "int x;\n"})

    def test_whitespace(self):
        for text in ["a\tb\n", "a \n", "a", "a\r\n", "a\n\n"]:
            with self.subTest(text=text):
                self.assert_found("whitespace", "docs/decisions/a.md", {"docs/decisions/a.md": text})

    def test_machine_paths(self):
        for folder in ["work", "root", "home"]:
            with self.subTest(folder=folder):
                text = f"see /{folder}/main\n"
                self.assert_found("machine-path", "docs/decisions/a.md", {"docs/decisions/a.md": text})

    def test_doc_links(self):
        page = "docs/decisions/a.md"
        self.assert_found("doc-link", page, {page: "[gone](gone.md)\n"})
        self.assert_found("doc-link", page, {page: "[no such heading](../trace.md#two-steps)\n"})
        self.assert_found("doc-path", page, {page: "It is in `ps/gone.cc`.\n"})
        self.assertEqual([], self.lint({page: "[there](../trace.md#one-step), `ps/*.cc`, [web](https://a.b/c)\n"}))

    def test_docs_name_tests(self):
        self.assert_found("doc-tests", "docs/a.md", {"docs/a.md": "No test is named.\n"})
        self.assert_found("doc-tests", "docs/a.md", {"docs/a.md": "Shown by tests/ps/gone_test.cc.\n"})
        self.assertEqual([], self.lint({"docs/a.md": "Shown by tests/ps/server_test.cc.\n"}))

    def test_readme_commands(self):
        for command in ["./dev dance", "./dev bench dance", "everstep dance", "everstep status --dance"]:
            with self.subTest(command=command):
                self.assert_found("readme-command", "README.md", {"README.md": f"Type `{command}`.\n"})
                self.assert_found("readme-command", "README.md", {"README.md": f"```\n{command}\n```\n"})
        self.assertEqual([], self.lint({"README.md": "```\neverstep status -- python3 train.py --lr 1  # --any\n```\n"}))

    def test_layout(self):
        self.assert_found("layout", "ps/a.cc", {"ps/a.cc": "int  x ;\n"})


if __name__ == "__main__":
    unittest.main(verbosity=0)
