// Says why no stages fit.
#pragma once

#include "interop/stage_problem.h"

namespace shardwright {

// Throws InfeasibleError [E205]: names a layer that no stage can hold, with the bytes it needs, or
// the smallest memory limit that would do, or the device count that cannot be made up.
// Contract: searchStages proved the problem infeasible.
[[noreturn]] void throwStagesInfeasible(const StageProblem& problem);

}  // namespace shardwright
