// A problem in which the copies of repeated variables decide alike: as large as one layer of each
// kind, and every choice of it is a choice of the whole.
#pragma once

#include <cstdint>
#include <vector>

#include "intraop/elimination.h"
#include "intraop/problem.h"
#include "intraop/reduced_problem.h"

namespace shardwright {

// One decision per class of `classes` (see repeatedVariables), node c for class c. A choice costs
// what it costs in `problem` when every variable takes the value of its class, the offset left out
// and each variable at `unary` costs (rounded to whole units). Memory counts as far as these price
// it.
Problem tiedProblem(const ReducedProblem& problem, const UnaryCosts& unary,
                    const std::vector<int32_t>& classes);

}  // namespace shardwright
