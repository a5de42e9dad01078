// everstep-sim: runs seeds of the simulator, or one with its trace, or looks for a planted bug (docs/simulator.md).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/log.h"
#include "tests/sim/plants.h"
#include "tests/sim/run.h"

using namespace everstep;

int main(int argc, char** argv) {
  CLI::App app;
  uint64_t seeds = 100, first = 1, one = 0;
  bool trace = false;
  std::string plant;
  app.add_option("--seeds", seeds);
  app.add_option("--first-seed", first);
  app.add_option("--seed", one);
  app.add_option("--plant", plant);
  app.add_flag("--trace", trace);
  CLI11_PARSE(app, argc, argv);
  log::SetLevel(trace ? log::Level::kDebug : log::Level::kOff);
  sim::SetPlant(plant);
  if (one) { first = one; seeds = 1; }
  for (uint64_t s = first; s < first + seeds; ++s) {
    std::fprintf(stderr, "seed %lu\r", s);
    sim::RunResult r = sim::RunSeed(s, {trace, trace ? 10000000ul : 40ul});
    if (trace) for (auto& l : r.lines) std::puts(l.c_str());
    if (trace) std::printf("%s steps %lu messages %lu events %lu virtual %.1f hash %lx\n", r.scenario.c_str(), r.steps, r.messages, r.events, Seconds(r.virtual_time), r.trace_hash);
    if (r.violation) {
      std::printf("seed %lu: %s: %s\n  %s\n%s", s, r.violation->promise.c_str(), r.violation->what.c_str(), r.scenario.c_str(), r.states.c_str());
      return 1;
    }
  }
}
