#include "interop/port_elimination.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "intraop/message_passing.h"
#include "intraop/presolve.h"

namespace shardwright {
namespace {

// Up to this many entries nothing is gained by leaving values out.
constexpr double kDirectWork = 3e6;
constexpr int kSweeps = 12;
// Beginning a row of a table takes as long as so many of its entries.
constexpr double kRowStart = 16;
// Values per variable that a first look is taken at, and those tried where the bound leaves too
// many.
constexpr std::size_t kFirstValues[] = {5, 3, 2};
constexpr std::size_t kMostValues[] = {24, 16, 12, 9, 7};

}  // namespace

// One state of the reduction, packed and ordered for elimination.
struct PortElimination::Candidate {
  Candidate(const Reduction& start, const std::vector<std::int32_t>& kept_nodes)
      : reduction(start), layout(start.problem()) {
    PresolveOptions options;
    options.kept_nodes = kept_nodes;
    presolve(reduction, layout, options);
    reduction.pool().forgetSwapCosts();
    if (reduction.infeasible()) {
      return;
    }
    reduced = std::make_unique<ReducedProblem>(reduction, layout);
    for (const std::int32_t node : kept_nodes) {
      const auto& variables = reduced->variables();
      const auto variable =
          std::ranges::find(variables, node, &ReducedVariable::reduction_variable);
      kept.push_back(static_cast<std::int32_t>(variable - variables.begin()));
      std::vector<std::int32_t>& values = value_of_strategy.emplace_back(
          start.problem().nodes()[static_cast<std::size_t>(node)].costs.size(), -1);
      const auto member = std::ranges::find(variable->members, node, &Member::node);
      const std::vector<std::int32_t>& left = reduction.pool().list(member->strategies);
      for (std::size_t value = 0; value < left.size(); ++value) {
        values[static_cast<std::size_t>(left[value])] = static_cast<std::int32_t>(value);
      }
    }
    elimination = std::make_unique<Elimination>(*reduced, EliminationLimits(), kept);
  }

  bool fits(double max_work) const { return elimination->fits() && visits() <= max_work; }

  // Entries visited, and what it takes to begin a row of them.
  double visits() const {
    double sum = 0;
    for (const Elimination::Step& step : elimination->steps()) {
      const auto valuesOf = [&](std::int32_t v) {
        return static_cast<double>(reduced->variables()[static_cast<std::size_t>(v)].numValues());
      };
      const double row = step.scope.empty() ? 1 : valuesOf(step.scope.back());
      sum += valuesOf(step.variable) * step.num_entries * (1 + kRowStart / row);
    }
    return sum;
  }

  // Costs by the kept nodes' strategies.
  std::vector<double> solve() {
    std::size_t num_entries = 1;
    for (const std::vector<std::int32_t>& values : value_of_strategy) {
      num_entries *= values.size();
    }
    UnaryCosts unary;
    for (const ReducedVariable& variable : reduced->variables()) {
      unary.push_back(variable.costs);
    }
    joint = std::make_unique<JointCosts>(elimination->jointCosts(std::move(unary)));
    std::vector<double> costs(num_entries, kInfinity);
    for (std::size_t entry = 0; entry < num_entries; ++entry) {
      std::size_t rest = entry;
      std::size_t at = 0;
      std::size_t stride = 1;
      bool is_left = true;
      for (std::size_t k = kept.size(); k-- > 0;) {
        const std::vector<std::int32_t>& values = value_of_strategy[k];
        const std::int32_t value = values[rest % values.size()];
        rest /= values.size();
        is_left = is_left && value >= 0;
        at += stride * static_cast<std::size_t>(std::max(value, 0));
        stride *= static_cast<std::size_t>(
            reduced->variables()[static_cast<std::size_t>(kept[k])].numValues());
      }
      if (is_left) {
        costs[entry] = joint->costs()[at];
      }
    }
    return costs;
  }

