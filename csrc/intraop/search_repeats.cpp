// Phases of a search that make use of repeated layers: what is good for one is good for its copies.
#include <algorithm>
#include <set>
#include <utility>

#include "intraop/lagrangian.h"
#include "intraop/presolve.h"
#include "intraop/repeated_variables.h"
#include "intraop/search.h"
#include "intraop/tied_problem.h"
#include "intraop/weighted_costs.h"

namespace shardwright {
namespace {

// Shallow enough that layers near the ends have copies, deep enough to tell the parts of a layer
// apart.
constexpr int kDepth = 4;
// Tying pays where it leaves at most this share of the variables.
constexpr double kMaxTiedShare = 0.6;
constexpr EliminationLimits kValuesLimits{3e8, 4e8};

}  // namespace

void Search::searchTied(const ReducedProblem& reduced) {
  if (has_tied_ || stopped()) return;
  has_tied_ = true;
  const std::vector<int32_t> classes = repeatedVariables(reduced, kDepth);
  const auto num_classes =
      static_cast<double>(1 + *std::max_element(classes.begin(), classes.end()));
  if (num_classes > kMaxTiedShare * reduced.numVariables()) return;
  const auto weighted = weightCosts(reduced, multipliersOf(reduced, multipliers_));
  if (!weighted) return;
  const Phase phase(*this, "tied");
  const Problem problem = tiedProblem(reduced, weighted->unary, classes);
  SolveOptions options = options_;
  options.time_limit_s = 0.2 * nominalLeft();
  options.max_elimination_work = std::min(options.max_elimination_work,
                                          options.time_limit_s * WorkMeter::kRowEntriesPerSecond);
  options.use_integer_program = false;
  options.on_progress = [this](const SolveProgress&) { report(); };
  Search tied(problem, options);
  tied.parent_ = this;
  const Claim found = tied.run();
  meter_.add(tied.meter_);
  if (found.choice.empty()) return;
  std::vector<int32_t> labels;
  for (const int32_t number : classes) labels.push_back(found.choice[static_cast<size_t>(number)]);
  searchFrom(reduced, labels);
}

void Search::searchRepeats(const ReducedProblem& reduced) {
  const auto incumbent = incumbentLabels(reduced);
  if (!incumbent || stopped()) return;
  const Phase phase(*this, "repeats");
  const std::vector<int32_t> classes = repeatedVariables(reduced, kDepth);
  std::vector<std::set<int32_t>> values(reduced.variables().size());  // by class
  for (size_t v = 0; v < classes.size(); ++v) {
    values[static_cast<size_t>(classes[v])].insert((*incumbent)[v]);
  }
  Reduction repeated = reduction_;
  for (size_t v = 0; v < classes.size(); ++v) {
    const ReducedVariable& variable = reduced.variables()[v];
    const std::set<int32_t>& keep = values[static_cast<size_t>(classes[v])];
    // What was fixed since has renumbered the values.
    if (repeated.variable(variable.reduction_variable).costs.size() != variable.costs.size()) {
      return;
    }
    repeated.keepValues(variable.reduction_variable, {keep.begin(), keep.end()});
  }
  meter_.addSteps((kDepth + 1.0) * reduced.numVariables());
  PresolveOptions presolve_options;
  presolve_options.out_of_time = [this] { return stopped(); };
  presolve(repeated, layout_, presolve_options);
  if (repeated.infeasible()) return;
  const ReducedProblem part(repeated, layout_);
  const Elimination elimination(part, kValuesLimits);
  if (!elimination.fits()) return;
  LagrangianOptions lagrangian_options;
  lagrangian_options.max_evaluations = 8;
  lagrangian_options.stop = [this] { return stopped() || closed(); };
  lagrangian_options.on_labels = [&](const std::vector<int32_t>& labels) {
    considerRepaired(part, repeated, labels);
  };
  maximiseLagrangian(part, elimination, lagrangian_options, meter_,
                     multipliersOf(part, multipliers_));
}

}  // namespace shardwright
