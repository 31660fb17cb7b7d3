#include "plan/replay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "cost/compute.h"
#include "plan/validate.h"
#include "sharding/conversion_points.h"
#include "sharding/reshard.h"

namespace shardwright {
namespace {

// Gradients are what the backward pass hands to the update, with the sums they are added up from
// and what the update makes of them on the way; the new value of an input counts as that input.
class BufferKinds {
 public:
  explicit BufferKinds(const ShardedGraph& sharded) : graph_(sharded.graph()) {
    std::vector<std::optional<BufferKind>> kinds(graph_.nodes().size());
    for (const GraphOutput& output : graph_.outputs()) {
      if (output.updates) {
        kinds[output.value.node.index()] = ofInput(graph_.node(*output.updates).input->kind);
      }
    }
    for (std::size_t index = kinds.size(); index-- > 0;) {
      const Node& node = graph_.nodes()[index];
      if (node.input) {
        kinds[index] = ofInput(node.input->kind);
      } else if (!kinds[index]) {
        kinds[index] = node.phase == Phase::kUpdate || feedsUpdate(NodeId(index))
                           ? BufferKind::kGradient
                           : BufferKind::kActivation;
        if (node.phase == Phase::kForward) {
          kinds[index] = BufferKind::kActivation;
        }
      }
      is_gradient_.push_back(kinds[index] == BufferKind::kGradient);
    }
    for (const std::optional<BufferKind>& kind : kinds) {
      kinds_.push_back(*kind);
    }
  }

  BufferKind of(NodeId node) const { return kinds_[node.index()]; }

 private:
  static BufferKind ofInput(InputKind kind) {
    switch (kind) {
      case InputKind::kParameter:
        return BufferKind::kParameter;
      case InputKind::kOptimizerState:
        return BufferKind::kOptimizer;
      default:
        return BufferKind::kOther;
    }
  }

  bool feedsUpdate(NodeId id) const {
    const Node& node = graph_.node(id);
    for (std::size_t output = 0; output < node.outputs.size(); ++output) {
      for (const Use& use : graph_.uses({id, static_cast<int>(output)})) {
        const Node& user = graph_.node(use.node);
        const bool user_is_gradient = is_gradient_[graph_.nodes().size() - 1 - use.node.index()];
        if (user.phase == Phase::kUpdate || (user_is_gradient && passesOn(user))) {
          return true;
        }
      }
    }
    return false;
  }

  // Adds up, regroups or casts: what comes out is the same gradient.
  static bool passesOn(const Node& node) {
    return node.op.starts_with("aten.add") || node.op.starts_with("aten.view") ||
           node.op.starts_with("aten.t.") || node.op.starts_with("aten.permute") ||
           node.op.starts_with("aten.transpose") || node.op.starts_with("aten._to_copy");
  }

  const Graph& graph_;
  std::vector<bool> is_gradient_;  // from the last node to the first
  std::vector<BufferKind> kinds_;
};

// A value in one of its forms: how it lies and in which buffer.
struct Held {
  ShardingSpec spec;
  int buffer = -1;
};

class Runner {
 public:
  Runner(const ShardedGraph& sharded, const StagePlan& stage, const DeviceMesh& mesh)
      : sharded_(sharded),
        graph_(sharded.graph()),
        stage_(stage),
        mesh_(mesh),
        kinds_(sharded),
        uses_(valueUses(sharded)),
        points_(conversionPoints(sharded)) {}

  Replay run() {
    own_.resize(graph_.nodes().size());
    choice_of_.resize(graph_.nodes().size(), nullptr);
    for (const OpChoice& choice : stage_.ops) {
      choice_of_[choice.node.index()] = &choice;
    }
    point_held_.resize(points_.size());
    for (std::size_t index = 0; index < points_.size(); ++index) {
      for (const ValueUse& use : points_[index].uses) {
        if (use.isResult()) {
          point_of_result_[use.result] = index;
        } else {
          point_of_operand_[{use.node, use.operand}] = index;
        }
      }
      points_of_[points_[index].value].push_back(index);
    }
    collectWriteBacks();
    replay_.moments.emplace_back();  // moment 0: before the step, only inputs
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      if (graph_.nodes()[index].input) {
        runInput(NodeId(index));
      }
    }
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      const NodeId node(index);
      if (!graph_.node(node).input && !sharded_.isView(node)) {
        runOp(node);
      }
      for (const int result : write_backs_[index]) {
        readResult(result, node);
      }
    }
    replay_.end_of_ops = now() + 1;
    finish();
    return std::move(replay_);
  }

