#include "plan/parameter_gradients.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "plan/small_graph.h"

namespace shardwright {
namespace {

constexpr const char* kMul = "aten.mul.Tensor";

// Two parameters of different shapes whose gradients are scaled by a common factor made of both.
TEST(ParameterGradients, ClippingDoesNotMixParameters) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef a = graph.input("a", {4, 4}, InputKind::kParameter);
  const ValueRef b = graph.input("b", {4, 2}, InputKind::kParameter);
  const ValueRef grad_a = graph.op("grad_a", kMul, {x, x}, {4, 4}, Phase::kBackward);
  const ValueRef grad_b = graph.op("grad_b", kMul, {x, x}, {4, 2}, Phase::kBackward);
  const ValueRef norm_a = graph.op("norm_a", "aten.sum.default", {grad_a}, {}, Phase::kUpdate);
  const ValueRef norm_b = graph.op("norm_b", "aten.sum.default", {grad_b}, {}, Phase::kUpdate);
  const ValueRef factor = graph.op("factor", kMul, {norm_a, norm_b}, {}, Phase::kUpdate);
  for (const auto& [grad, parameter, shape] :
       {std::tuple{grad_a, a, std::vector<std::int64_t>{4, 4}},
        std::tuple{grad_b, b, std::vector<std::int64_t>{4, 2}}}) {
    const std::string name = parameter == a ? "a" : "b";
    const ValueRef clipped =
        graph.op("clipped_" + name, kMul, {grad, factor}, shape, Phase::kUpdate);
    graph.update(
        graph.op("new_" + name, "aten.sub.Tensor", {parameter, clipped}, shape, Phase::kUpdate),
        parameter);
  }
  const std::vector<ParameterGradient> found = parameterGradients(graph.build());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].parameter, a.node);
  EXPECT_EQ(found[0].value, grad_a);
  EXPECT_EQ(found[1].parameter, b.node);
  EXPECT_EQ(found[1].value, grad_b);
}

TEST(ParameterGradients, FrozenParametersHaveNone) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef frozen = graph.input("w", {4, 4}, InputKind::kParameter);
  graph.result(graph.mm("y", x, frozen));
  EXPECT_TRUE(parameterGradients(graph.build()).empty());
}

TEST(ParameterGradients, TwoCandidatesAreNone) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {4, 4});
  const ValueRef w = graph.input("w", {4, 4}, InputKind::kParameter);
  const ValueRef first = graph.op("first", kMul, {x, x}, {4, 4}, Phase::kBackward);
  const ValueRef second = graph.op("second", kMul, {x, w}, {4, 4}, Phase::kBackward);
  const ValueRef sum = graph.op("sum", kMul, {first, second}, {4, 4}, Phase::kUpdate);
  graph.update(graph.op("new", kMul, {w, sum}, {4, 4}, Phase::kUpdate), w);
  EXPECT_TRUE(parameterGradients(graph.build()).empty());
}

}  // namespace
}  // namespace shardwright
