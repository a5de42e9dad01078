// [refusals] What is wrong is refused in one clear line, within the timeout and with the right exit code, and the job
// that runs meanwhile does not notice.
#include <algorithm>
#include <csignal>

#include "base/file.h"
#include "base/random.h"
#include "tests/proofs/proof.h"
#include "tests/support/hostile.h"
#include "tests/support/relay.h"

namespace everstep::test {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(15);

struct Case {
  std::string name;
  std::string program;  // of the programs' folder
  Flags flags;
  int code;
  std::string says;  // part of the line
};

// Error lines of a log.
std::vector<std::string> Errors(const std::string& log) {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < log.size()) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string line = log.substr(at, end - at);
    if (line.find(" error ") != std::string::npos) lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

Status Expect(Cluster& cluster, const Case& c, json* figures) {
  const Time began = SteadyNow();
  EVERSTEP_ASSIGN(Program * program, cluster.Start(c.name, c.program, c.flags));
  EVERSTEP_ASSIGN(const int code, program->Wait(kDeadline));
  const std::vector<std::string> errors = Errors(program->log());
  (*figures)[c.name] = {
      {"exit_code", code}, {"ms", Milliseconds(SteadyNow() - began)}, {"line", errors.empty() ? "" : errors.front()}};
  if (code != c.code)
    return Broken(c.name + ": exit code " + std::to_string(code) + " instead of " + std::to_string(c.code) + "\n" +
                  program->log());
  if (errors.size() != 1)
    return Broken(c.name + ": " + std::to_string(errors.size()) + " error lines instead of one\n" + program->log());
  if (errors.front().find(c.says) == std::string::npos)
    return Broken(c.name + ": the line does not say \"" + c.says + "\": " + errors.front());
  return Status::Ok();
}

// A peer of another protocol version: a hello that arrives as another version's.
Status ExpectOtherVersion(Cluster& cluster, json* figures) {
  Probe probe(cluster.address());
  probe.SendBytes(WithProtocolVersion(Encode({{}, {}, Hello{}}), kProtocolVersion + 1));
  EVERSTEP_ASSIGN(const Refused refused, probe.Expect<Refused>(kDeadline));
  (*figures)["protocol version"] = {{"line", refused.message}};
  if (refused.code != Code::kWrongVersion) return Broken("another protocol version was not refused as such");
  return Status::Ok();
}

}  // namespace

Status ProveRefusals(const ProofContext& context, json* figures) {
  Random random(context.seed);
  Cluster cluster;
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(2, {"--name=steady", "--epochs=0", "--max-steps=100000", "--batch=64",
                                                    "--learning-rate=0.01", "--timeout-s=10", "--no-progress"}));
  const Flags flags{"--elements=5000", "--dataset=10000", "--compute-ms=2"};
  for (const char* name : {"a", "b"}) EVERSTEP_RETURN_IF_ERROR(cluster.StartWorker(name, flags).status());
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForStep(20));

  const std::string servers = "--servers=" + cluster.address();
  const std::string plain = "everstep-plain-worker";
  const std::string bad_job = cluster.path("bad.toml");
  EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(bad_job, "name = \"x\"\nlerning-rate = 0.1\n"));
  std::vector<Case> cases{
      {"another model", plain, {servers, "--elements=5001", "--dataset=10000"}, 5, "hash"},
      {"another dataset", plain, {servers, "--elements=5000", "--dataset=9999"}, 5, "samples"},
      {"another job", plain, {servers, "--elements=5000", "--dataset=10000", "--job=other"}, 5, "steady"},
      {"unreachable", plain, {"--servers=tcp://127.0.0.1:1", "--timeout-s=1"}, 4, "tcp://127.0.0.1:1"},
      {"no such scheme", plain, {"--servers=pigeon://x"}, 2, "tcp"},
      {"port taken", "everstep-ps", {"--listen=" + cluster.address()}, 4, "taken"},
      {"beyond loopback", "everstep-ps", {"--listen=tcp://0.0.0.0:0"}, 5, "--insecure"},
      {"nonsense in the job", "everstep-ps", {"--momentum=0", "--nesterov"}, 2, "nesterov"},
      {"no coordinator to join",
       "everstep-ps",
       {"--join=tcp://127.0.0.1:1", "--find-timeout-s=1"},
       4,
       "tcp://127.0.0.1:1"},
  };
  if (FileExists(context.build + "/bin/everstep-worker")) {
    cases.push_back({"dataset missing",
                     "everstep-worker",
                     {servers, "--task=fashion-mnist-mlp", "--data=/nonexistent"},
                     3,
                     "/nonexistent"});
  }
  for (const Case& c : cases) EVERSTEP_RETURN_IF_ERROR(Expect(cluster, c, figures));
  EVERSTEP_RETURN_IF_ERROR(ExpectOtherVersion(cluster, figures));
  {
    EVERSTEP_ASSIGN(Program * typo, cluster.Start("unknown key", "everstep-ps", {"--job=" + bad_job}));
    EVERSTEP_ASSIGN(const int code, typo->Wait(kDeadline));
    if (code == 0 || (typo->log() + typo->output()).find("lerning-rate") == std::string::npos)
      return Broken("an unknown key in the job file went unnoticed");
  }

  EVERSTEP_RETURN_IF_ERROR(
      cluster.StartWorker("poisoned", {"--elements=5000", "--dataset=10000", "--nan-at=1"}).status());
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForEvent("contribution-refused", "poisoned"));

  EVERSTEP_ASSIGN(const JobUid job, Probe::FindJob(cluster.address(), kDeadline));
  for (size_t server = 0; server < 2; ++server) {
    EVERSTEP_RETURN_IF_ERROR(SendRubbish(cluster.address(server), random, context.quick ? 20 : 100));
    SendDamagedMessages(cluster.address(server), random, context.quick ? 50 : 500);
    SendForgedMessages(cluster.address(server), job, random, context.quick ? 2 : 20);
  }

  EVERSTEP_ASSIGN(const json before, cluster.AskStatus());
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForStep(before.at("step").get<uint64_t>() + 20));
  for (const char* name : {"a", "b", "poisoned"}) cluster.worker(name).Signal(SIGTERM);
  for (const char* name : {"a", "b"}) {
    EVERSTEP_ASSIGN(const int code, cluster.worker(name).Wait());
    const json result = cluster.worker(name).result();
    if (code != 0 || result.at("lives") != 1) return Broken(std::string(name) + " of the running job was disturbed");
  }
  EVERSTEP_RETURN_IF_ERROR(CheckChain(cluster.commits()));
  (*figures)["steps_of_the_running_job"] = cluster.commits().size() - 1;
  (*figures)["seed"] = context.seed;
  return Status::Ok();
}

}  // namespace everstep::test
