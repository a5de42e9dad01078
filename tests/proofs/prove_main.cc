// everstep-prove: the product's promises made executable (docs/testing.md).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/log.h"
#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr Control kStallControls[] = {
    {"held-up", "the server stands still for a moment when a save begins", "a step after a snapshot took"}};
constexpr Control kTornControls[] = {
    {"newest-deleted", "the newest complete checkpoint loses its manifest after each kill", "was complete"}};
constexpr Control kNToMControls[] = {
    {"another-rate", "the job goes on with another learning rate", "other bits than the run that was never stopped"}};
constexpr Control kLossControls[] = {
    {"frozen", "servers are stopped instead of killed: only their leases tell", "the median loss of a server cost"}};
constexpr Control kKillControls[] = {
    {"forged-weight", "one record's weights are changed before the replay", "not those that the records call for"},
    {"lost-record", "one record is left out", "stands where step"},
    {"both-copies", "two of the three servers are killed at once", "no server that is left has a copy"}};
constexpr Control kShmControls[] = {
    {"sockets", "the processes do not share memory", "maps no server's memory"},
    {"forged-weight", "one record's weights are changed before the replay", "not those that the records call for"}};
constexpr Control kReshardControls[] = {
    {"frozen-server", "a server stands still while chunks move", "the longest step took"},
    {"two-joins", "two servers join where one is expected", "times the bytes it had to"}};
constexpr Control kEtcdControls[] = {
    {"etcd-stays-away", "etcd is not started again before the coordinator is killed", "another coordinator"},
    {"forged-weight", "one record's weights are changed before the replay", "not those that the records call for"}};

constexpr Proof kProofs[] = {
    {"kill-worker", "a worker killed in mid-step costs the others at most 250 ms, and nobody reconnects", true,
     ProveKillWorker},
    {"same-maths", "1, 2 and 4 workers train the same parameters; the same contributions give the same bits", true,
     ProveSameMaths},
    {"join", "a joiner of a 100 MB model enters within one step boundary; the others hardly notice", false, ProveJoin},
    {"shapes", "odd models, odd datasets and odd numbers of servers train", true, ProveShapes},
    {"refusals", "what is wrong is refused in one clear line, and the running job is unaffected", true, ProveRefusals},
    {"checkpoint-stall", "a checkpoint of a 400 MB model costs the step under 5 % and one memory copy", false,
     ProveCheckpointStall, kStallControls},
    {"torn-checkpoints", "kill -9 in mid-save at random moments: the newest complete checkpoint loads", true,
     ProveTornCheckpoints, kTornControls},
    {"n-to-m", "saved by 3 servers, loaded by 1, 2 and 5: goes on bit-equal, the optimizer's state too", true,
     ProveNToM, kNToMControls},
    {"server-loss", "a killed server, or the coordinator's host, costs at most 500 ms beyond the step", false,
     ProveServerLoss, kLossControls},
    {"kill-anyone", "kill -9 of anybody at random moments loses nothing; the parameters are those of the records", true,
     ProveKillAnyone, kKillControls},
    {"kill-shm", "kill -9 of who reads and is read in shared memory: bit-equal, and nothing is left behind", true,
     ProveKillShm, kShmControls},
    {"reshard", "a server is added, another drained: the least bytes move and no step takes thrice its time", false,
     ProveReshard, kReshardControls},
    {"etcd", "elections through a real etcd that is frozen and restarted; two jobs share it", true, ProveEtcd,
     kEtcdControls},
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

// Runs it with a fault planted; whether it fails, and for that reason.
bool RunControl(const Proof& proof, const Control& control, ProofContext context) {
  context.quick = true;
  context.control = control.name;
  std::printf("%s, %s: %s\n", proof.name, control.name, control.does);
  std::fflush(stdout);
  json figures = json::object();
  const Time began = SteadyNow();
  const Status outcome = proof.run(context, &figures);
  const bool caught = !outcome.ok() && outcome.message().find(control.breaks) != std::string::npos;
  figures = {{"proof", proof.name},
             {"control", control.name},
             {"caught", caught},
             {"broken", outcome.ok() ? "nothing" : outcome.message()},
             {"seconds", Seconds(SteadyNow() - began)}};
  std::printf("%s\n", figures.dump().c_str());
  std::fflush(stdout);
  return caught;
}

// Prints what there is.
void List() {
  for (const Proof& proof : kProofs) {
    std::printf("%-16s %s%s\n", proof.name, proof.shows, proof.quick ? "" : " (not in --quick)");
    for (const Control& control : proof.controls) std::printf("    --control %-15s %s\n", control.name, control.does);
  }
}

int Main(int argc, char** argv) {
  CLI::App app{"everstep-prove: acceptance checks with real processes. The last line of each is one JSON object."};
  std::string name;
  bool list = false;
  bool controls = false;
  std::string control;
  ProofContext context;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  context.build = self.parent_path().parent_path().string();
  context.source = EVERSTEP_SOURCE_FOLDER;
  app.add_option("name", name, "Which one; none: all of them (with --quick: the quick ones)");
  app.add_flag("--list", list, "Name all proofs");
  app.add_flag("--quick", context.quick, "Fewer repetitions");
  app.add_flag("--controls", controls, "Plant faults on purpose: each proof must fail, and for the right reason");
  app.add_option("--control", control, "Only this fault; --list names them");
  app.add_option("--seed", context.seed, "Of what is random")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  log::SetLevel(log::Level::kWarning);
  if (list) {
    List();
    return 0;
  }
  int broken = 0;
  int run = 0;
  controls |= !control.empty();
  for (const Proof& proof : kProofs) {
    for (const Control& c : proof.controls) {
      const bool meant = controls && (name.empty() || name == proof.name) && (control.empty() || control == c.name);
      run += meant;
      if (meant) broken += RunControl(proof, c, context) ? 0 : 1;
    }
    if (controls) continue;
    if (name.empty() ? context.quick && !proof.quick : name != proof.name) continue;
    ++run;
    broken += Run(proof, context) ? 0 : 1;
  }
  if (run == 0) {
    std::fprintf(stderr, "there is no such proof or control; everstep-prove --list names them\n");
    return 2;
  }
  return broken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace everstep::test

int main(int argc, char** argv) { return everstep::test::Main(argc, argv); }
