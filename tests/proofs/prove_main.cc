// everstep-prove: the product's promises made executable (docs/testing.md).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/log.h"
#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr Proof kProofs[] = {
    {"kill-worker", "a worker killed in mid-step costs the others at most 250 ms, and nobody reconnects", true,
     ProveKillWorker},
    {"same-maths", "1, 2 and 4 workers train the same parameters; the same contributions give the same bits", true,
     ProveSameMaths},
    {"join", "a joiner of a 100 MB model enters within one step boundary; the others hardly notice", false, ProveJoin},
    {"shapes", "odd models, odd datasets and odd numbers of servers train", true, ProveShapes},
    {"refusals", "what is wrong is refused in one clear line, and the running job is unaffected", true, ProveRefusals},
    {"checkpoint-stall", "a checkpoint of a 400 MB model costs the step under 5 % and one memory copy", false,
     ProveCheckpointStall},
    {"server-loss", "a killed server, or the coordinator's host, costs at most 500 ms beyond the step", false,
     ProveServerLoss},
    {"kill-anyone", "kill -9 of anybody at random moments loses nothing; the parameters are those of the records", true,
     ProveKillAnyone},
    {"reshard", "a server is added, another drained: the least bytes move and no step takes thrice its time", false,
     ProveReshard},
    {"etcd", "elections through a real etcd that is frozen and restarted; two jobs share it", true, ProveEtcd},
    {"worker-api", "the README's program, built outside the tree, joins, is killed, and finishes the job", false,
     ProveWorkerApi},
};

// Runs one proof; prints its figures as one JSON object on a line of their own.
bool Run(const Proof& proof, const ProofContext& context) {
  std::printf("%s: %s\n", proof.name, proof.shows);
  std::fflush(stdout);
  json figures = json::object();
  const Time began = SteadyNow();
  const Status outcome = proof.run(context, &figures);
  figures["proof"] = proof.name;
  figures["kept"] = outcome.ok();
  figures["seconds"] = Seconds(SteadyNow() - began);
  if (!outcome.ok()) figures["broken"] = outcome.message();
  std::printf("%s\n", figures.dump().c_str());
  std::fflush(stdout);
  return outcome.ok();
}

int Main(int argc, char** argv) {
  CLI::App app{"everstep-prove: acceptance checks with real processes. The last line of each is one JSON object."};
  std::string name;
  bool list = false;
  ProofContext context;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  context.build = self.parent_path().parent_path().string();
  context.source = EVERSTEP_SOURCE_FOLDER;
  app.add_option("name", name, "Which one; none: all of them (with --quick: the quick ones)");
  app.add_flag("--list", list, "Name all proofs");
  app.add_flag("--quick", context.quick, "Fewer repetitions");
  app.add_option("--seed", context.seed, "Of what is random")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  log::SetLevel(log::Level::kWarning);
  if (list) {
    for (const Proof& proof : kProofs)
      std::printf("%-14s %s%s\n", proof.name, proof.shows, proof.quick ? "" : " (not in --quick)");
    return 0;
  }
  int broken = 0;
  int run = 0;
  for (const Proof& proof : kProofs) {
    if (name.empty() ? context.quick && !proof.quick : name != proof.name) continue;
    ++run;
    broken += Run(proof, context) ? 0 : 1;
  }
  if (run == 0) {
    std::fprintf(stderr, "there is no proof \"%s\"; everstep-prove --list names them\n", name.c_str());
    return 2;
  }
  return broken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace everstep::test

int main(int argc, char** argv) { return everstep::test::Main(argc, argv); }
