// Lagrangian dual of the memory rows over exact elimination: multipliers by cutting planes on the
// few rows that bind, exact bounds, and the choices met on the way as starts for the primal search.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "intraop/elimination.h"
#include "intraop/weighted_costs.h"
#include "intraop/work_meter.h"

namespace shardwright {

struct LagrangianOptions {
  int max_evaluations = 200;
  // Stop when the bound can rise by no more than this.
  double tolerance = 0.5;
  // No bound above this is needed (the incumbent's cost).
  double target = kInfinity;
  std::function<bool()> stop;
  // Called with every choice that attains a bound.
  std::function<void(const std::vector<int32_t>&)> on_labels;
  // Called whenever the bound rises.
  std::function<void(double)> on_bound;
};

struct LagrangianResult {
  double bound = -kInfinity;
  std::vector<double> multipliers;  // per row, of the best bound
  bool infeasible = false;          // some evaluation had no choice at all
  int num_evaluations = 0;
};

// start: multipliers to begin with (empty = none).
LagrangianResult maximiseLagrangian(const ReducedProblem& problem, const Elimination& elimination,
                                    const LagrangianOptions& options, WorkMeter& meter,
                                    const std::vector<double>& start = {});

}  // namespace shardwright
