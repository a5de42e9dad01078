// The planted bugs: one line each says which promise it breaks. At most one is in force, in the whole process; the
// cores ask for it by EVERSTEP_PLANTED (base/plant.h). Set it before any core runs.
#pragma once

#include <span>
#include <string_view>

#include "tests/sim/scenarios.h"

namespace everstep::sim {

struct Plant {
  std::string_view name;
  std::string_view trace;  // the step protocol's trace that shows what goes wrong, or ""
  std::string_view promise;
  Ambush ambush;  // where it is looked for; kNone: anywhere
  std::string_view what;
  bool power_cuts = false;  // looked for in runs with power cuts
  bool planned = false;     // looked for in runs with planned changes (planned.h)
};

std::span<const Plant> Plants();
const Plant* FindPlant(std::string_view name);
// Empty: none.
void SetPlant(std::string_view name);
std::string_view ActivePlant();

}  // namespace everstep::sim
