#include "intraop/repeated_variables.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardwright {
namespace {

// Numbers keys in the order in which they are met.
template <typename Key>
int32_t numberOf(std::map<Key, int32_t>& numbers, Key key) {
  return numbers.emplace(std::move(key), static_cast<int32_t>(numbers.size())).first->second;
}

}  // namespace

std::vector<int32_t> repeatedVariables(const ReducedProblem& problem, int depth) {
  std::map<std::vector<double>, int32_t> cost_numbers;
  std::vector<int32_t> classes;
  for (const ReducedVariable& variable : problem.variables()) {
    classes.push_back(numberOf(cost_numbers, variable.costs));
  }
  size_t num_classes = cost_numbers.size();
  for (int round = 0; round < depth; ++round) {
    std::map<std::vector<int32_t>, int32_t> numbers;
    std::vector<int32_t> refined;
    for (size_t v = 0; v < classes.size(); ++v) {
      const ReducedVariable& variable = problem.variables()[v];
      std::vector<std::pair<int32_t, int32_t>> around;
      for (const int32_t e : variable.edges_to_later) {
        const ReducedEdge& edge = problem.edges()[static_cast<size_t>(e)];
        around.emplace_back(edge.table, classes[static_cast<size_t>(edge.v)]);
      }
      for (const int32_t e : variable.edges_to_earlier) {
        const ReducedEdge& edge = problem.edges()[static_cast<size_t>(e)];
        around.emplace_back(edge.transposed_table, classes[static_cast<size_t>(edge.u)]);
      }
      std::sort(around.begin(), around.end());
      std::vector<int32_t> signature{classes[v]};
      for (const auto& [table, neighbour] : around) {
        signature.push_back(table);
        signature.push_back(neighbour);
      }
      refined.push_back(numberOf(numbers, std::move(signature)));
    }
    classes = std::move(refined);
    if (numbers.size() == num_classes) break;
    num_classes = numbers.size();
  }
  return classes;
}

}  // namespace shardwright
