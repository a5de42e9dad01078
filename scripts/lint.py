"""The lint: `./dev lint`. Checks what the compiler and the tests cannot see; standard library only.

Every rule is a function that takes a Tree and yields Findings; RULES at the end lists them. scripts/lint_test.py shows
each of them a tree that breaks it. A file that may be longer than the limit stands, with a reason, in
scripts/lint_exceptions.txt; that list only ever shrinks.
"""

import argparse
import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys
from typing import Iterator, NamedTuple

# Room -> the rooms it may include, itself aside.
LAYERS = {
    "base": set(),
    "schema": {"base"},
    "transport": {"base"},
    "discovery": {"base"},
    "checkpoint": {"base", "schema", "transport"},
    "ps": {"base", "schema", "transport", "discovery", "checkpoint"},
    "worker": {"base", "schema", "transport", "discovery"},
    "ctl": {"base", "schema", "transport", "discovery", "checkpoint"},
}
# What stands outside may include every room.
OUTSIDE = {"tests", "bench", "examples"}

# One third-party library, one door: (library, its headers, who may include them).
DOORS = [
    ("ZeroMQ", r"zmq\w*\.h(pp)?$", ["transport/zmq/*", "tests/transport/zmq_*"]),
    ("FlatBuffers", r"flatbuffers/|.*_generated\.h$", ["schema/codec*.cc"]),
    ("libtorch", r"(torch|ATen|c10|caffe2)/", ["worker/torch*", "worker/tasks/*", "tests/*", "examples/*", "bench/*"]),
    ("TBB", r"(oneapi/)?tbb[/.]", ["ps/kernels/*"]),
    ("Highway", r"hwy/", ["ps/kernels/*"]),
    ("zlib", r"zlib\.h$", ["worker/tasks/data_file.cc", "tests/worker/*"]),
    ("xxHash", r"xxh\w*\.h$", ["base/checksum.cc"]),
    ("CLI11", r"CLI/", ["ps/job_options*", "*_main.cc", "ctl/*", "tests/sim/*", "tests/proofs/*", "bench/*"]),
    ("nlohmann-json", r"nlohmann/",
     ["checkpoint/*.cc", "ctl/*", "tests/*", "bench/*", "discovery/etcd_client.cc", "ps/report*", "ps/resume.cc",
      "worker/report*", "worker/*_main.cc"]),
    ("cpp-httplib", r"httplib\.h$", ["discovery/etcd_client.cc"]),
    ("GoogleTest", r"(gtest|gmock)/", ["tests/*"]),
    ("Google Benchmark", r"benchmark/", ["bench/*"]),
    ("libibverbs", r"(infiniband|rdma)/", ["transport/verbs/*"]),
    ("NCCL", r"nccl\.h$", ["worker/replica_group*"]),
]

# Headers of the language, of POSIX, of glibc and of the compiler: no door needed.
SYSTEM_HEADER = re.compile(
    r"[a-z_0-9]+$|(sys|linux|net|netinet|arpa|bits)/[\w/]+\.h$|"
    r"(assert|cpuid|ctype|cxxabi|dirent|dlfcn|errno|execinfo|fcntl|fenv|float|ftw|getopt|glob|grp|ifaddrs|immintrin|"
    r"inttypes|limits|link|malloc|math|netdb|netinet|poll|pthread|pwd|sched|semaphore|setjmp|signal|spawn|stdarg|"
    r"stddef|stdint|stdio|stdlib|string|strings|syslog|termios|time|ucontext|unistd|utime|wait|wordexp|x86intrin)\.h$")

WARN_LINES = 500
MAX_LINES = 800
SIZE_EXCEPTIONS = "scripts/lint_exceptions.txt"

CODE = (".h", ".cc", ".inc")
TEXT = CODE + (".py", ".sh", ".cmake", ".in", ".fbs", ".md", ".json", ".toml", ".yml", ".yaml", ".txt", ".service")
CLANG_FORMAT_VERSION = 14


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    message: str
    fatal: bool = True

    def __str__(self):
        return f"{self.path}:{self.line}: {'' if self.fatal else 'warning: '}{self.rule}: {self.message}"