 private:
  std::int64_t now() const { return static_cast<std::int64_t>(replay_.moments.size()) - 1; }
  void tick(NodeId node) { replay_.moments.push_back(node); }
  void read(int buffer) { replay_.buffers[static_cast<std::size_t>(buffer)].last_read = now(); }
  Held& own(ValueRef root) {
    return own_[root.node.index()][static_cast<std::size_t>(root.output)];
  }

  int makeBuffer(ValueRef value, const ShardingSpec& spec) {
    const ValueRef root = sharded_.root(value);
    replay_.buffers.push_back(
        {root, spec,
         localBytes(sharded_.atoms(root), graph_.meta(root).dtype, spec, stage_.mesh_shape),
         kinds_.of(root.node), now(), now(), !spansMicrobatches(graph_.node(root.node))});
    return static_cast<int>(replay_.buffers.size()) - 1;
  }

  // Converts step by step; each step's result is alive together with what it is made from.
  Held convert(ValueRef root, const Held& source, const ShardingSpec& to, Phase phase,
               NodeId node) {
    const auto steps =
        planReshard(sharded_.atoms(root), graph_.meta(root).dtype, source.spec, to, mesh_);
    if (!steps) {
      throwPlanMismatch(sharded_, root.node, "is used in a spec it cannot be converted to",
                        {"from: " + printSpec(sharded_.atoms(root), source.spec),
                         "to: " + printSpec(sharded_.atoms(root), to)});
    }
    replay_.conversions.push_back({root, source.spec, to, phase, node});
    Held held = source;
    for (const ReshardStep& step : *steps) {
      tick(node);
      read(held.buffer);
      held = {step.after, makeBuffer(root, step.after)};
    }
    if (held.spec != to) {
      throwPlanMismatch(sharded_, root.node, "is converted to another spec than asked for");
    }
    return held;
  }

  void makePoint(std::size_t index, NodeId node) {
    const ConversionPoint& point = points_[index];
    const ConversionChoice& choice = stage_.conversions[index];
    const Held& source = own(point.value);
    if (choice.from_first) {
      if (!point_held_[index - 1]) {
        makePoint(index - 1, node);
      }
      point_held_[index] = point_held_[index - 1];
    } else if (choice.spec == source.spec) {
      point_held_[index] = source;
    } else {
      point_held_[index] = convert(point.value, source, choice.spec, point.phase, node);
    }
  }

  const Held& pointHeld(std::size_t index, NodeId node) {
    if (!point_held_[index]) {
      makePoint(index, node);
    }
    return *point_held_[index];
  }

  void runInput(NodeId node) {
    const OpChoice& choice = *choice_of_[node.index()];
    own_[node.index()] = {{choice.outputs.front(), makeBuffer({node, 0}, choice.outputs.front())}};
    replay_.buffers.back().per_microbatch = graph_.node(node).input->per_microbatch;
  }

  // What operand `operand` of `node` reads, converted for it alone where need be.
  Held operandOf(NodeId node, int operand, ValueRef value, const ShardingSpec& wanted) {
    const ValueRef root = sharded_.root(value);
    const auto point = point_of_operand_.find({node, operand});
    const Held source =
        point == point_of_operand_.end() ? own(root) : pointHeld(point->second, node);
    if (source.spec == wanted) {
      return source;
    }
    if (isUpdatedInPlace(node, operand)) {
      throwPlanMismatch(sharded_, node,
                        "updates an operand in place that would be converted first");
    }
    return convert(root, source, wanted, graph_.node(node).phase, node);
  }

  bool isUpdatedInPlace(NodeId node, int operand) const {
    const ShardingRule& rule = sharded_.rule(node);
    return rule.in_place &&
           std::find(rule.aliases.begin(), rule.aliases.end(), operand) != rule.aliases.end();
  }

  // The sum over microbatches lies as its operand did when that was made, and is there throughout;
  // what remains to be converted is converted once.
  void runAccumulate(NodeId node, ValueRef operand, const ShardingSpec& wanted) {
    const auto point = point_of_operand_.find({node, 0});
    const ShardingSpec spec = point == point_of_operand_.end()
                                  ? own(sharded_.root(operand)).spec
                                  : pointHeld(point->second, node).spec;
    Held sum = {spec, makeBuffer({node, 0}, spec)};
    replay_.buffers.back().made = 0;
    if (spec != wanted) {
      sum = convert(sharded_.root({node, 0}), sum, wanted, graph_.node(node).phase, node);
    }
    tick(node);
    read(sum.buffer);
    own_[node.index()] = {sum};
    makePoints({node, 0}, node);
  }

