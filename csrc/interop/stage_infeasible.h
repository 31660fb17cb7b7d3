// Says why no stages fit.
#pragma once

#include "interop/stage_dp.h"
#include "interop/stage_problem.h"

namespace shardwright {

// Throws InfeasibleError [E205]: names a layer that no stage can hold, with the bytes it needs, or
// a memory limit that would do, or the device count that cannot be made up. The limit is the
// smallest one to a thousandth; less near, or left out, where the options' time or an interrupt
// ended the search for it.
// Contract: searchStages proved the problem infeasible.
[[noreturn]] void throwStagesInfeasible(const StageProblem& problem,
                                        const StageSearchOptions& options = {});

}  // namespace shardwright
