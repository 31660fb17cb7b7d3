#include "graph/graph.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sharding/graph_builder.h"

namespace shardwright {
namespace {

using testing::GraphBuilder;

std::string codeOf(std::vector<Node> nodes, std::vector<GraphOutput> outputs) {
  try {
    const Graph graph(std::move(nodes), std::move(outputs));
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

Node inputNode(const std::string& name) {
  Node node;
  node.name = name;
  node.op = "input";
  node.input = InputLabel{};
  node.outputs = {{.shape = {2}, .dtype = DType::kFloat32}};
  return node;
}

TEST(Graph, UsesAreListedPerOperandInExecutionOrder) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {2});
  const ValueRef y = builder.op("aten.mul.Tensor", GraphBuilder::args(x, x), {2});
  const ValueRef z = builder.op("aten.cat.default",
                                GraphBuilder::args(GraphBuilder::args(y, x), std::int64_t{0}), {4});
  const Graph graph = builder.build();
  const std::vector<Use>& uses = graph.uses(x);
  ASSERT_EQ(uses.size(), 3U);
  EXPECT_EQ(uses[0].node, y.node);
  EXPECT_EQ(uses[1].operand, 1);
  EXPECT_EQ(uses[2].node, z.node);
  EXPECT_EQ(uses[2].operand, 1);
  EXPECT_EQ(graph.node(z.node).operands(), (std::vector<ValueRef>{y, x}));
}

TEST(Graph, TwoNodesOfOneNameAreRejected) {
  EXPECT_EQ(codeOf({inputNode("x"), inputNode("x")}, {}), "E121");
}

TEST(Graph, ValuesMustBeDefinedBeforeTheyAreUsed) {
  Node node = inputNode("y");
  node.op = "aten.neg.default";
  node.args = GraphBuilder::args(ValueRef{NodeId(0), 0});
  EXPECT_EQ(codeOf({node, inputNode("x")}, {}), "E121");
  node.args = GraphBuilder::args(ValueRef{NodeId(0), 1});
  EXPECT_EQ(codeOf({inputNode("x"), node}, {}), "E121");
}

TEST(Graph, NewValuesMustLookLikeTheInputTheyReplace) {
  Node other = inputNode("y");
  other.outputs[0].dtype = DType::kFloat64;
  EXPECT_EQ(codeOf({inputNode("x"), other}, {{ValueRef{NodeId(1), 0}, NodeId(0)}}), "E121");
  EXPECT_EQ(codeOf({inputNode("x"), other}, {{ValueRef{NodeId(0), 0}, NodeId(0)}}), "");
}

TEST(DType, NamesAreTorchsAndBytesPerElement) {
  for (const char* name : {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16",
                           "int8", "uint8", "bool"}) {
    EXPECT_STREQ(dtypeName(parseDType(name)), name);
  }
  EXPECT_EQ(elementBytes(DType::kFloat64), 8);
  EXPECT_EQ(elementBytes(DType::kBFloat16), 2);
  EXPECT_EQ(elementBytes(DType::kBool), 1);
  EXPECT_EQ((TensorMeta{.shape = {3, 5}, .dtype = DType::kInt16}).bytes(), 30);
  try {
    parseDType("complex64");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E120");
  }
}

}  // namespace
}  // namespace shardwright
