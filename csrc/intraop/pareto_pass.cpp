#include "intraop/pareto_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

namespace shardwright {

template <size_t kRows>
ParetoElimination::Pass<kRows>::Pass(const ParetoElimination& plan, double cutoff,
                                     const ParetoOptions& options, WorkMeter& meter)
    : plan_(plan), cutoff_(std::floor(cutoff)), options_(options), meter_(meter) {
  for (const Priced& priced : plan.priced_) gaps_.push_back(cutoff_ - priced.bound);
}

template <size_t kRows>
ParetoResult ParetoElimination::Pass<kRows>::run() {
  if (std::any_of(gaps_.begin(), gaps_.end(), [](double gap) { return gap < 0.0; })) {
    result_.finished = true;
    result_.bound = cutoff_ + 1.0;
    return std::move(result_);
  }
  if (!findEntries() || !buildFronts()) return std::move(result_);
  result_.finished = true;
  Front found;
  if (!fronts_.back().empty()) {
    for (const Point& point : fronts_.back().front()) {
      bool fits = point.cost <= cutoff_;
      for (size_t i = 0; i < kRows; ++i) {
        fits &= point.bytes[i] <= plan_.problem_.slackBytes()[static_cast<size_t>(plan_.rows_[i])];
      }
      if (fits) found.push_back(point);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Point& a, const Point& b) { return a.cost < b.cost; });
  result_.bound = found.empty() ? cutoff_ + 1.0 : found.front().cost;
  result_.bound = std::min(result_.bound, cutoff_ + dropped_);
  num_sums_ = 0;
  constexpr size_t kMaxChoices = 8;
  if (found.size() > kMaxChoices) found.resize(kMaxChoices);
  for (const Point& point : found) {
    std::vector<int32_t> labels;
    if (readOff(point, labels)) result_.labels.push_back(std::move(labels));
  }
  return std::move(result_);
}

template <size_t kRows>
std::optional<std::vector<std::vector<int32_t>>> ParetoElimination::Pass<kRows>::possibleValues() {
  const std::vector<Elimination::Step>& steps = plan_.elimination_.steps();
  std::vector<std::vector<int32_t>> values(steps.size());
  // Nothing is possible below a bound.
  if (std::any_of(gaps_.begin(), gaps_.end(), [](double gap) { return gap < 0.0; })) return values;
  if (!findEntries()) return std::nullopt;
  std::vector<std::vector<int32_t>> of_class(reach_.size());
  for (size_t c = 0; c < reach_.size(); ++c) {
    for (const Move& move : reach_[c].moves) of_class[c].push_back(move.value);
    std::sort(of_class[c].begin(), of_class[c].end());
    of_class[c].erase(std::unique(of_class[c].begin(), of_class[c].end()), of_class[c].end());
  }
  for (size_t s = 0; s < steps.size(); ++s) {
    values[static_cast<size_t>(steps[s].variable)] =
        of_class[static_cast<size_t>(plan_.class_of_step_[s])];
  }
  return values;
}

template <size_t kRows>
int32_t ParetoElimination::Pass<kRows>::reach(int32_t class_id, uint64_t key,
                                              const std::vector<double>& outside) {
  Reach& reach = reach_[static_cast<size_t>(class_id)];
  const auto [it, added] = reach.entry_of_key.emplace(key, static_cast<int32_t>(reach.keys.size()));
  if (added) {
    reach.keys.push_back(key);
    reach.outside.insert(reach.outside.end(), outside.begin(), outside.end());
    ++result_.num_entries;
  } else {
    double* known = reach.outside.data() + static_cast<size_t>(it->second) * outside.size();
    for (size_t i = 0; i < outside.size(); ++i) known[i] = std::min(known[i], outside[i]);
  }
  return it->second;
}

template <size_t kRows>
bool ParetoElimination::Pass<kRows>::findEntries() {
  reach_.resize(plan_.classes_.size());
  reach(static_cast<int32_t>(plan_.classes_.size()) - 1, 0, std::vector<double>(gaps_.size(), 0.0));
  for (size_t c = plan_.classes_.size(); c-- > 0;) {
    if (!expand(static_cast<int32_t>(c))) return false;
  }
  return true;
}

template <size_t kRows>
bool ParetoElimination::Pass<kRows>::expand(int32_t class_id) {
  const Class& c = plan_.classes_[static_cast<size_t>(class_id)];
  Reach& reach_here = reach_[static_cast<size_t>(class_id)];
  const size_t num_priced = gaps_.size();
  const size_t depth = c.scope_sizes.size();
  const std::vector<double> root_costs{plan_.problem_.offset()};
  const std::vector<double>& costs =
      c.step < 0 ? root_costs
                 : plan_.problem_
                       .variables()[static_cast<size_t>(
                           plan_.elimination_.steps()[static_cast<size_t>(c.step)].variable)]
                       .costs;
  std::vector<size_t> digits(depth);
  std::vector<size_t> child_offsets(c.children.size());
  std::vector<double> outside(num_priced);
  size_t num_visits = 0;
  for (size_t entry = 0; entry < reach_here.keys.size(); ++entry) {
    reach_here.first_move.push_back(reach_here.moves.size());
    uint64_t rest = reach_here.keys[entry];
    for (size_t i = depth; i-- > 0;) {
      digits[i] = rest % c.scope_sizes[i];
      rest /= c.scope_sizes[i];
    }
    for (size_t k = 0; k < c.children.size(); ++k) {
      child_offsets[k] = 0;
      for (size_t i = 0; i < depth; ++i) {
        child_offsets[k] += c.children[k].scope_strides[i] * digits[i];
      }
    }
    for (size_t a = 0; a < costs.size(); ++a) {
      double edge_cost = 0.0;
      for (const auto& [table, other] : c.edges) {
        edge_cost += plan_.problem_.table(table).at(static_cast<int32_t>(a),
                                                    static_cast<int32_t>(digits[other]));
      }
      ++num_visits;
      if (costs[a] + edge_cost == kInfinity) continue;
      bool possible = true;
      for (size_t p = 0; p < num_priced && possible; ++p) {
        const Priced& priced = plan_.priced_[p];
        const ClassPrices& here = priced.classes[static_cast<size_t>(class_id)];
        double excess =
            here.unary[a] + edge_cost - here.subtree - (*here.table)[reach_here.keys[entry]];
        for (size_t k = 0; k < c.children.size(); ++k) {
          const Child& child = c.children[k];
          const ClassPrices& below = priced.classes[static_cast<size_t>(child.class_id)];
          excess += (*below.table)[child_offsets[k] + a * child.own_stride] + below.subtree;
        }
        outside[p] = reach_here.outside[entry * num_priced + p] + excess;
        possible = outside[p] <= gaps_[p];
      }
      if (!possible) continue;
      reach_here.moves.push_back(
          {static_cast<int32_t>(a), costs[a] + edge_cost, reach_here.child_entries.size()});
      for (size_t k = 0; k < c.children.size(); ++k) {
        const Child& child = c.children[k];
        reach_here.child_entries.push_back(
            reach(child.class_id, child_offsets[k] + a * child.own_stride, outside));
      }
    }
    if (result_.num_entries > options_.max_entries) return false;
    if (entry % 1024 == 0 && stopped()) return false;
  }
  reach_here.first_move.push_back(reach_here.moves.size());
  meter_.addLookups(static_cast<double>(num_visits) *
                    (1.0 + static_cast<double>(c.edges.size() + c.children.size())));
  return true;
}

template <size_t kRows>
typename ParetoElimination::Pass<kRows>::Point ParetoElimination::Pass<kRows>::pointOf(
    int32_t class_id, const Move& move) const {
  Point point;
  point.cost = move.cost;
  const int32_t step = plan_.classes_[static_cast<size_t>(class_id)].step;
  if (step < 0) return point;
  const auto v =
      static_cast<size_t>(plan_.elimination_.steps()[static_cast<size_t>(step)].variable);
  for (size_t i = 0; i < kRows; ++i) {
    point.bytes[i] = plan_.bytes_[v][i][static_cast<size_t>(move.value)];
  }
  return point;
}

template <size_t kRows>
typename ParetoElimination::Pass<kRows>::Levels ParetoElimination::Pass<kRows>::levelsOf(
    int32_t class_id, size_t entry) const {
  const Reach& reach_here = reach_[static_cast<size_t>(class_id)];
  Levels levels;
  for (size_t p = 0; p < gaps_.size(); ++p) {
    const Priced& priced = plan_.priced_[p];
    const ClassPrices& here = priced.classes[static_cast<size_t>(class_id)];
    std::array<double, kRows> multipliers{};
    std::copy_n(priced.multipliers.begin(), kRows, multipliers.begin());
    levels.multipliers.push_back(multipliers);
    levels.levels.push_back(gaps_[p] + priced.margin -
                            reach_here.outside[entry * gaps_.size() + p] + here.subtree +
                            (*here.table)[reach_here.keys[entry]]);
  }
  return levels;
}

template <size_t kRows>
std::vector<typename ParetoElimination::Pass<kRows>::Front> ParetoElimination::Pass<kRows>::stages(
    int32_t class_id, size_t entry, const Move& move, std::vector<size_t>& order) {
  const Class& c = plan_.classes_[static_cast<size_t>(class_id)];
  const Reach& reach_here = reach_[static_cast<size_t>(class_id)];
  const auto front_of = [&](size_t k) -> const Front& {
    return fronts_[static_cast<size_t>(c.children[k].class_id)]
                  [static_cast<size_t>(reach_here.child_entries[move.first_child + k])];
  };
  order.resize(c.children.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return front_of(a).size() < front_of(b).size(); });
  // What the children that are still to come cost at least.
  Levels levels = levelsOf(class_id, entry);
  const auto least_of = [&](size_t k, size_t p) {
    const auto child_class = static_cast<size_t>(c.children[k].class_id);
    const ClassPrices& below = plan_.priced_[p].classes[child_class];
    const auto child_entry = static_cast<size_t>(reach_here.child_entries[move.first_child + k]);
    return (*below.table)[reach_[child_class].keys[child_entry]] + below.subtree;
  };
  for (size_t k = 0; k < order.size(); ++k) {
    for (size_t p = 0; p < gaps_.size(); ++p) levels.levels[p] -= least_of(k, p);
  }
  std::vector<Front> fronts{{pointOf(class_id, move)}};
  if (levels.excess(fronts[0][0]) > 0.0) fronts[0].clear();
  for (size_t k : order) {
    for (size_t p = 0; p < gaps_.size(); ++p) levels.levels[p] += least_of(k, p);
    const size_t num_sums = fronts.back().size() * front_of(k).size();
    num_sums_ += num_sums;
    if (num_sums_ > options_.max_sums) return {{}};
    meter_.addLookups(static_cast<double>(num_sums * gaps_.size()));
    Front next = pareto::sums(fronts.back(), front_of(k), levels);
    truncate(next, levels);
    fronts.push_back(std::move(next));
  }
  return fronts;
}