class Tree:
    """The files of the repository, read once; `paths` are relative to `root`."""

    def __init__(self, root: str, paths: list[str]):
        self.root = root
        self.paths = sorted(paths)
        self._lines: dict[str, list[str]] = {}

    @staticmethod
    def of_git(root: str) -> "Tree":
        """Tracked files, and new ones that git does not ignore."""
        command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        return Tree(root, sorted({p for p in listed if p and os.path.isfile(os.path.join(root, p))}))

    def text(self, path: str) -> str:
        with open(os.path.join(self.root, path), encoding="utf-8", newline="") as file:
            return file.read()

    def lines(self, path: str) -> list[str]:
        if path not in self._lines:
            self._lines[path] = self.text(path).split("\n")
        return self._lines[path]

    def exists(self, path: str) -> bool:
        return os.path.exists(os.path.join(self.root, path))

    def ending(self, *suffixes: str) -> list[str]:
        return [p for p in self.paths if p.endswith(suffixes)]

    def code(self) -> list[str]:
        return self.ending(*CODE)

    def textual(self) -> list[str]:
        """Files that people write, as opposed to golden bytes and pictures."""
        return [p for p in self.paths if p.endswith(TEXT) or os.path.basename(p) in ("dev", "run", "CMakeLists.txt")]


def room_of(path: str) -> str:
    return path.split("/", 1)[0] if "/" in path else ""


