#include "intraop/repeated_variables.h"

#include <gtest/gtest.h>

#include <utility>

namespace shardwright {
namespace {

// Layers in a row, each a hidden variable and an output that the next layer reads.
Problem layersInARow(int num_layers) {
  ProblemBuilder builder;
  const CostTableId inside = builder.addTable(2, 2, {0, 3, 4, 1});
  const CostTableId between = builder.addTable(2, 2, {0, 5, 5, 0});
  ChoiceNodeId before;
  for (int layer = 0; layer < num_layers; ++layer) {
    const ChoiceNodeId hidden = builder.addNode({1, 2});
    const ChoiceNodeId output = builder.addNode({7, 6});
    builder.addEdge(hidden, output, inside);
    if (layer > 0) builder.addEdge(before, hidden, between);
    before = output;
  }
  return std::move(builder).build();
}

std::vector<int32_t> classesOf(const Problem& problem, int depth) {
  Reduction reduction(problem);
  const ReducedProblem reduced(reduction, MemoryLayout(problem));
  return repeatedVariables(reduced, depth);
}

TEST(RepeatedVariables, CostsAloneTellThePartsOfALayerApart) {
  EXPECT_EQ(classesOf(layersInARow(3), 0), (std::vector<int32_t>{0, 1, 0, 1, 0, 1}));
}

TEST(RepeatedVariables, InnerLayersShareTheirClassesAndTheEndsHaveTheirOwn) {
  // Depth 1 tells the first hidden variable (nothing before it) and the last output apart.
  EXPECT_EQ(classesOf(layersInARow(4), 1), (std::vector<int32_t>{0, 1, 2, 1, 2, 1, 2, 3}));
}

TEST(RepeatedVariables, DepthStopsWhereNothingIsToldApartAnyMore) {
  // Of three layers every variable is at its own distance from the ends.
  const std::vector<int32_t> classes = classesOf(layersInARow(3), 50);
  EXPECT_EQ(classes, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace shardwright