template <size_t kRows>
void ParetoElimination::Pass<kRows>::truncate(Front& front, const Levels& levels) {
  if (front.size() <= max_front_) return;
  result_.truncated = true;
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t i = 0; i < front.size(); ++i) ranked.emplace_back(levels.excess(front[i]), i);
  const auto end = ranked.begin() + static_cast<ptrdiff_t>(max_front_);
  std::nth_element(ranked.begin(), end, ranked.end());
  double margin = 0.0;
  for (const Priced& priced : plan_.priced_) margin = std::max(margin, priced.margin);
  dropped_ = std::min(dropped_, std::ceil(end->first - margin));
  std::vector<size_t> kept;
  for (auto it = ranked.begin(); it != end; ++it) kept.push_back(it->second);
  std::sort(kept.begin(), kept.end());
  Front result;
  for (size_t i : kept) result.push_back(front[i]);
  front = std::move(result);
}

template <size_t kRows>
bool ParetoElimination::Pass<kRows>::buildFronts() {
  max_front_ = std::max<size_t>(1, options_.max_front);
  fronts_.resize(plan_.classes_.size());
  std::vector<size_t> order;
  for (size_t c = 0; c < plan_.classes_.size(); ++c) {
    const Reach& reach_here = reach_[c];
    for (size_t entry = 0; entry < reach_here.keys.size(); ++entry) {
      std::vector<Front> of_moves;
      for (size_t m = reach_here.first_move[entry]; m < reach_here.first_move[entry + 1]; ++m) {
        std::vector<Front> parts =
            stages(static_cast<int32_t>(c), entry, reach_here.moves[m], order);
        if (!parts.back().empty()) of_moves.push_back(std::move(parts.back()));
      }
      Front front = pareto::merged(std::move(of_moves));
      truncate(front, levelsOf(static_cast<int32_t>(c), entry));
      front.shrink_to_fit();
      result_.num_points += front.size();
      fronts_[c].push_back(std::move(front));
      if (result_.num_points > options_.max_points || num_sums_ > options_.max_sums) return false;
      if (entry % 64 == 0 && stopped()) return false;
    }
  }
  return true;
}

