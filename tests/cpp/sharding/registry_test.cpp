#include "sharding/registry.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sharding/graph_builder.h"
#include "sharding/rule_text.h"

namespace shardwright {
namespace {

using testing::GraphBuilder;

template <typename Call>
std::string messageOf(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(RuleRegistry, OpWithoutRuleIsNamedWithShapesAndSource) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {4, 6});
  const ValueRef y =
      builder.op("mylib.twist.default", GraphBuilder::args(x), {6, 4}, DType::kBFloat16);
  const Graph graph = builder.build();
  EXPECT_EQ(messageOf([&] { builtinRules().rule(graph, y.node); }),
            "RuleError [E201]: op mylib.twist.default has no sharding rule.\n"
            "  node: n1\n"
            "  operands: float32[4, 6]\n"
            "  outputs: bfloat16[6, 4]\n"
            "  at: train.py:41\n"
            "  try: sw.register_rule(\"mylib.twist.default\", \"...\") with the op in factor "
            "notation, such as \"b m k, b k n -> b m n\"");
}

TEST(RuleRegistry, RuleThatDoesNotFitItsShapesIsRejected) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {4, 6});
  const ValueRef y = builder.op("mylib.twist.default", GraphBuilder::args(x), {6, 4});
  const Graph graph = builder.build();
  RuleRegistry registry = builtinRules();
  registry.add("mylib.twist.default", [](const Graph&, const Node&) {
    ShardingRule rule;
    rule.factors.resize(1);
    rule.factors[0].size = 4;
    rule.operands.resize(1);
    rule.operands[0].dims = {{0}, {}};
    rule.outputs.resize(1);
    rule.outputs[0].dims = {{}, {0}};
    return rule;
  });
  const std::string message = messageOf([&] { registry.rule(graph, y.node); });
  EXPECT_NE(message.find("[E202]"), std::string::npos) << message;
  EXPECT_NE(message.find("operand 0 has size 6 in dim 1, the factors of its rule give 1"),
            std::string::npos)
      << message;
}

class Notation : public ::testing::Test {
 protected:
  std::string read(const std::string& text, const std::map<std::string, std::int64_t>& sizes = {}) {
    return ruleText(ruleFromNotation(text, graph_, graph_.node(NodeId(2)), sizes));
  }

  static Graph makeGraph() {
    GraphBuilder builder;
    const ValueRef x = builder.input("x", {4, 1, 12});
    const ValueRef w = builder.input("w", {12, 8});
    builder.op("mylib.product.default", GraphBuilder::args(x, w), {4, 8});
    return builder.build();
  }

  Graph graph_ = makeGraph();
};

TEST_F(Notation, NamesOnesAndBlockedFactors) {
  EXPECT_EQ(read("m 1 k, k n* -> m n"), "a 1 b, b c* -> a c*");
}

// 12 = h x 3 with h given, and h may stand alone elsewhere.
TEST_F(Notation, GroupsTakeTheMissingSize) {
  EXPECT_EQ(read("m 1 (h e), (h e) n -> m n", {{"h", 4}}), "a 1 (b c), (b c) d -> a d");
  EXPECT_EQ(read("h 1 (h e), (h e) n -> h n"), "a 1 (a b), (a b) c -> a c");
}

TEST_F(Notation, MistakesAreNamed) {
  const auto problem = [this](const std::string& text) { return messageOf([&] { read(text); }); };
  EXPECT_NE(problem("m 1 k, k n").find("exactly one \"->\""), std::string::npos);
  EXPECT_NE(problem("m 1 k -> m n").find("1 operands and 1 outputs, the node 2 and 1"),
            std::string::npos);
  EXPECT_NE(problem("m k, k n -> m n").find("operand 0 has 3 dims, the text 2"), std::string::npos);
  EXPECT_NE(problem("m 1 k, m n -> m n").find("\"m\" is both 4 and 12"), std::string::npos);
  EXPECT_NE(problem("m 1 (h e), (h e) n -> m n").find("size of \"h\" is not known"),
            std::string::npos);
  EXPECT_NE(problem("m 1 k+, k n -> m n").find("unexpected \"+\""), std::string::npos);
  EXPECT_NE(problem("m 1 (k, k n -> m n").find("is not closed"), std::string::npos);
}

}  // namespace
}  // namespace shardwright
