#include "intraop/problem.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace shardwright {
namespace {

TEST(Problem, ForbiddenAbsorbsAndNeverSums) {
  EXPECT_EQ(addCost(3, 4), 7);
  EXPECT_EQ(addCost(kForbidden, -5), kForbidden);
  EXPECT_EQ(addCost(kForbidden, kForbidden), kForbidden);
  EXPECT_THROW(addCost(kForbidden - 1, 1), Error);
  EXPECT_THROW(addCost(std::numeric_limits<int64_t>::min(), -1), Error);
}

TEST(Problem, EqualTablesAreHeldOnce) {
  ProblemBuilder builder;
  const ChoiceNodeId a = builder.addNode({0, 0});
  const ChoiceNodeId b = builder.addNode({0, 0, 0});
  const CostTableId first = builder.addTable(2, 3, {1, 2, 3, 4, 5, 6});
  const CostTableId again = builder.addTable(2, 3, {1, 2, 3, 4, 5, 6});
  const CostTableId other_shape = builder.addTable(3, 2, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other_shape);
  builder.addEdge(a, b, first);
  builder.addEdge(a, b, other_shape, true);
  const Problem problem = std::move(builder).build();
  EXPECT_EQ(problem.tables().size(), 2u);
  const Problem copy = problem.withMemoryLimit(5);
  EXPECT_EQ(copy.tables()[0].get(), problem.tables()[0].get());
  EXPECT_EQ(problem.memoryLimitBytes(), std::nullopt);
}

TEST(Problem, AliasForbidsUnequalLabels) {
  ProblemBuilder builder;
  const ChoiceNodeId a = builder.addNode({0, 0});
  const ChoiceNodeId b = builder.addNode({0, 0, 0});
  const int64_t labels_a[] = {7, 9};
  const int64_t labels_b[] = {9, 8, 7};
  builder.addAlias(a, b, labels_a, labels_b);
  const Problem problem = std::move(builder).build();
  const CostTable& table = problem.table(problem.edges()[0].table);
  EXPECT_EQ(table.at(0, 0), kForbidden);
  EXPECT_EQ(table.at(0, 2), 0);
  EXPECT_EQ(table.at(1, 0), 0);
}

TEST(Problem, EmptyIntervalsHoldNothing) {
  ProblemBuilder builder;
  builder.addNode({1}, {{{4, 4}, {100}}, {{5, 3}, {100}}, {{0, 1}, {2}}});
  EXPECT_EQ(std::move(builder).build().nodes()[0].memory.size(), 1u);
}

TEST(Problem, RaisesE211OnPartsThatDoNotFit) {
  const auto code_of = [](const std::function<void(ProblemBuilder&)>& build) {
    ProblemBuilder builder;
    builder.addNode({1, 2}, {}, "first");
    builder.addNode({1, 2, 3});
    builder.addTable(2, 3, {0, 0, 0, 0, 0, 0});
    try {
      build(builder);
    } catch (const Error& error) {
      return error.code();
    }
    return std::string("no error");
  };
  const ChoiceNodeId u(0), v(1), missing(2);
  const CostTableId table(0);
  const int64_t huge = int64_t{1} << 61;
  EXPECT_EQ(code_of([](auto& b) { b.addNode({}); }), "E211");
  EXPECT_EQ(code_of([](auto& b) { b.addNode({1}, {{{0, 1}, {1, 2}}}); }), "E211");
  EXPECT_EQ(code_of([](auto& b) { b.addNode({1}, {{{0, 1}, {-1}}}); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) { b.addNode({huge}); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) {
              for (int i = 0; i < 3; ++i) b.addNode({huge / 8});
            }),
            "no error");
  EXPECT_EQ(code_of([&](auto& b) {
              for (int i = 0; i < 5; ++i) b.addNode({huge / 2});
            }),
            "E211");
  EXPECT_EQ(code_of([](auto& b) { b.addTable(2, 2, {0, 0, 0}); }), "E211");
  EXPECT_EQ(code_of([](auto& b) { b.addTable(0, 2, {}); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) { b.addEdge(u, missing, table); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) { b.addEdge(u, ChoiceNodeId(), table); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) { b.addEdge(u, v, CostTableId(3)); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) { b.addEdge(v, u, table); }), "E211");
  EXPECT_EQ(code_of([&](auto& b) { b.addEdge(v, u, table, true); }), "no error");
  EXPECT_EQ(code_of([](auto& b) { b.setMemoryLimit(-1); }), "E211");
}

}  // namespace
}  // namespace shardwright
