// Unary costs with memory priced in: the Lagrangian of a ReducedProblem for given row multipliers.
#pragma once

#include <optional>
#include <vector>

#include "intraop/elimination.h"
#include "intraop/reduced_problem.h"

namespace shardwright {

// min over choices of (unary + edges) - constant is a lower bound for every choice within memory:
// products are rounded down to the problem's quantum and the constant is rounded up.
struct WeightedCosts {
  UnaryCosts unary;
  double constant = 0.0;
  std::vector<double> multipliers;  // per row: those asked for, rounded down a little
};

// multipliers: cost per byte and row, >= 0. Nothing when the products leave the exact range.
std::optional<WeightedCosts> weightCosts(const ReducedProblem& problem,
                                         const std::vector<double>& multipliers);

}  // namespace shardwright
