// Emission: where conversions, views and edited arguments go, on graphs small enough to read.

#include "plan/program_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.h"
#include "plan/program_text.h"
#include "sharding/conversion_points.h"
#include "sharding/registry.h"

namespace shardwright {
namespace {

// A graph with its choices: every node replicated until told otherwise.
class Step {
 public:
  explicit Step(std::vector<int> mesh_shape) : mesh_shape_(std::move(mesh_shape)) {}

  ValueRef input(const std::string& name, std::vector<std::int64_t> shape,
                 InputKind kind = InputKind::kBatch, DType dtype = DType::kFloat32) {
    Node node;
    node.name = name;
    node.op = "input";
    node.outputs = {{std::move(shape), dtype}};
    node.input = InputLabel{kind, name, "", "", false};
    return add(std::move(node));
  }

  ValueRef op(const std::string& name, const std::string& op, ArgList args,
              std::vector<std::int64_t> shape, Phase phase = Phase::kForward,
              DType dtype = DType::kFloat32) {
    Node node;
    node.name = name;
    node.op = op;
    node.args = std::move(args);
    node.outputs = {{std::move(shape), dtype}};
    node.phase = phase;
    return add(std::move(node));
  }

  void result(ValueRef value, std::optional<NodeId> updates = std::nullopt) {
    results_.push_back({value, updates});
  }

  // "x=S0 R" for inputs, "mm: S0 R, R R -> S0 R" for ops, "mm/0: R R" for conversion points,
  // "mm/1: first" for one that keeps the first.
  void choose(const std::vector<std::pair<std::string, std::string>>& specs) {
    specs_.insert(specs_.end(), specs.begin(), specs.end());
  }

  ProgramTable emit() {
    graph_.emplace(nodes_, results_);
    sharded_.emplace(*graph_, builtinRules());
    Plan plan;
    plan.stages.emplace_back();
    StagePlan& stage = plan.stages.front();
    stage.mesh_shape = mesh_shape_;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      const NodeId node(index);
      if (!sharded_->isView(node)) {
        stage.ops.push_back(choiceOf(node));
      }
    }
    for (const ConversionPoint& point : conversionPoints(*sharded_)) {
      const Node& node = graph_->node(point.value.node);
      const std::string key = node.name + "/" + std::to_string(point.group);
      const std::string text = find(key);
      ConversionChoice choice = {point.value, point.group, ownSpec(point.value), false};
      if (text == "first") {
        choice.spec = stage.conversions.back().spec;
        choice.from_first = true;
      } else if (!text.empty()) {
        choice.spec = parse(point.value, text);
      }
      stage.conversions.push_back(choice);
    }
    if (mutate_) {
      mutate_(stage);
    }
    const DeviceMesh mesh(mesh_shape_,
                          std::vector<AxisCost>(mesh_shape_.size(), AxisCost{1, 0.001, 1}), {});
    return emitProgram(*sharded_, plan, mesh);
  }

  void mutate(std::function<void(StagePlan&)> mutate) { mutate_ = std::move(mutate); }

 private:
  ValueRef add(Node node) {
    nodes_.push_back(std::move(node));
    return {NodeId(nodes_.size() - 1), 0};
  }

  std::string find(const std::string& key) const {
    for (const auto& [name, text] : specs_) {
      if (name == key) {
        return text;
      }
    }
    return "";
  }

  ShardingSpec parse(ValueRef value, const std::string& text) const {
    return parseSpec(sharded_->atoms(value), text, static_cast<int>(mesh_shape_.size()));
  }

  ShardingSpec ownSpec(ValueRef value) const {
    return choiceOf(value.node).outputs[static_cast<std::size_t>(value.output)];
  }

  OpChoice choiceOf(NodeId id) const {
    const Node& node = graph_->node(id);
    const std::vector<ValueRef> operands = node.operands();
    const int num_axes = static_cast<int>(mesh_shape_.size());
    OpChoice choice;
    choice.node = id;
    choice.operands.assign(operands.size(), replicatedSpec(num_axes));
    choice.outputs.assign(node.outputs.size(), replicatedSpec(num_axes));
    std::string text = find(node.name);
    if (text.empty()) {
      return choice;
    }
    const std::size_t arrow = text.find("->");
    if (arrow != std::string::npos) {
      std::string left = text.substr(0, arrow);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const std::size_t comma = std::min(left.find(','), left.size());
        choice.operands[i] = parse(operands[i], left.substr(0, comma));
        left = comma < left.size() ? left.substr(comma + 1) : "";
      }
      text = text.substr(arrow + 2);
    }
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const std::size_t comma = std::min(text.find(','), text.size());
      choice.outputs[o] = parse({id, static_cast<int>(o)}, text.substr(0, comma));
      text = comma < text.size() ? text.substr(comma + 1) : "";
    }
    return choice;
  }

  std::vector<int> mesh_shape_;
  std::vector<Node> nodes_;
  std::vector<GraphOutput> results_;
  std::vector<std::pair<std::string, std::string>> specs_;
  std::optional<Graph> graph_;
  std::optional<ShardedGraph> sharded_;
  std::function<void(StagePlan&)> mutate_;
};

