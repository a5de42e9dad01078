// Planted bugs: each promise's checker in the simulator must catch a bug that breaks the promise on purpose
// (`./dev sim --plant NAME`). In every other build EVERSTEP_PLANTED is the constant false and the branch vanishes.
#pragma once

#include <string_view>

namespace everstep::plant {

#ifdef EVERSTEP_PLANTS
// Defined by the simulator.
bool On(std::string_view name);
#define EVERSTEP_PLANTED(name) (::everstep::plant::On(name))
#else
#define EVERSTEP_PLANTED(name) (false)
#endif

}  // namespace everstep::plant