  Reduction reduction;
  MemoryLayout layout;
  std::unique_ptr<ReducedProblem> reduced;
  std::vector<std::int32_t> kept;                            // variables of the reduced problem
  std::vector<std::vector<std::int32_t>> value_of_strategy;  // by kept node; -1: excluded
  std::unique_ptr<Elimination> elimination;
  std::unique_ptr<JointCosts> joint;
};

void PortElimination::Deleter::operator()(Candidate* candidate) const { delete candidate; }

PortElimination::PortElimination(const Problem& problem,
                                 const std::vector<std::int32_t>& kept_nodes,
                                 const std::vector<std::vector<std::int32_t>>& allowed,
                                 double max_work)
    : problem_(problem), kept_nodes_(kept_nodes) {
  std::size_t num_entries = 1;
  for (const std::int32_t node : kept_nodes) {
    num_entries *= problem.nodes()[static_cast<std::size_t>(node)].costs.size();
  }
  costs_.assign(num_entries, kInfinity);
  Reduction start(problem);
  cost_shift_ = start.costShift();
  for (std::size_t k = 0; k < kept_nodes.size(); ++k) {
    start.keepValues(kept_nodes[k], allowed[k]);
  }
  if (start.infeasible()) {
    return;
  }
  auto whole = std::make_unique<Candidate>(start, kept_nodes);
  if (whole->reduction.infeasible()) {
    return;
  }
  if (!whole->fits(std::min(kDirectWork, max_work))) {
    if (auto part = narrow(*whole, max_work)) {
      use(std::move(part));
      return;
    }
  }
  if (whole->elimination->fits()) {
    use(std::move(whole));
  }
}

void PortElimination::use(std::unique_ptr<Candidate> candidate) {
  costs_ = candidate->solve();
  used_.reset(candidate.release());
}

std::unique_ptr<PortElimination::Candidate> PortElimination::narrowed(
    const Candidate& whole, const std::vector<std::vector<std::int32_t>>& values) const {
  Reduction part = whole.reduction;
  for (std::size_t v = 0; v < values.size(); ++v) {
    part.keepValues(whole.reduced->variables()[v].reduction_variable, values[v]);
  }
  return std::make_unique<Candidate>(part, kept_nodes_);
}

// Values that cost more than the dearest combination of kept values is known to cost need not be
// looked at: message passing bounds every choice that takes a value.
std::unique_ptr<PortElimination::Candidate> PortElimination::narrow(const Candidate& whole,
                                                                    double max_work) {
  MessagePassing messages(*whole.reduced);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    messages.sweep();
  }
  const UnaryCosts bounds = messages.marginals().costs;
  const auto valuesWithin = [&](double ceiling, std::size_t most) {
    std::vector<std::vector<std::int32_t>> values;
    for (std::size_t v = 0; v < bounds.size(); ++v) {
      std::vector<std::int32_t>& list = values.emplace_back(bounds[v].size());
      std::iota(list.begin(), list.end(), 0);
      if (std::ranges::find(whole.kept, static_cast<std::int32_t>(v)) != whole.kept.end()) {
        continue;
      }
      std::ranges::stable_sort(
          list, {}, [&](std::int32_t value) { return bounds[v][static_cast<std::size_t>(value)]; });
      std::size_t count = 1;
      while (count < list.size() && count < most &&
             bounds[v][static_cast<std::size_t>(list[count])] <= ceiling) {
        ++count;
      }
      list.resize(count);
      std::ranges::sort(list);
    }
    return values;
  };
  const auto fits = [&](const Candidate& candidate) {
    return !candidate.reduction.infeasible() && candidate.fits(max_work);
  };
  std::unique_ptr<Candidate> first;
  for (const std::size_t most : kFirstValues) {
    first = narrowed(whole, valuesWithin(kInfinity, most));
    if (fits(*first)) {
      break;
    }
  }
  const bool is_first_wide = !fits(*first);
  double ceiling = kInfinity;
  if (!is_first_wide) {
    // Of the combinations that there can be at all.
    ceiling = 0;
    const std::vector<double> costs = first->solve();
    for (std::size_t entry = 0; entry < costs.size(); ++entry) {
      bool is_wanted = true;
      std::size_t rest = entry;
      for (std::size_t k = whole.kept.size(); k-- > 0;) {
        const std::vector<std::int32_t>& values = whole.value_of_strategy[k];
        is_wanted = is_wanted && values[rest % values.size()] >= 0;
        rest /= values.size();
      }
      ceiling = is_wanted ? std::max(ceiling, costs[entry]) : ceiling;
    }
  }
  if (ceiling < kInfinity) {
    auto exact = narrowed(whole, valuesWithin(ceiling, SIZE_MAX));
    if (fits(*exact)) {
      return exact;
    }
  }
  if (whole.fits(max_work)) {
    return nullptr;
  }
  is_exact_ = false;
  for (const std::size_t most : kMostValues) {
    auto part = is_first_wide ? nullptr : narrowed(whole, valuesWithin(ceiling, most));
    if (part && fits(*part)) {
      return part;
    }
  }
  return !first->reduction.infeasible() && first->elimination->fits() ? std::move(first) : nullptr;
}

std::vector<std::int32_t> PortElimination::choice(
    const std::vector<std::int32_t>& kept_strategies) const {
  std::vector<std::int32_t> kept_values;
  for (std::size_t k = 0; k < kept_strategies.size(); ++k) {
    kept_values.push_back(
        used_->value_of_strategy[k][static_cast<std::size_t>(kept_strategies[k])]);
  }
  return used_->reduced->expand(used_->reduction.pool(), used_->joint->labels(kept_values));
}

}  // namespace shardwright