Arg list(const std::vector<std::int64_t>& values) {
  ArgList elements;
  for (const std::int64_t value : values) {
    elements.emplace_back(value);
  }
  return {elements};
}

TEST(ProgramTableTest, MegatronMlpReducesOnce) {
  Step step({4});
  const ValueRef x = step.input("x", {8, 16});
  const ValueRef up = step.input("up", {16, 32}, InputKind::kParameter);
  const ValueRef down = step.input("down", {32, 16}, InputKind::kParameter);
  const ValueRef h = step.op("h", "aten.mm.default", {{x}, {up}}, {8, 32});
  const ValueRef a = step.op("a", "aten.relu.default", {{h}}, {8, 32});
  const ValueRef y = step.op("y", "aten.mm.default", {{a}, {down}}, {8, 16});
  step.result(y);
  step.choose({{"up", "R S0"},
               {"down", "S0 R"},
               {"h", "R R, R S0 -> R S0"},
               {"a", "R S0 -> R S0"},
               {"y", "R S0, S0 R -> R R P0"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = input : R S0\n"
            "%2 = input : S0 R\n"
            "%3 = aten.mm.default(%0, %1) : R S0\n"
            "%4 = aten.relu.default(%3) : R S0\n"
            "%5 = aten.mm.default(%4, %2) : R R P0\n"
            "%6 = all_reduce@0(%5) : R R\n"
            "return %6\n");
}

TEST(ProgramTableTest, SharedConversionIsEmittedOnce) {
  // The weight is stored in parts, gathered before the first of two products that read it whole.
  Step step({2});
  const ValueRef x = step.input("x", {8, 16});
  const ValueRef w = step.input("w", {16, 16}, InputKind::kParameter);
  const ValueRef h = step.op("h", "aten.mm.default", {{x}, {w}}, {8, 16});
  const ValueRef y = step.op("y", "aten.mm.default", {{h}, {w}}, {8, 16});
  step.result(y);
  step.choose({{"w", "S0 R"}, {"w/0", "R R"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = input : S0 R\n"
            "%2 = all_gather@0(%1, dim 0 outer 1) : R R\n"
            "%3 = aten.mm.default(%0, %2) : R R\n"
            "%4 = aten.mm.default(%3, %2) : R R\n"
            "return %4\n");
}

// Backward uses a weight stored in parts twice: gathered again, or kept.
Step backwardStep() {
  Step step({2});
  const ValueRef x = step.input("x", {8, 16});
  const ValueRef w = step.input("w", {16, 16}, InputKind::kParameter);
  const ValueRef y = step.op("y", "aten.mm.default", {{x}, {w}}, {8, 16});
  const ValueRef t = step.op("t", "aten.t.default", {{w}}, {16, 16}, Phase::kBackward);
  const ValueRef dx = step.op("dx", "aten.mm.default", {{y}, {t}}, {8, 16}, Phase::kBackward);
  const ValueRef dv = step.op("dv", "aten.mm.default", {{y}, {w}}, {8, 16}, Phase::kBackward);
  step.result(dx);
  step.result(dv);
  step.choose({{"w", "S0 R"}, {"w/0", "R R"}});
  return step;
}

TEST(ProgramTableTest, GathersAgainInBackwardWithTheViewReapplied) {
  Step step = backwardStep();
  step.choose({{"w/1", "R R"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = input : S0 R\n"
            "%2 = all_gather@0(%1, dim 0 outer 1) : R R\n"
            "%3 = aten.mm.default(%0, %2) : R R\n"
            "%4 = all_gather@0(%1, dim 0 outer 1) : R R\n"
            "%5 = aten.t.default(%4) : R R\n"
            "%6 = aten.mm.default(%3, %5) : R R\n"
            "%7 = aten.mm.default(%3, %4) : R R\n"
            "return %6\n"
            "return %7\n");
}

TEST(ProgramTableTest, KeepsTheFirstConversion) {
  Step step = backwardStep();
  step.choose({{"w/1", "first"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = input : S0 R\n"
            "%2 = all_gather@0(%1, dim 0 outer 1) : R R\n"
            "%3 = aten.mm.default(%0, %2) : R R\n"
            "%4 = aten.t.default(%2) : R R\n"
            "%5 = aten.mm.default(%3, %4) : R R\n"
            "%6 = aten.mm.default(%3, %2) : R R\n"
            "return %5\n"
            "return %6\n");
}

TEST(ProgramTableTest, PrivateConversionsActOnTheView) {
  // The one use of w is its transpose [32, 16], wanted in parts along dim 1, which is w's dim 0.
  Step step({4});
  const ValueRef x = step.input("x", {8, 32});
  const ValueRef w = step.input("w", {16, 32}, InputKind::kParameter);
  const ValueRef t = step.op("t", "aten.t.default", {{w}}, {32, 16});
  const ValueRef y = step.op("y", "aten.mm.default", {{x}, {t}}, {8, 16});
  step.result(y);
  step.choose({{"w", "R S0"}, {"y", "R R, R S0 -> R S0"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = input : R S0\n"
            "%2 = aten.t.default(%1) : S0 R\n"
            "%3 = all_to_all@0(%2, dim 0 outer 1, to dim 1 outer 1) : R S0\n"
            "%4 = aten.mm.default(%0, %3) : R S0\n"
            "%5 = all_gather@0(%4, dim 1 outer 1) : R R\n"
            "return %5\n");
}

TEST(ProgramTableTest, GradientIsReducedRightAfterItIsMadeAndUpdatedInParts) {
  // ZeRO: the sum of the gradient is scattered in backward, the state updated in parts, and the
  // parameter stored in parts takes the new value in place.
  Step step({2});
  const ValueRef x = step.input("x", {8, 16});
  const ValueRef w = step.input("w", {16, 16}, InputKind::kParameter);
  const ValueRef m = step.input("m", {16, 16}, InputKind::kOptimizerState);
  const ValueRef t = step.op("t", "aten.t.default", {{x}}, {16, 8}, Phase::kBackward);
  const ValueRef g = step.op("g", "aten.mm.default", {{t}, {x}}, {16, 16}, Phase::kBackward);
  const ValueRef norm = step.op("n", "aten.relu.default", {{x}}, {8, 16}, Phase::kBackward);
  const ValueRef unused = step.op("u", "aten.relu.default", {{norm}}, {8, 16}, Phase::kBackward);
  static_cast<void>(unused);
  const ValueRef made = step.op("new_w", "aten.add.Tensor", {{w}, {g}}, {16, 16}, Phase::kUpdate);
  const ValueRef moved = step.op("new_m", "aten.add.Tensor", {{m}, {g}}, {16, 16}, Phase::kUpdate);
  step.result(made, w.node);
  step.result(moved, m.node);
  step.choose({{"x", "S0 R"},
               {"w", "S0 R"},
               {"m", "S0 R"},
               {"g", "R S0, S0 R -> R R P0"},
               {"g/0", "S0 R"},
               {"new_w", "S0 R, S0 R -> S0 R"},
               {"new_m", "S0 R, S0 R -> S0 R"}});
  // x is in parts by its own spec in its only group; the dead nodes are gone.
  step.choose({{"x/0", "S0 R"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : S0 R\n"
            "%1 = input : S0 R\n"
            "%2 = input : S0 R\n"
            "%3 = aten.t.default(%0) : R S0\n"
            "%4 = aten.mm.default(%3, %0) : R R P0\n"
            "%5 = reduce_scatter@0(%4, dim 0 outer 1) : S0 R\n"
            "%6 = aten.add.Tensor(%1, %5) : S0 R\n"
            "%7 = aten.add.Tensor(%2, %5) : S0 R\n"
            "<1> = %6\n"
            "<2> = %7\n");
}

TEST(ProgramTableTest, NewValueOfAnInputGetsItsSpec) {
  // The update in parts of a parameter stored whole: all-gather on the way back.
  Step step({2});
  const ValueRef w = step.input("w", {16, 16}, InputKind::kParameter);
  const ValueRef made = step.op("new_w", "aten.relu.default", {{w}}, {16, 16}, Phase::kUpdate);
  step.result(made, w.node);
  step.choose({{"new_w", "S0 R -> S0 R"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = slice@0(%0, dim 0 outer 1) : S0 R\n"
            "%2 = aten.relu.default(%1) : S0 R\n"
            "%3 = all_gather@0(%2, dim 0 outer 1) : R R\n"
            "<0> = %3\n");
}

TEST(ProgramTableTest, ViewsTakeLocalShapesAndStridedShardsTellTheirOuterPart) {
  // A fused [3 * 4 * 8] projection seen as (3, 4, 8), heads over both axes of 2 x 2.
  Step step({2, 2});
  const ValueRef x = step.input("x", {16, 96});
  const ValueRef v = step.op("v", "aten.view.default", {{x}, list({16, 3, 4, 8})}, {16, 3, 4, 8});
  const ValueRef y = step.op("y", "aten.relu.default", {{v}}, {16, 3, 4, 8});
  const ValueRef back = step.op("b", "aten._unsafe_view.default", {{y}, list({16, 96})}, {16, 96});
  step.result(back);
  step.choose({{"y", "R R S01 R -> R R S01 R"}});
  EXPECT_EQ(programText(step.emit()),
            "%0 = input : R R\n"
            "%1 = aten.reshape.default(%0, [16, 3, 4, 8]) : R R R R\n"
            "%2 = slice@0(%1, dim 2 outer 1) : R R S0 R\n"
            "%3 = slice@1(%2, dim 2 outer 1) : R R S01 R\n"
            "%4 = aten.relu.default(%3) : R R S01 R\n"
            "%5 = aten.reshape.default(%4, [16, 24]) : R {R,S01,R}\n"
            "%6 = all_gather@1(%5, dim 1 outer 3) : R {R,S0,R}\n"
            "%7 = all_gather@0(%6, dim 1 outer 3) : R R\n"
            "return %7\n");
}

TEST(ProgramTableTest, ShardedVocabularyTellsEachRankItsFirstRow) {
  Step step({2, 4});
  const ValueRef table = step.input("table", {64, 16}, InputKind::kParameter);
  const ValueRef tokens = step.input("tokens", {8}, InputKind::kBatch, DType::kInt64);
  const ValueRef y = step.op("y", "aten.embedding.default", {{table}, {tokens}}, {8, 16});
  step.result(y);
  step.choose({{"table", "S10 R"}, {"y", "S10 R, R -> R R P01"}});
  const ProgramTable program = step.emit();
  // 64 rows over 8 ranks, axis 1 outside: part 8, axis 1 strides over 2 parts.
  EXPECT_EQ(argText({program.instructions[2].args[2]}), "0+8*c0+16*c1");
  EXPECT_EQ(program.instructions[2].op, "shardwright.embedding_shard.default");
}

TEST(ProgramTableTest, SameProgramEveryTime) {
  Step first = backwardStep();
  Step second = backwardStep();
  EXPECT_EQ(programText(first.emit()), programText(second.emit()));
}

std::string codeOf(Step step, std::function<void(StagePlan&)> change) {
  step.mutate(std::move(change));
  try {
    step.emit();
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

TEST(ProgramTableTest, RefusesPlansThatDoNotFit) {
  const Placement s0 = Placement::shard(0);
  EXPECT_EQ(codeOf(backwardStep(), [](StagePlan&) {}), "");
  EXPECT_EQ(codeOf(backwardStep(), [](StagePlan& plan) { plan.ops.pop_back(); }), "E311");
  EXPECT_EQ(codeOf(backwardStep(), [](StagePlan& plan) { plan.ops.push_back(plan.ops[0]); }),
            "E311");
  EXPECT_EQ(codeOf(backwardStep(), [](StagePlan& plan) { plan.conversions.pop_back(); }), "E311");
  EXPECT_EQ(codeOf(backwardStep(), [](StagePlan& plan) { plan.mesh_shape = {4}; }), "E311");
  EXPECT_EQ(codeOf(backwardStep(), [](StagePlan& plan) { plan.ops[2].operands.pop_back(); }),
            "E311");
  EXPECT_EQ(codeOf(backwardStep(),
                   [](StagePlan& plan) { plan.ops[2].operands[0] = {Placement::shard(9)}; }),
            "E311");
  // The operands of a product shard its one factor in two ways.
  EXPECT_EQ(codeOf(backwardStep(), [&](StagePlan& plan) { plan.ops[2].outputs[0] = {s0}; }), "");
  EXPECT_EQ(codeOf(backwardStep(),
                   [](StagePlan& plan) {
                     plan.conversions.back().from_first = true;
                     plan.conversions.back().spec = {Placement::shard(0)};
                   }),
            "E311");
}

}  // namespace
}  // namespace shardwright
