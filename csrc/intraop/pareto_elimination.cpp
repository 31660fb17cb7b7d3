#include "intraop/pareto_elimination.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "intraop/pareto_pass.h"
#include "intraop/weighted_costs.h"

namespace shardwright {

ParetoElimination::ParetoElimination(const ReducedProblem& problem, const Elimination& elimination,
                                     std::vector<int32_t> rows)
    : problem_(problem), elimination_(elimination), rows_(std::move(rows)) {
  for (const ReducedVariable& variable : problem.variables()) {
    std::vector<std::vector<int64_t>> of_rows;
    std::vector<int32_t> first_rows;
    for (int32_t row : rows_) {
      std::vector<int64_t> bytes(variable.costs.size(), 0);
      int32_t first = row;
      for (const MemorySegment& segment : variable.memory) {
        const auto holds = [&](int32_t r) { return segment.row_begin <= r && r < segment.row_end; };
        if (!holds(row)) continue;
        bytes = segment.excess_bytes;
        first = *std::find_if(rows_.begin(), rows_.end(), holds);
      }
      of_rows.push_back(std::move(bytes));
      first_rows.push_back(first);
    }
    bytes_.push_back(std::move(of_rows));
    segments_.push_back(std::move(first_rows));
  }
  findClasses();
}

ParetoElimination::~ParetoElimination() = default;

// Steps that price and hold the same, down to the leaves, are one class. Prices of bytes are
// rounded once per memory segment, so variables with equal bytes in other segments can differ by a
// quantum: segments are part of what is compared, and tables of equal classes are equal to the last
// bit.
void ParetoElimination::findClasses() {
  using Content =
      std::tuple<std::vector<double>, std::vector<std::vector<int64_t>>, std::vector<int32_t>>;
  std::map<Content, int32_t> value_names;
  std::map<std::vector<int32_t>, int32_t> class_of_name;
  const std::vector<Elimination::Step>& steps = elimination_.steps();
  Class root;
  for (size_t s = 0; s < steps.size(); ++s) {
    const Elimination::Step& step = steps[s];
    const auto variable = static_cast<size_t>(step.variable);
    const auto num_values = [&](int32_t v) {
      return static_cast<size_t>(problem_.variables()[static_cast<size_t>(v)].numValues());
    };
    const auto place = [&](int32_t v) {
      return static_cast<size_t>(std::find(step.scope.begin(), step.scope.end(), v) -
                                 step.scope.begin());
    };
    Class made;
    made.step = static_cast<int32_t>(s);
    for (int32_t y : step.scope) made.scope_sizes.push_back(num_values(y));
    for (int32_t e : step.edges) {
      const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
      const bool u_goes = edge.u == step.variable;
      made.edges.push_back(
          {u_goes ? edge.table : edge.transposed_table, place(u_goes ? edge.v : edge.u)});
    }
    std::sort(made.edges.begin(), made.edges.end());
    for (int32_t c : step.children) {
      const Elimination::Step& sender = steps[static_cast<size_t>(c)];
      Child child;
      child.class_id = class_of_step_[static_cast<size_t>(c)];
      child.scope_strides.assign(step.scope.size(), 0);
      size_t stride = 1;
      for (size_t i = sender.scope.size(); i-- > 0;) {
        const int32_t y = sender.scope[i];
        if (y == step.variable) {
          child.own_stride = stride;
        } else {
          child.scope_strides[place(y)] = stride;
        }
        stride *= num_values(y);
      }
      made.children.push_back(std::move(child));
    }
    std::vector<int32_t> name{value_names
                                  .emplace(Content{problem_.variables()[variable].costs,
                                                   bytes_[variable], segments_[variable]},
                                           static_cast<int32_t>(value_names.size()))
                                  .first->second};
    for (size_t size : made.scope_sizes) name.push_back(static_cast<int32_t>(size));
    for (const auto& [table, other] : made.edges) {
      name.insert(name.end(), {-1, table, static_cast<int32_t>(other)});
    }
    for (int32_t c : step.children) {
      name.insert(name.end(), {-2, class_of_step_[static_cast<size_t>(c)]});
      for (int32_t y : steps[static_cast<size_t>(c)].scope) {
        name.push_back(y == step.variable ? -3 : static_cast<int32_t>(place(y)));
      }
    }
    const auto [it, added] =
        class_of_name.emplace(std::move(name), static_cast<int32_t>(classes_.size()));
    class_of_step_.push_back(it->second);
    if (step.scope.empty()) root.children.push_back({it->second, 0, {}});
    if (added) classes_.push_back(std::move(made));
  }
  classes_.push_back(std::move(root));
}

bool ParetoElimination::addMultipliers(const std::vector<double>& multipliers,
                                       const std::function<bool()>& stop) {
  std::vector<double> of_rows(static_cast<size_t>(problem_.numRows()), 0.0);
  for (size_t i = 0; i < rows_.size(); ++i) of_rows[static_cast<size_t>(rows_[i])] = multipliers[i];
  const std::optional<WeightedCosts> weighted = weightCosts(problem_, of_rows);
  if (!weighted) return false;
  std::optional<EliminationTables> tables = elimination_.tables(weighted->unary, stop);
  if (!tables || tables->optimum == kInfinity) return false;
  Priced priced;
  priced.bound = tables->optimum - weighted->constant;
  for (int32_t row : rows_) {
    priced.multipliers.push_back(weighted->multipliers[static_cast<size_t>(row)]);
  }
  // Products of multipliers and bytes are rounded; costs are whole units, so half of one is free.
  priced.margin = 0.5;
  for (size_t i = 0; i < rows_.size(); ++i) {
    double most = 0.0;
    for (const auto& of_variable : bytes_) {
      most += static_cast<double>(*std::max_element(of_variable[i].begin(), of_variable[i].end()));
    }
    priced.margin += 1e-15 * priced.multipliers[i] * most;
  }
  for (const Class& c : classes_) {
    ClassPrices prices;
    if (c.step < 0) {
      prices.subtree = tables->optimum;
      prices.table = std::make_shared<const std::vector<double>>(1, 0.0);
      prices.unary = {problem_.offset()};
    } else {
      const auto s = static_cast<size_t>(c.step);
      prices.subtree = tables->least[s];
      for (const Child& child : c.children) {
        prices.subtree += priced.classes[static_cast<size_t>(child.class_id)].subtree;
      }
      prices.table = std::move(tables->costs[s]);
      prices.unary = weighted->unary[static_cast<size_t>(elimination_.steps()[s].variable)];
    }
    priced.classes.push_back(std::move(prices));
  }
  priced_.push_back(std::move(priced));
  labels_ = std::move(tables->labels);
  return true;
}

double ParetoElimination::bound() const {
  double best = -kInfinity;
  for (const Priced& priced : priced_) best = std::max(best, priced.bound);
  return best;
}

std::optional<std::vector<std::vector<int32_t>>> ParetoElimination::possibleValues(
    double cutoff, const ParetoOptions& options, WorkMeter& meter) const {
  switch (rows_.size()) {
    case 1:
      return Pass<1>(*this, cutoff, options, meter).possibleValues();
    case 2:
      return Pass<2>(*this, cutoff, options, meter).possibleValues();
    default:
      return Pass<3>(*this, cutoff, options, meter).possibleValues();
  }
}

ParetoResult ParetoElimination::solve(double cutoff, const ParetoOptions& options,
                                      WorkMeter& meter) const {
  switch (rows_.size()) {
    case 1:
      return Pass<1>(*this, cutoff, options, meter).run();
    case 2:
      return Pass<2>(*this, cutoff, options, meter).run();
    default:
      return Pass<3>(*this, cutoff, options, meter).run();
  }
}

}  // namespace shardwright
