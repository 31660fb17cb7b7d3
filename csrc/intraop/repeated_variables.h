// Which variables of a problem are copies of one another: those of the repeated layers of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "intraop/reduced_problem.h"

namespace shardwright {

// A number per variable, equal for variables that cannot be told apart by domains, costs and tables
// up to `depth` edges away. Variables of one class have the same values in the same order.
// Example: of five equal layers in a row the first and the last have classes of their own near
// their outer ends, the inner three share theirs.
// Source: colour refinement (Weisfeiler and Leman, 1968).
std::vector<int32_t> repeatedVariables(const ReducedProblem& problem, int depth);

}  // namespace shardwright
