// everstep-sim: runs seeds of the simulator, replays one with its trace, or shows that planted bugs are found
// (docs/simulator.md).
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "base/log.h"
#include "tests/sim/batch.h"
#include "tests/sim/plants.h"
#include "tests/sim/run.h"

using namespace everstep;

namespace {

int ListPlants() {
  for (const sim::Plant& plant : sim::Plants()) {
    std::printf("%-4s %-26s %-8s %s\n", std::string(plant.trace).c_str(), std::string(plant.name).c_str(),
                std::string(plant.promise).c_str(), std::string(plant.what).c_str());
  }
  return 0;
}

void Print(const sim::RunResult& result, const std::string& replay) {
  std::printf("seed %llu breaks %s: %s\n\n", static_cast<unsigned long long>(result.seed),
              result.violation->promise.c_str(), result.violation->what.c_str());
  std::printf("%s\n", result.scenario.c_str());
  if (!result.lines.empty()) std::printf("\nthe end of the trace:\n");
  for (const std::string& line : result.lines) std::printf("%s\n", line.c_str());
  if (!result.states.empty()) std::printf("\nstates:\n%s", result.states.c_str());
  std::printf("\nreplay: %s\n", replay.c_str());
}

int Replay(uint64_t seed, bool trace, bool planned, const std::string& replay) {
  log::SetLevel(trace ? log::Level::kDebug : log::Level::kOff);
  const sim::RunResult result = sim::RunSeed(seed, {trace, SIZE_MAX, planned});
  for (const std::string& line : result.lines) std::printf("%s\n", line.c_str());
  std::printf("seed %llu: %llu steps, %llu messages, %llu events, %.3f s of virtual time, trace hash %016llx\n%s\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(result.steps),
              static_cast<unsigned long long>(result.messages), static_cast<unsigned long long>(result.events),
              Seconds(result.virtual_time), static_cast<unsigned long long>(result.trace_hash),
              result.scenario.c_str());
  if (!result.violation) return 0;
  sim::RunResult failed = result;
  failed.lines.clear();
  Print(failed, replay);
  return 1;
}

void PrintTotals(const sim::BatchTotals& totals, double wall) {
  std::printf("%llu seeds, %llu training steps committed, %llu jobs given up as they had to be, %llu coordinators\n",
              static_cast<unsigned long long>(totals.seeds), static_cast<unsigned long long>(totals.steps),
              static_cast<unsigned long long>(totals.job_failures),
              static_cast<unsigned long long>(totals.coordinators));
  std::printf("%llu messages, %llu events; faults:", static_cast<unsigned long long>(totals.messages),
              static_cast<unsigned long long>(totals.events));
  const char* separator = " ";
  for (const auto& [name, count] : totals.faults) {
    std::printf("%s%llu %s", separator, static_cast<unsigned long long>(count), name.c_str());
    separator = ", ";
  }
  std::printf("\n%.0f s of virtual time in %.1f s (%.0f seeds/s)\n", totals.virtual_seconds, wall,
              static_cast<double>(totals.seeds) / std::max(wall, 1e-9));
}

// One plant: found when some seed breaks a promise.
bool Hunt(const sim::Plant& plant, const sim::BatchOptions& options) {
  sim::BatchOptions hunt = options;
  hunt.plant = plant.name;
  hunt.planned |= plant.planned;
  const sim::BatchOutcome outcome = sim::RunBatch(hunt);
  const std::string name = std::string(plant.trace) + (plant.trace.empty() ? "" : " ") + std::string(plant.name);
  if (!outcome.failure) {
    std::printf("%-26s NOT FOUND in %llu seeds; it breaks %s: %s\n", name.c_str(),
                static_cast<unsigned long long>(outcome.totals.seeds), std::string(plant.promise).c_str(),
                std::string(plant.what).c_str());
    return false;
  }
  std::printf("%-26s found by seed %llu: %s: %s\n", name.c_str(),
              static_cast<unsigned long long>(outcome.failure->seed), outcome.failure->violation->promise.c_str(),
              outcome.failure->violation->what.c_str());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"The deterministic simulator: the real cores in a world of faults, with a checker for each promise."};
  sim::BatchOptions options;
  std::optional<uint64_t> seed;
  std::string plant;
  bool trace = false;
  app.add_option("--seeds", options.seeds, "how many seeds to run")->capture_default_str();
  app.add_option("--first-seed", options.first_seed, "the first of them")->capture_default_str();
  app.add_option("--jobs", options.jobs, "processes that run seeds side by side; 0: one a core")->capture_default_str();
  app.add_option("--seed", seed, "run this one seed and print its trace hash");
  app.add_flag("--twice", options.twice, "run each seed twice; both runs must be the same, bit for bit");
  app.add_flag("--trace", trace, "with --seed: print every event");
  app.add_option("--plant", plant,
                 "a planted bug that must be found; `all` of them, or `list`; with --seed: run it so");
  app.add_flag("--planned", options.planned,
               "servers join and are drained, and nothing goes wrong: no step may wait for a timer");
  CLI11_PARSE(app, argc, argv);

  if (plant == "list") return ListPlants();
  if (!plant.empty() && plant != "all" && sim::FindPlant(plant) == nullptr) {
    std::fprintf(stderr, "no plant is named %s; see --plant list\n", plant.c_str());
    return 2;
  }
  const std::string replay_more = (options.planned ? " --planned" : "") + (plant.empty() ? "" : " --plant " + plant);
  if (seed) {
    sim::SetPlant(plant);
    return Replay(*seed, trace, options.planned,
                  "everstep-sim --seed " + std::to_string(*seed) + " --trace" + replay_more);
  }
  log::SetLevel(log::Level::kOff);
  if (!plant.empty()) {
    bool found = true;
    for (const sim::Plant& p : sim::Plants()) {
      if (plant == "all" || plant == p.name) found &= Hunt(p, options);
    }
    return found ? 0 : 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  options.progress = true;
  const sim::BatchOutcome outcome = sim::RunBatch(options);
  if (outcome.failure) {
    Print(*outcome.failure, "everstep-sim --seed " + std::to_string(outcome.failure->seed) + " --trace" + replay_more);
    return 1;
  }
  PrintTotals(outcome.totals, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return 0;
}