def matches(path: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(tree: Tree, path: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(tree.lines(path), 1):
        if found := INCLUDE.match(line):
            yield number, found[1], found[2]


# ---- Rules -----------------------------------------------------------------------------------------------------------


def layer_law(tree: Tree) -> Iterator[Finding]:
    for path in tree.code():
        room = room_of(path)
        for number, quote, header in includes(tree, path):
            target = room_of(header)
            if quote == '"' and target in LAYERS.keys() | OUTSIDE:
                if room in LAYERS and target != room and target not in LAYERS[room]:
                    yield Finding(path, number, "layer-law", f"{room}/ may not include {target}/ ({header})")
            elif quote == '"' and not header.endswith("_generated.h"):
                yield Finding(path, number, "include-path",
                              f'"{header}": name our own headers from the repository root, others in <>')


def third_party_doors(tree: Tree) -> Iterator[Finding]:
    for path in tree.code():
        for number, quote, header in includes(tree, path):
            for library, pattern, doors in DOORS:
                if re.match(pattern, header):
                    if not matches(path, doors):
                        yield Finding(path, number, "third-party-door",
                                      f"<{header}>: {library} may be included only by {', '.join(doors)}")
                    break
            else:
                if quote == "<" and not SYSTEM_HEADER.match(header):
                    yield Finding(path, number, "third-party-door",
                                  f"<{header}>: a library without a door; give it one in scripts/lint.py (DOORS)")


def pragma_once(tree: Tree) -> Iterator[Finding]:
    for path in tree.ending(".h"):
        if "#pragma once" not in tree.lines(path):
            yield Finding(path, 1, "pragma-once", "a header needs #pragma once")


def header_opens_with_comment(tree: Tree) -> Iterator[Finding]:
    for path in tree.ending(".h"):
        for line in tree.lines(path):
            if line.startswith(("//", "/*")):
                break
            if line.strip() and line.strip() != "#pragma once":
                yield Finding(path, 1, "header-comment", "a header opens with what the thing is, and who calls it")
                break


def read_exceptions(tree: Tree) -> dict[str, tuple[int, int, str]]:
    """path -> (line of the list, its maximum of lines, reason)."""
    entries = {}
    if SIZE_EXCEPTIONS in tree.paths:
        for number, line in enumerate(tree.lines(SIZE_EXCEPTIONS), 1):
            fields = line.split(None, 2)
            if fields and not line.startswith("#"):
                limit = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
                entries[fields[0]] = (number, limit, fields[2] if len(fields) > 2 else "")
    return entries


def file_size(tree: Tree) -> Iterator[Finding]:
    exceptions = read_exceptions(tree)
    for path, (number, limit, reason) in exceptions.items():
        if path not in tree.paths or limit <= MAX_LINES or not reason:
            yield Finding(SIZE_EXCEPTIONS, number, "file-size",
                          f"an entry is: PATH LINES REASON, of a file that exists, with LINES over {MAX_LINES}")
    for path in tree.ending(".h", ".cc", ".inc", ".py") + [p for p in tree.paths if p == "dev"]:
        count = len(tree.lines(path)) - 1
        entry = exceptions.get(path)
        if entry and count <= MAX_LINES:
            yield Finding(SIZE_EXCEPTIONS, entry[0], "file-size", f"{path} has {count} lines now: remove its entry")
        elif entry and count < entry[1]:
            yield Finding(SIZE_EXCEPTIONS, entry[0], "file-size", f"{path} has {count} lines now: lower its number")
        elif count > (entry[1] if entry else MAX_LINES):
            yield Finding(path, 1, "file-size", f"{count} lines, {entry[1] if entry else MAX_LINES} allowed: split it")
        elif count > WARN_LINES and not entry:
            yield Finding(path, 1, "file-size", f"{count} lines, about {WARN_LINES} wanted", fatal=False)


def names(tree: Tree) -> Iterator[Finding]:
    for path in tree.paths:
        if path.endswith((".cpp", ".cxx", ".hpp", ".hh", ".c", ".C")):
            yield Finding(path, 1, "names", "C++ files end in .cc and .h")
        elif path.endswith(CODE + (".py", ".sh", ".fbs")) and not re.fullmatch(r"[a-z0-9_./]+", path):
            yield Finding(path, 1, "names", "file and folder names are snake_case")


def whitespace(tree: Tree) -> Iterator[Finding]:
    for path in tree.textual():
        lines = tree.lines(path)
        for number, line in enumerate(lines, 1):
            if "\t" in line:
                yield Finding(path, number, "whitespace", "a tab")
            if line != line.rstrip():
                yield Finding(path, number, "whitespace", "white space at the end of the line")
        if lines[-1] or (len(lines) > 2 and not lines[-2]):
            yield Finding(path, len(lines), "whitespace", "a file ends with one newline")


# Written so that this line does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.}\])])/(?:wor[k]|roo[t]|hom[e])/[\w.]")


def machine_paths(tree: Tree) -> Iterator[Finding]:
    for path in tree.textual():
        for number, line in enumerate(tree.lines(path), 1):
            if found := MACHINE_PATH.search(line):
                yield Finding(path, number, "machine-path", f"a path of one machine: {line[found.start():][:30]}")


# ---- Documentation ---------------------------------------------------------------------------------------------------

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`]+)`")
PATH_SUFFIX = re.compile(r"[\w./*-]+\.(h|cc|py|sh|md|fbs|cmake|toml|json|txt)$")


def anchors(tree: Tree, path: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    found = set()
    for line in tree.lines(path):
        if heading := re.match(r"#+\s+(.*)", line):
            text = re.sub(r"[^\w\- ]", "", heading[1].strip().lower())
            found.add(text.replace(" ", "-"))
    return found


def prose_and_commands(tree: Tree, path: str) -> Iterator[tuple[int, str, bool]]:
    """(line number, line, whether it stands in a fenced block)."""
    fenced = False
    for number, line in enumerate(tree.lines(path), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        else:
            yield number, line, fenced


def doc_links(tree: Tree) -> Iterator[Finding]:
    for path in tree.ending(".md"):
        for number, line, fenced in prose_and_commands(tree, path):
            if fenced:
                continue
            for target in LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                where = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                if not tree.exists(where):
                    yield Finding(path, number, "doc-link", f"{target} does not exist")
                elif anchor and where.endswith(".md") and anchor not in anchors(tree, where):
                    yield Finding(path, number, "doc-link", f"{where} has no heading #{anchor}")
            for span in CODE_SPAN.findall(line):
                known = room_of(span) in LAYERS.keys() | OUTSIDE | {"docs", "cmake", "scripts", "deploy"}
                if known and PATH_SUFFIX.fullmatch(span) and not glob.glob(os.path.join(tree.root, span)):
                    yield Finding(path, number, "doc-path", f"{span} does not exist")


def docs_name_tests(tree: Tree) -> Iterator[Finding]:
    """A page of docs/ says which tests hold it true. Indexes and decisions need none."""
    for path in tree.paths:
        if re.fullmatch(r"docs/[^/]+\.md", path) and os.path.basename(path).lower() not in ("readme.md", "index.md"):
            named = re.findall(r"\btests/[\w./*-]*\w", tree.text(path))
            if not any(glob.glob(os.path.join(tree.root, name)) for name in named):
                yield Finding(path, 1, "doc-tests", "names no test (tests/...) that shows what it says")


def source_text(tree: Tree, *rooms: str) -> str:
    return "\n".join(tree.text(p) for p in tree.paths if room_of(p) in rooms and p.endswith(CODE))


def readme_commands(tree: Tree) -> Iterator[Finding]:
    """Commands in the README's blocks and code spans: ./dev commands, commands of `everstep`, flags of our programs."""
    if "README.md" not in tree.paths or "dev" not in tree.paths:
        return
    dev = tree.text("dev")
    dev_commands = set()
    for cases in re.findall(r"^  ([a-z][\w -]*(?:\| [\w-]+ ?)*)\)", dev[dev.rfind("case $command in"):], re.M):
        dev_commands |= {word.strip() for word in cases.split("|")}
    quoted = set(re.findall(r'"(-{0,2}[\w-]+)', source_text(tree, "ctl")))
    bench_programs = re.findall(r"everstep-bench-[\w-]+", "".join(
        tree.text(p) for p in tree.paths if room_of(p) == "bench" and not p.endswith(".md")))
    flags = set(re.findall(r"--[a-z][\w-]*", dev + source_text(tree, "ctl", "ps", "worker", "tests", "bench")))
    for number, line, fenced in prose_and_commands(tree, "README.md"):
        for text in [line] if fenced else CODE_SPAN.findall(line):
            for command in re.findall(r"\./dev ([a-z][\w-]*)", text):
                if command not in dev_commands:
                    yield Finding("README.md", number, "readme-command", f"./dev has no command {command}")
            for name in re.findall(r"\./dev bench ([a-z][\w-]*)", text):
                if f"everstep-bench-{name}" not in bench_programs:
                    yield Finding("README.md", number, "readme-command", f"there is no bench {name}")
            for command in re.findall(r"(?:^|[\s/])everstep ([a-z][\w-]*)", text) if room_present(tree, "ctl") else []:
                if command not in quoted:
                    yield Finding("README.md", number, "readme-command", f"everstep has no command {command}")
            if re.search(r"(?:\./dev|everstep(?:-\w+)?) ", text):
                ours = re.split(r"\s--\s|\s#", text)[0]
                for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", ours):
                    if flag not in flags:
                        yield Finding("README.md", number, "readme-command", f"no program of ours knows {flag}")


def room_present(tree: Tree, room: str) -> bool:
    return any(room_of(path) == room for path in tree.paths)


# ---- Layout ----------------------------------------------------------------------------------------------------------


def clang_format() -> tuple[str, str]:
    """(program, "" or what is wrong with it)."""
    program = shutil.which(f"clang-format-{CLANG_FORMAT_VERSION}") or shutil.which("clang-format")
    if not program:
        return "", "clang-format is missing; run ./dev setup"
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)", version)
    if not found or int(found[1]) != CLANG_FORMAT_VERSION:
        return program, f"clang-format {CLANG_FORMAT_VERSION} decides; this is {version.strip()}"
    return program, ""


def layout(tree: Tree) -> Iterator[Finding]:
    program, wrong = clang_format()
    if wrong:
        # Another version lays out differently, so its verdict is worth nothing; a missing one is a broken set-up.
        yield Finding(".clang-format", 1, "layout", wrong, fatal=not program)
        return
    paths = tree.code()
    if not paths:
        return
    result = subprocess.run([program, "--dry-run", "--Werror", "--style=file", *paths], cwd=tree.root,
                            capture_output=True, text=True)
    reported = set()
    for path, number in re.findall(r"^(\S+?):(\d+):\d+: error:", result.stderr, re.M):
        if path not in reported:
            reported.add(path)
            yield Finding(path, int(number), "layout", "not as clang-format lays it out; run ./dev format")
    if result.returncode != 0 and not reported:
        yield Finding(".clang-format", 1, "layout", f"clang-format failed: {result.stderr.strip()[:300]}")


def format_all(tree: Tree) -> None:
    program, wrong = clang_format()
    if wrong:
        sys.exit(f"lint: {wrong}")
    if tree.code():
        subprocess.run([program, "-i", "--style=file", *tree.code()], cwd=tree.root, check=True)


RULES = [layer_law, third_party_doors, pragma_once, header_opens_with_comment, file_size, names, whitespace,
         machine_paths, doc_links, docs_name_tests, readme_commands, layout]


def run(tree: Tree, rules=RULES) -> list[Finding]:
    return [finding for rule in rules for finding in rule(tree)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev lint", description=__doc__.splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="lay out the sources first")
    parser.add_argument("--format-only", action="store_true", help="lay out the sources and check nothing")
    arguments = parser.parse_args()
    tree = Tree.of_git(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if arguments.fix or arguments.format_only:
        format_all(tree)
    if arguments.format_only:
        return 0
    findings = run(tree)
    for finding in sorted(findings, key=lambda f: (f.fatal, f.path, f.line)):
        print(finding)
    errors = sum(finding.fatal for finding in findings)
    print(f"lint: {len(tree.paths)} files, {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