  void makePoints(ValueRef value, NodeId node) {
    const auto points = points_of_.find(value);
    if (points != points_of_.end()) {
      for (const std::size_t point : points->second) {
        pointHeld(point, node);
      }
    }
  }

  void runOp(NodeId node) {
    const OpChoice& choice = *choice_of_[node.index()];
    const std::vector<ValueRef> operands = graph_.node(node).operands();
    if (accumulatesMicrobatches(graph_.node(node))) {
      runAccumulate(node, operands[0], choice.operands[0]);
      return;
    }
    std::vector<Held> held;
    for (std::size_t index = 0; index < operands.size(); ++index) {
      held.push_back(
          operandOf(node, static_cast<int>(index), operands[index], choice.operands[index]));
    }
    tick(node);
    for (const Held& operand : held) {
      read(operand.buffer);
    }
    const ShardingRule& rule = sharded_.rule(node);
    for (std::size_t output = 0; output < choice.outputs.size(); ++output) {
      const int alias = output < rule.aliases.size() ? rule.aliases[output] : -1;
      const ValueRef value{node, static_cast<int>(output)};
      const int buffer = alias >= 0 ? held[static_cast<std::size_t>(alias)].buffer
                                    : makeBuffer(value, choice.outputs[output]);
      own_[node.index()].push_back({choice.outputs[output], buffer});
    }
    for (std::size_t output = 0; output < choice.outputs.size(); ++output) {
      makePoints({node, static_cast<int>(output)}, node);
    }
  }

  void collectWriteBacks() {
    write_backs_.resize(graph_.nodes().size());
    for (const std::vector<ValueUses>& node_uses : uses_) {
      for (const ValueUses& value_uses : node_uses) {
        for (const ValueUse& use : value_uses.converting) {
          if (use.isResult() && use.node.isValid()) {
            write_backs_[use.node.index()].push_back(use.result);
          }
        }
      }
    }
  }

  // Reads a result in the spec of the input it updates, or whole where the user gets it.
  Held readResult(int index, NodeId node) {
    const GraphOutput& output = graph_.outputs()[static_cast<std::size_t>(index)];
    const ValueRef root = sharded_.root(output.value);
    const auto point = point_of_result_.find(index);
    const Held source =
        point == point_of_result_.end() ? own(root) : pointHeld(point->second, node);
    const ShardingSpec wanted =
        output.updates ? own({*output.updates, 0}).spec
                       : ShardingSpec(stage_.mesh_shape.size(), Placement::replicate());
    const Phase phase = output.updates ? graph_.node(output.value.node).phase : Phase::kUpdate;
    const Held held = source.spec == wanted ? source
                                            : convert(root, source, wanted, phase,
                                                      node.isValid() ? node : output.value.node);
    tick(node.isValid() ? node : output.value.node);
    read(held.buffer);
    return held;
  }

  void finish() {
    std::vector<int> returned;
    for (std::size_t index = 0; index < graph_.outputs().size(); ++index) {
      const GraphOutput& output = graph_.outputs()[index];
      if (!output.updates) {
        returned.push_back(readResult(static_cast<int>(index), NodeId()).buffer);
      } else if (own({*output.updates, 0}).spec != own(sharded_.root(output.value)).spec &&
                 bufferOwner(sharded_, output.value) == ValueRef{*output.updates, 0}) {
        throwPlanMismatch(sharded_, output.value.node, "gives an input another spec than it had");
      }
    }
    for (const int buffer : returned) {
      read(buffer);
    }
    for (Buffer& buffer : replay_.buffers) {
      if (graph_.node(buffer.value.node).input && buffer.made == 0) {
        buffer.last_read = now();  // inputs stay
      }
    }
  }

  const ShardedGraph& sharded_;
  const Graph& graph_;
  const StagePlan& stage_;
  const DeviceMesh& mesh_;
  BufferKinds kinds_;
  std::vector<std::vector<ValueUses>> uses_;
  std::vector<ConversionPoint> points_;
  std::vector<std::vector<Held>> own_;
  std::vector<const OpChoice*> choice_of_;
  std::vector<std::optional<Held>> point_held_;
  std::map<std::pair<NodeId, int>, std::size_t> point_of_operand_;
  std::map<int, std::size_t> point_of_result_;
  std::map<ValueRef, std::vector<std::size_t>> points_of_;
  std::vector<std::vector<int>> write_backs_;  // by node: results written back after it
  Replay replay_;
};

}  // namespace

Replay replayPlan(const ShardedGraph& graph, const StagePlan& stage, const DeviceMesh& mesh) {
  return Runner(graph, stage, mesh).run();
}

}  // namespace shardwright
