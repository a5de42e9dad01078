// [reshard] A server is added and another one drained while the job runs: no step is lost, next to no byte is moved
// that need not be, and no step takes much longer. 100 MB model, two copies.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "tests/proofs/proof.h"
#include "tests/support/fleet.h"

namespace everstep::test {
namespace {

constexpr double kAllowedBytes = 1.1;
constexpr double kAllowedRatio = 3;

double NowMs() { return static_cast<double>(SteadyNow().ns) / 1e6; }

uint64_t Moved(const json& status) { return status.at("counters").at("moved_bytes").get<uint64_t>(); }

uint64_t BytesOf(const json& status, const std::string& name) {
  for (const json& server : status.at("servers")) {
    if (server.at("name") == name) return server.at("bytes").get<uint64_t>();
  }
  return 0;
}

// Nothing has moved for so many steps.
Status WaitStill(Fleet& fleet, uint64_t steps) {
  uint64_t moved = 0, since = 0;
  return fleet.WaitFor(
      "the end of all moves",
      [&](const json& s) {
        if (Moved(s) != moved || since == 0) {
          moved = Moved(s);
          since = s.at("version").get<uint64_t>();
        }
        return s.at("version") >= since + steps;
      },
      std::chrono::minutes(3));
}

struct Change {
  uint64_t moved = 0;
  uint64_t least = 0;
  double began = 0;
  double ended = 0;
};

}  // namespace

Status ProveReshard(const ProofContext& context, json* figures) {
  const uint64_t elements = context.quick ? 4'000'000 : 25'000'000;
  const uint64_t quiet_steps = context.quick ? 12 : 25;
  Fleet fleet;
  EVERSTEP_RETURN_IF_ERROR(
      fleet.Start(3, {"--epochs=0", "--max-steps=1000000", "--batch=96", "--learning-rate=0.01", "--momentum=0.9"}));
  for (const char* name : {"a", "b"}) {
    EVERSTEP_RETURN_IF_ERROR(
        fleet.StartWorker(name, {"--dataset=100000", "--compute-ms=100", "--elements=" + std::to_string(elements)})
            .status());
  }
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitWhole());
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitSteps(quiet_steps + 3, std::chrono::minutes(3)));

  Change add, drain;
  EVERSTEP_ASSIGN(const json before, fleet.Ask());
  add.began = NowMs();
  EVERSTEP_ASSIGN(const size_t fresh, fleet.Add());
  if (context.Plants("two-joins")) EVERSTEP_RETURN_IF_ERROR(fleet.Add().status());
  if (context.Plants("frozen-server")) {
    fleet.cluster().server(1).Signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // less than a lease
    fleet.cluster().server(1).Signal(SIGCONT);
  }
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitWhole(std::chrono::minutes(3)));
  EVERSTEP_RETURN_IF_ERROR(WaitStill(fleet, 5));
  add.ended = NowMs();
  EVERSTEP_ASSIGN(const json wide, fleet.Ask());
  add.moved = Moved(wide) - Moved(before);
  add.least = 2 * fleet.total_bytes() / 4;  // the share of one of four

  drain.began = NowMs();
  drain.least = BytesOf(wide, "ps1");
  EVERSTEP_ASSIGN(Program * command,
                  fleet.cluster().Start("drain", "everstep",
                                        {"drain", "ps1", "--servers=" + fleet.cluster().address(fleet.coordinator())}));
  EVERSTEP_ASSIGN(const int code, command->Wait(std::chrono::minutes(3)));
  if (code != 0) return Broken("everstep drain ended with " + std::to_string(code) + ": " + command->log());
  EVERSTEP_ASSIGN(const int drained, fleet.cluster().server(1).Wait());
  if (drained != 0) return Broken("the drained server ended with " + std::to_string(drained));
  fleet.Forget(1);
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitWhole());
  EVERSTEP_RETURN_IF_ERROR(WaitStill(fleet, 5));
  drain.ended = NowMs();
  EVERSTEP_ASSIGN(const json after, fleet.Ask());
  drain.moved = Moved(after) - Moved(wide);

  EVERSTEP_ASSIGN(const std::vector<CommitLine> commits, fleet.Commits());
  EVERSTEP_RETURN_IF_ERROR(CheckChain(commits));
  std::vector<double> quiet, adding, draining;
  uint64_t alone = 0;  // steps of the whole time that lack a worker
  for (size_t i = 4; i < commits.size(); ++i) {
    const double ms = commits[i].committed_ms - commits[i - 1].committed_ms;  // with all that holds up the next grant
    if (commits[i].committed_ms < add.began) quiet.push_back(ms);
    if (commits[i].committed_ms >= add.began && commits[i - 1].committed_ms <= add.ended) adding.push_back(ms);
    if (commits[i].committed_ms >= drain.began && commits[i - 1].committed_ms <= drain.ended) draining.push_back(ms);
    alone += commits[i].contributors.size() != 2;
  }
  const double median = Median(quiet);
  const auto describe = [&](const Change& change, const std::vector<double>& times) {
    return json{{"moved_bytes", change.moved},
                {"least_bytes", change.least},
                {"bytes_ratio", static_cast<double>(change.moved) / static_cast<double>(change.least)},
                {"steps", times.size()},
                {"step_ms", {{"median", Median(times)}, {"max", *std::max_element(times.begin(), times.end())}}},
                {"longest_over_median", *std::max_element(times.begin(), times.end()) / median}};
  };
  (*figures)["model_mb"] = elements * sizeof(float) / 1'000'000;
  (*figures)["step_ms_before"] = {{"median", median}, {"max", *std::max_element(quiet.begin(), quiet.end())}};
  (*figures)["add"] = describe(add, adding);
  (*figures)["drain"] = describe(drain, draining);
  (*figures)["allowed"] = {{"bytes_ratio", kAllowedBytes}, {"longest_over_median", kAllowedRatio}};
  (*figures)["steps_without_a_worker"] = alone;
  (*figures)["bytes_of_the_new_server"] = BytesOf(after, fleet.name(fresh));
  if (after.at("counters").at("losses") != 0) return Broken("a worker was lost");
  if (alone > 0) return Broken(std::to_string(alone) + " steps went without one of the workers");
  for (const char* name : {"add", "drain"}) {
    const json& change = figures->at(name);
    if (change.at("bytes_ratio") > kAllowedBytes) {
      return Broken(std::string(name) + " moved " + change.at("bytes_ratio").dump() + " times the bytes it had to");
    }
    if (change.at("longest_over_median") > kAllowedRatio) {
      return Broken(std::string(name) + ": the longest step took " + change.at("longest_over_median").dump() +
                    " times the median before");
    }
  }
  return Status::Ok();
}

}  // namespace everstep::test