// The points of a move's children that add up to the target; false when they do not.
template <size_t kRows>
bool ParetoElimination::Pass<kRows>::readMove(int32_t class_id, size_t entry, const Move& move,
                                              const Point& target,
                                              std::vector<Point>& of_children) {
  const Class& c = plan_.classes_[static_cast<size_t>(class_id)];
  const Reach& reach_here = reach_[static_cast<size_t>(class_id)];
  const auto contains = [](const Front& front, const Point& point) {
    return std::binary_search(front.begin(), front.end(), point, pareto::precedes<kRows>);
  };
  std::vector<size_t> order;
  const std::vector<Front> parts = stages(class_id, entry, move, order);
  if (!contains(parts.back(), target)) return false;
  of_children.assign(c.children.size(), {});
  Point rest = target;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t k = order[i];
    const Front& front =
        fronts_[static_cast<size_t>(c.children[k].class_id)]
               [static_cast<size_t>(reach_here.child_entries[move.first_child + k])];
    const auto found = std::find_if(front.begin(), front.end(), [&](const Point& point) {
      return contains(parts[i], pareto::difference(rest, point));
    });
    if (found == front.end()) return false;
    of_children[k] = *found;
    rest = pareto::difference(rest, *found);
  }
  return true;
}

template <size_t kRows>
bool ParetoElimination::Pass<kRows>::readOff(const Point& target, std::vector<int32_t>& labels) {
  const std::vector<Elimination::Step>& steps = plan_.elimination_.steps();
  labels.assign(steps.size(), 0);
  struct Task {
    int32_t class_id;
    int32_t step;  // -1: the root
    int32_t entry;
    Point target;
  };
  std::vector<int32_t> roots;
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].scope.empty()) roots.push_back(static_cast<int32_t>(s));
  }
  std::vector<Task> tasks{{static_cast<int32_t>(plan_.classes_.size()) - 1, -1, 0, target}};
  std::vector<Point> of_children;
  while (!tasks.empty()) {
    const Task task = tasks.back();
    tasks.pop_back();
    const Reach& reach_here = reach_[static_cast<size_t>(task.class_id)];
    const auto entry = static_cast<size_t>(task.entry);
    bool done = false;
    for (size_t m = reach_here.first_move[entry]; m < reach_here.first_move[entry + 1]; ++m) {
      const Move& move = reach_here.moves[m];
      if (!readMove(task.class_id, entry, move, task.target, of_children)) continue;
      const bool is_root = task.step < 0;
      const std::vector<int32_t>& children =
          is_root ? roots : steps[static_cast<size_t>(task.step)].children;
      if (!is_root) {
        labels[static_cast<size_t>(steps[static_cast<size_t>(task.step)].variable)] = move.value;
      }
      for (size_t k = 0; k < children.size(); ++k) {
        tasks.push_back({plan_.class_of_step_[static_cast<size_t>(children[k])], children[k],
                         reach_here.child_entries[move.first_child + k], of_children[k]});
      }
      done = true;
      break;
    }
    if (!done) return false;
  }
  return true;
}

template class ParetoElimination::Pass<1>;
template class ParetoElimination::Pass<2>;
template class ParetoElimination::Pass<3>;

}  // namespace shardwright
