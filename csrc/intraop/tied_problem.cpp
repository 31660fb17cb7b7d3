#include "intraop/tied_problem.h"

#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace shardwright {
namespace {

std::vector<int64_t> inUnits(const std::vector<double>& costs, double count) {
  std::vector<int64_t> result;
  result.reserve(costs.size());
  for (const double cost : costs) {
    result.push_back(cost == kInfinity ? kForbidden
                                       : static_cast<int64_t>(std::llround(cost * count)));
  }
  return result;
}

}  // namespace

Problem tiedProblem(const ReducedProblem& problem, const UnaryCosts& unary,
                    const std::vector<int32_t>& classes) {
  std::map<int32_t, std::vector<double>> costs;  // by class
  for (size_t v = 0; v < classes.size(); ++v) {
    std::vector<double>& sum = costs.try_emplace(classes[v], unary[v].size(), 0.0).first->second;
    for (size_t a = 0; a < sum.size(); ++a) sum[a] += unary[v][a];
  }
  ProblemBuilder builder("tied");
  for (const auto& [number, sum] : costs) builder.addNode(inUnits(sum, 1.0));
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> edges;  // ends and table -> how many
  for (const ReducedEdge& edge : problem.edges()) {
    ++edges[{classes[static_cast<size_t>(edge.u)], classes[static_cast<size_t>(edge.v)],
             edge.table}];
  }
  for (const auto& [edge, count] : edges) {
    const auto& [u, v, table] = edge;
    const Matrix& matrix = problem.table(table);
    const CostTableId id =
        builder.addTable(matrix.num_rows, matrix.num_cols, inUnits(matrix.costs, count));
    builder.addEdge(ChoiceNodeId(static_cast<size_t>(u)), ChoiceNodeId(static_cast<size_t>(v)), id);
  }
  return std::move(builder).build();
}

}  // namespace shardwright
