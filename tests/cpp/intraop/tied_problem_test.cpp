#include "intraop/tied_problem.h"

#include <gtest/gtest.h>

#include <utility>

#include "intraop/certificate.h"
#include "intraop/repeated_variables.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

// Layers in a row with two equally good states and a wall between unlike neighbours; the first
// layer leans to state 1.
Problem layersWithTwoStates(int num_layers) {
  ProblemBuilder builder;
  const CostTableId inside = builder.addTable(2, 3, {0, 9, 4, 9, 0, 4});
  const CostTableId between = builder.addTable(3, 2, {0, 5, 5, 0, 2, 2});
  ChoiceNodeId before;
  for (int layer = 0; layer < num_layers; ++layer) {
    const ChoiceNodeId hidden = builder.addNode({layer == 0 ? 1 : 3, layer == 0 ? 0 : 3});
    const ChoiceNodeId output = builder.addNode({7, 7, 6});
    builder.addEdge(hidden, output, inside);
    if (layer > 0) builder.addEdge(before, hidden, between);
    before = output;
  }
  return std::move(builder).build();
}

UnaryCosts costsOf(const ReducedProblem& reduced) {
  UnaryCosts costs;
  for (const ReducedVariable& variable : reduced.variables()) costs.push_back(variable.costs);
  return costs;
}

TEST(TiedProblem, ChoiceCostsWhatItCostsWhenEveryCopyTakesIt) {
  const Problem problem = layersWithTwoStates(6);
  Reduction reduction(problem);
  const ReducedProblem reduced(reduction, MemoryLayout(problem));
  const std::vector<int32_t> classes = repeatedVariables(reduced, 2);
  const Problem tied = tiedProblem(reduced, costsOf(reduced), classes);
  ASSERT_LT(tied.numNodes(), problem.numNodes());
  for (int32_t seed = 0; seed < 20; ++seed) {
    std::vector<int32_t> choice;
    for (size_t node = 0; node < tied.numNodes(); ++node) {
      const auto num_values = static_cast<int32_t>(tied.nodes()[node].costs.size());
      choice.push_back((seed * 7 + static_cast<int32_t>(node) * 5) % num_values);
    }
    std::vector<int32_t> labels;
    for (const int32_t number : classes) labels.push_back(choice[static_cast<size_t>(number)]);
    EXPECT_EQ(static_cast<double>(evaluateChoice(tied, choice).cost) + reduced.offset(),
              reduced.costOf(labels));
  }
}

TEST(TiedProblem, CopiesThatAreNeighboursPriceTheDiagonal) {
  ProblemBuilder builder;
  const CostTableId step = builder.addTable(2, 2, {3, 0, 0, 4});
  std::vector<ChoiceNodeId> ring;
  for (int i = 0; i < 4; ++i) ring.push_back(builder.addNode({1, 2}));
  for (size_t i = 0; i < 4; ++i) builder.addEdge(ring[i], ring[(i + 1) % 4], step);
  const Problem problem = std::move(builder).build();
  Reduction reduction(problem);
  const ReducedProblem reduced(reduction, MemoryLayout(problem));
  const Problem tied = tiedProblem(reduced, costsOf(reduced), {0, 0, 0, 0});
  // All four take 0: 4 x (1 + 3); all take 1: 4 x (2 + 4).
  EXPECT_EQ(evaluateChoice(tied, std::vector<int32_t>{0}).cost, 16);
  EXPECT_EQ(evaluateChoice(tied, std::vector<int32_t>{1}).cost, 24);
  EXPECT_EQ(solve(tied).cost, 16);
}

}  // namespace
}  // namespace shardwright
