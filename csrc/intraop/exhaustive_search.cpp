#include "intraop/exhaustive_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwright {
namespace {

class DepthFirst {
 public:
  DepthFirst(const ReducedProblem& problem, double cutoff, size_t max_nodes,
             const std::function<bool()>& stop)
      : problem_(problem),
        max_nodes_(max_nodes),
        stop_(stop),
        labels_(problem.variables().size(), 0),
        slack_(problem.slackBytes()),
        rest_bound_(problem.variables().size() + 1, 0.0) {
    result_.cost = cutoff;
    for (size_t v = problem.variables().size(); v-- > 0;) {
      rest_bound_[v] = rest_bound_[v + 1] + localBound(static_cast<int32_t>(v));
    }
  }

  ExhaustiveResult run() {
    result_.finished = visit(0, problem_.offset());
    if (result_.labels.empty()) result_.cost = kInfinity;
    return std::move(result_);
  }

 private:
  // Least a variable can add: its own cost and its edges to earlier variables.
  double localBound(int32_t v) const {
    const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(v)];
    double least = kInfinity;
    for (int32_t a = 0; a < variable.numValues(); ++a) {
      double cost = variable.costs[static_cast<size_t>(a)];
      for (int32_t e : variable.edges_to_earlier) {
        const Matrix& table =
            problem_.table(problem_.edges()[static_cast<size_t>(e)].transposed_table);
        cost += *std::min_element(table.row(a), table.row(a) + table.num_cols);
      }
      least = std::min(least, cost);
    }
    return least;
  }

  bool visit(size_t v, double cost) {
    if (v == labels_.size()) {
      result_.cost = cost;
      result_.labels = labels_;
      return true;
    }
    const ReducedVariable& variable = problem_.variables()[v];
    std::vector<std::pair<double, int32_t>> values;
    for (int32_t a = 0; a < variable.numValues(); ++a) {
      double next = cost + variable.costs[static_cast<size_t>(a)];
      for (int32_t e : variable.edges_to_earlier) {
        const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
        next += problem_.table(edge.table).at(labels_[static_cast<size_t>(edge.u)], a);
      }
      if (next + rest_bound_[v + 1] < result_.cost) values.emplace_back(next, a);
    }
    std::sort(values.begin(), values.end());
    for (const auto& [next, a] : values) {
      if (!(next + rest_bound_[v + 1] < result_.cost)) break;
      if (++num_nodes_ > max_nodes_ || (num_nodes_ % 1024 == 0 && stop_ && stop_())) return false;
      if (!take(variable, a)) continue;
      labels_[v] = a;
      const bool finished = visit(v + 1, next);
      giveBack(variable, a);
      if (!finished) return false;
    }
    return true;
  }

  bool take(const ReducedVariable& variable, int32_t a) {
    bool fits = true;
    for (const MemorySegment& segment : variable.memory) {
      const int64_t bytes = segment.excess_bytes[static_cast<size_t>(a)];
      for (int32_t row = segment.row_begin; row < segment.row_end; ++row) {
        slack_[static_cast<size_t>(row)] -= bytes;
        if (slack_[static_cast<size_t>(row)] < 0) fits = false;
      }
    }
    if (!fits) giveBack(variable, a);
    return fits;
  }

  void giveBack(const ReducedVariable& variable, int32_t a) {
    for (const MemorySegment& segment : variable.memory) {
      for (int32_t row = segment.row_begin; row < segment.row_end; ++row) {
        slack_[static_cast<size_t>(row)] += segment.excess_bytes[static_cast<size_t>(a)];
      }
    }
  }

  const ReducedProblem& problem_;
  size_t max_nodes_;
  const std::function<bool()>& stop_;
  std::vector<int32_t> labels_;
  std::vector<int64_t> slack_;
  std::vector<double> rest_bound_;
  size_t num_nodes_ = 0;
  ExhaustiveResult result_;
};

}  // namespace

ExhaustiveResult searchExhaustively(const ReducedProblem& problem, double cutoff, size_t max_nodes,
                                    const std::function<bool()>& stop) {
  return DepthFirst(problem, cutoff, max_nodes, stop).run();
}

}  // namespace shardwright
