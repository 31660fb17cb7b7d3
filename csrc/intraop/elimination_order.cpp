#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "intraop/elimination.h"

namespace shardwright {
namespace {

// Logarithms as integers: equal layers then get exactly equal weights and the same order.
constexpr double kLogUnit = 1048576.0;

int64_t logOf(int32_t num_values) {
  return static_cast<int64_t>(std::llround(std::log2(static_cast<double>(num_values)) * kLogUnit));
}

}  // namespace

Elimination::Elimination(const ReducedProblem& problem, const EliminationLimits& limits,
                         std::vector<int32_t> kept)
    : problem_(problem), kept_(std::move(kept)) {
  findOrder(std::log2(std::max(2.0, limits.max_work)));
  if (fits_) sizeSteps(limits);
}

void Elimination::findOrder(double max_log_entries) {
  const auto num_variables = static_cast<size_t>(problem_.numVariables());
  std::vector<std::set<int32_t>> neighbours(num_variables);
  std::vector<int64_t> log_values(num_variables);
  for (size_t v = 0; v < num_variables; ++v) {
    log_values[v] = logOf(problem_.variables()[v].numValues());
  }
  for (const ReducedEdge& edge : problem_.edges()) {
    neighbours[static_cast<size_t>(edge.u)].insert(edge.v);
    neighbours[static_cast<size_t>(edge.v)].insert(edge.u);
  }
  std::vector<bool> is_kept(num_variables, false);
  for (int32_t v : kept_) is_kept[static_cast<size_t>(v)] = true;
  std::vector<int64_t> weight(num_variables);
  std::set<std::pair<int64_t, int32_t>> queue;
  for (size_t v = 0; v < num_variables; ++v) {
    weight[v] = log_values[v];
    for (int32_t w : neighbours[v]) weight[v] += log_values[static_cast<size_t>(w)];
    if (is_kept[v]) continue;
    queue.emplace(weight[v], static_cast<int32_t>(v));
  }
  const auto max_weight = static_cast<int64_t>(max_log_entries * kLogUnit);
  position_.assign(num_variables, -1);
  std::vector<std::vector<int32_t>> scopes(num_variables);
  const auto eliminate = [&](int32_t x) {
    const auto v = static_cast<size_t>(x);
    position_[v] = static_cast<int32_t>(steps_.size());
    Step step;
    step.variable = x;
    step.scope.assign(neighbours[v].begin(), neighbours[v].end());
    width_ = std::max(width_, static_cast<int32_t>(step.scope.size()));
    for (int32_t w : step.scope) {
      const auto i = static_cast<size_t>(w);
      queue.erase({weight[i], w});
      neighbours[i].erase(x);
      weight[i] -= log_values[v];
      for (int32_t y : step.scope) {
        if (y != w && neighbours[i].insert(y).second) {
          weight[i] += log_values[static_cast<size_t>(y)];
        }
      }
      if (!is_kept[i]) queue.emplace(weight[i], w);
    }
    steps_.push_back(std::move(step));
  };
  while (!queue.empty()) {
    const auto [log_work, x] = *queue.begin();
    queue.erase(queue.begin());
    if (log_work > max_weight) {
      fits_ = false;
      return;
    }
    eliminate(x);
  }
  for (int32_t x : kept_) eliminate(x);
  for (Step& step : steps_) {
    std::sort(step.scope.begin(), step.scope.end(), [&](int32_t a, int32_t b) {
      return position_[static_cast<size_t>(a)] < position_[static_cast<size_t>(b)];
    });
    for (int32_t y : step.scope) {
      step.num_entries *= problem_.variables()[static_cast<size_t>(y)].numValues();
    }
  }
  for (size_t e = 0; e < problem_.edges().size(); ++e) {
    const ReducedEdge& edge = problem_.edges()[e];
    const int32_t first =
        std::min(position_[static_cast<size_t>(edge.u)], position_[static_cast<size_t>(edge.v)]);
    steps_[static_cast<size_t>(first)].edges.push_back(static_cast<int32_t>(e));
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (steps_[s].scope.empty()) continue;
    const int32_t parent = position_[static_cast<size_t>(steps_[s].scope.front())];
    steps_[static_cast<size_t>(parent)].children.push_back(static_cast<int32_t>(s));
  }
}

void Elimination::sizeSteps(const EliminationLimits& limits) {
  // Names each step by what goes into it; equal names are computed once by a solve.
  std::map<std::vector<double>, int32_t> unary_names;
  std::map<std::vector<int32_t>, int32_t> step_names;
  std::vector<int32_t> name_of_step(steps_.size());
  double bytes = 0.0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    const auto local = [&](int32_t v) {
      if (v == step.variable) return -1;
      return static_cast<int32_t>(std::find(step.scope.begin(), step.scope.end(), v) -
                                  step.scope.begin());
    };
    std::vector<std::vector<int32_t>> parts;
    for (int32_t e : step.edges) {
      const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
      const bool u_goes = edge.u == step.variable;
      parts.push_back(
          {0, u_goes ? edge.table : edge.transposed_table, local(u_goes ? edge.v : edge.u)});
    }
    for (int32_t child : step.children) {
      std::vector<int32_t> part{1, name_of_step[static_cast<size_t>(child)]};
      for (int32_t y : steps_[static_cast<size_t>(child)].scope) part.push_back(local(y));
      parts.push_back(std::move(part));
    }
    std::sort(parts.begin(), parts.end());
    const auto& costs = problem_.variables()[static_cast<size_t>(step.variable)].costs;
    std::vector<int32_t> name{
        unary_names.emplace(costs, static_cast<int32_t>(unary_names.size())).first->second};
    for (int32_t y : step.scope) {
      name.push_back(problem_.variables()[static_cast<size_t>(y)].numValues());
    }
    for (const auto& part : parts) {
      name.push_back(-2);
      name.insert(name.end(), part.begin(), part.end());
    }
    const auto [it, added] =
        step_names.emplace(std::move(name), static_cast<int32_t>(step_names.size()));
    name_of_step[s] = it->second;
    const double work =
        step.num_entries * problem_.variables()[static_cast<size_t>(step.variable)].numValues();
    unshared_work_ += work;
    if (!added) continue;
    work_ += work;
    bytes += step.num_entries * 8.0;
    if (work_ > limits.max_work || bytes > limits.max_bytes) {
      fits_ = false;
      return;
    }
  }
}

}  // namespace shardwright
