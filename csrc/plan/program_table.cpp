#include "plan/program_table.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "plan/dead_instructions.h"
#include "plan/local_arguments.h"
#include "sharding/conversion_points.h"

namespace shardwright {

LocalTensor localTensor(const ShardedGraph& graph, ValueRef value, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape) {
  const TensorMeta& meta = graph.graph().meta(value);
  LocalTensor tensor;
  tensor.atoms = graph.atoms(value);
  tensor.spec = spec;
  tensor.dtype = meta.dtype;
  tensor.global_shape = meta.shape;
  tensor.local_shape = localShape(tensor.atoms, spec, mesh_shape);
  for (std::size_t dim = 0; dim < meta.shape.size(); ++dim) {
    if (meta.shape[dim] == 0) {
      tensor.local_shape[dim] = 0;  // an empty dim has no atoms
    }
  }
  return tensor;
}

namespace {

// A value, or a converted form of it: where it is and how it lies.
struct Held {
  LocalRef ref;
  ShardingSpec spec;
};

// Where an atom lies in a value's local shape.
struct AtomPosition {
  int dim = -1;
  std::int64_t outer = 1;
};

AtomPosition positionOf(const TensorAtoms& atoms, int atom, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape) {
  const std::vector<std::int64_t> shards = atomShards(atoms, spec, mesh_shape);
  for (std::size_t dim = 0; dim < atoms.dims.size(); ++dim) {
    AtomPosition position = {static_cast<int>(dim), 1};
    for (const int member : atoms.dims[dim]) {
      if (member == atom) {
        return position;
      }
      const auto index = static_cast<std::size_t>(member);
      position.outer *= atoms.sizes[index] / shards[index];
    }
  }
  throw Error(ErrorKind::kInternal, "E902", "an atom is in no dim of its tensor.",
              {.values = {"atom: " + std::to_string(atom)}, .advice = "report this"});
}

class Emitter {
 public:
  Emitter(const ShardedGraph& sharded, const StagePlan& stage, const DeviceMesh& mesh)
      : sharded_(sharded),
        graph_(sharded.graph()),
        stage_(stage),
        mesh_(mesh),
        tables_(mesh),
        points_(conversionPoints(sharded)),
        point_held_(points_.size()),
        choice_of_(graph_.nodes().size(), nullptr),
        own_(graph_.nodes().size()),
        write_backs_(graph_.nodes().size()),
        result_held_(graph_.outputs().size()) {
    table_.mesh_shape = stage.mesh_shape;
    indexChoices();
    indexPoints();
  }

  ProgramTable emit() {
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      if (graph_.nodes()[index].input) {
        emitInput(NodeId(index));
      }
    }
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      const NodeId node(index);
      const bool is_op = !graph_.node(node).input && !sharded_.isView(node);
      phase_ = graph_.node(node).phase;
      if (is_op) {
        emitOp(node);
      }
      for (const int result : write_backs_[index]) {
        emitResult(result);
      }
    }
    for (std::size_t result = 0; result < graph_.outputs().size(); ++result) {
      if (!result_held_[result]) {
        emitResult(static_cast<int>(result));
      }
      const std::optional<NodeId> updates = graph_.outputs()[result].updates;
      table_.outputs.push_back(
          {*result_held_[result], updates ? own({*updates, 0}).ref.instruction : -1});
    }
    return std::move(table_);
  }

 private:
  void indexChoices() {
    for (const OpChoice& choice : stage_.ops) {
      if (!choice.node.isValid() || choice.node.index() >= choice_of_.size() ||
          choice_of_[choice.node.index()] != nullptr) {
        throw Error(ErrorKind::kPlan, "E311",
                    "the plan does not fit the step: it chooses for a node twice, or for none.",
                    {.advice = "plan this step again"});
      }
      choice_of_[choice.node.index()] = &choice;
    }
    for (std::size_t index = 0; index < choice_of_.size(); ++index) {
      const NodeId node(index);
      if (sharded_.isView(node)) {
        continue;
      }
      const OpChoice* choice = choice_of_[index];
      if (choice == nullptr) {
        throwChoiceMismatch(sharded_, node, "a node has no choice");
      }
      if (choice->operands.size() != graph_.node(node).operands().size() ||
          choice->outputs.size() != graph_.node(node).outputs.size()) {
        throwChoiceMismatch(sharded_, node, "a node has other operands or outputs than its choice");
      }
    }
  }

  void indexPoints() {
    std::map<std::pair<ValueRef, int>, const ConversionChoice*> choices;
    for (const ConversionChoice& choice : stage_.conversions) {
      choices[{choice.value, choice.group}] = &choice;
    }
    for (std::size_t index = 0; index < points_.size(); ++index) {
      const ConversionPoint& point = points_[index];
      const auto choice = choices.find({point.value, point.group});
      if (choice == choices.end() || (choice->second->from_first && point.group == 0)) {
        throwChoiceMismatch(sharded_, point.value.node, "a shared value has no conversion");
      }
      point_choice_.push_back(choice->second);
      points_of_value_[point.value].push_back(index);
      for (const ValueUse& use : point.uses) {
        if (use.isResult()) {
          point_of_result_[use.result] = index;
        } else {
          point_of_operand_[{use.node, use.operand}] = index;
        }
      }
    }
    for (const auto& node_uses : valueUses(sharded_)) {
      for (const ValueUses& uses : node_uses) {
        for (const std::vector<ValueUse>* list : {&uses.converting, &uses.in_place}) {
          for (const ValueUse& use : *list) {
            if (use.isResult() && use.node.isValid()) {
              write_backs_[use.node.index()].push_back(use.result);
            }
          }
        }
      }
    }
  }

  const Held& own(ValueRef root) const {
    return own_[root.node.index()][static_cast<std::size_t>(root.output)];
  }

  LocalRef append(Instruction instruction) {
    instruction.phase = phase_;
    table_.instructions.push_back(std::move(instruction));
    return {static_cast<int>(table_.instructions.size()) - 1, 0};
  }

  void emitInput(NodeId node) {
    Instruction instruction;
    instruction.kind = Instruction::Kind::kInput;
    instruction.node = node;
    const ShardingSpec& spec = choice_of_[node.index()]->outputs[0];
    checkSpec({node, 0}, spec);
    instruction.outputs = {localTensor(sharded_, {node, 0}, spec, stage_.mesh_shape)};
    phase_ = graph_.node(node).phase;
    own_[node.index()] = {{append(std::move(instruction)), spec}};
  }

  void emitOp(NodeId node) {
    const OpChoice& choice = *choice_of_[node.index()];
    const std::vector<ValueRef> operands = graph_.node(node).operands();
    std::vector<LocalRef> refs;
    for (std::size_t operand = 0; operand < operands.size(); ++operand) {
      refs.push_back(emitOperand(node, static_cast<int>(operand), operands[operand],
                                 choice.operands[operand]));
    }
    Instruction instruction = compute(node, choice, refs);
    const LocalRef made = append(std::move(instruction));
    for (std::size_t output = 0; output < choice.outputs.size(); ++output) {
      own_[node.index()].push_back(
          {{made.instruction, static_cast<int>(output)}, choice.outputs[output]});
    }
    for (std::size_t output = 0; output < choice.outputs.size(); ++output) {
      const auto points = points_of_value_.find({node, static_cast<int>(output)});
      if (points != points_of_value_.end()) {
        for (const std::size_t point : points->second) {
          pointHeld(point, node);
        }
      }
    }
  }

  Instruction compute(NodeId node, const OpChoice& choice, const std::vector<LocalRef>& refs) {
    Instruction instruction;
    instruction.node = node;
    LocalCall call = localCall(sharded_, choice, stage_.mesh_shape, refs);
    instruction.op = std::move(call.op);
    instruction.args = std::move(call.args);
    instruction.kwargs = std::move(call.kwargs);
    for (std::size_t output = 0; output < choice.outputs.size(); ++output) {
      const ValueRef value{node, static_cast<int>(output)};
      checkSpec(value, choice.outputs[output]);
      instruction.outputs.push_back(
          localTensor(sharded_, value, choice.outputs[output], stage_.mesh_shape));
    }
    return instruction;
  }

  // What operand `operand` of `node` reads, converted for it alone where need be.
  LocalRef emitOperand(NodeId node, int operand, ValueRef value, const ShardingSpec& wanted) {
    const auto point = point_of_operand_.find({node, operand});
    const Held source = point == point_of_operand_.end() ? own(sharded_.root(value))
                                                         : pointHeld(point->second, node);
    if (source.spec != wanted && isUpdatedInPlace(node, operand)) {
      throwChoiceMismatch(sharded_, node,
                          "it updates a value in place that would have to be converted first");
    }
    return convert(value, {viewOf(value, source), source.spec}, wanted, node).ref;
  }

  bool isUpdatedInPlace(NodeId node, int operand) const {
    const ShardingRule& rule = sharded_.rule(node);
    return rule.in_place && std::ranges::find(rule.aliases, operand) != rule.aliases.end();
  }

  const Held& pointHeld(std::size_t index, NodeId node) {
    if (!point_held_[index]) {
      const ConversionPoint& point = points_[index];
      const ConversionChoice& choice = *point_choice_[index];
      // The point of group 0 is the one before, by the order of conversionPoints.
      point_held_[index] = choice.from_first
                               ? pointHeld(index - 1, node)
                               : convert(point.value, own(point.value), choice.spec, node);
      if (point_held_[index]->spec != choice.spec) {
        throwChoiceMismatch(sharded_, point.value.node,
                            "it keeps a conversion in another spec than that was made in");
      }
    }
    return *point_held_[index];
  }

  // `value` as it comes out of `source`, a form of its root: the views between them, on shards.
  LocalRef viewOf(ValueRef value, const Held& source) {
    if (value == sharded_.root(value)) {
      return source.ref;
    }
    const auto key =
        std::make_pair(value, std::make_pair(source.ref.instruction, source.ref.output));
    const auto known = views_.find(key);
    if (known != views_.end()) {
      return known->second;
    }
    const std::vector<ValueRef> operands = graph_.node(value.node).operands();
    OpChoice choice;
    choice.node = value.node;
    choice.operands.assign(operands.size(), replicatedSpec(mesh_.numAxes()));
    choice.operands[0] = source.spec;
    choice.outputs = {source.spec};
    std::vector<LocalRef> refs = {viewOf(operands[0], source)};
    for (std::size_t operand = 1; operand < operands.size(); ++operand) {
      refs.push_back(own(sharded_.root(operands[operand])).ref);
    }
    const LocalRef made = append(compute(value.node, choice, refs));
    views_.emplace(key, made);
    return made;
  }

  Held convert(ValueRef value, Held held, const ShardingSpec& to, NodeId node) {
    if (held.spec == to) {
      return held;
    }
    const TensorAtoms& atoms = sharded_.atoms(value);
    checkSpec(value, to);
    const auto steps = tables_.table(atoms, graph_.meta(value).dtype).steps(held.spec, to);
    if (!steps) {
      throwChoiceMismatch(sharded_, node, "a value is used in a spec it cannot be converted to",
                          {"from: " + printSpec(atoms, held.spec), "to: " + printSpec(atoms, to)});
    }
    for (const ReshardStep& step : *steps) {
      Instruction instruction;
      instruction.kind = Instruction::Kind::kReshard;
      instruction.node = node;
      instruction.step = step;
      instruction.source = held.ref;
      if (step.atom >= 0) {
        const AtomPosition at = positionOf(atoms, step.atom, held.spec, stage_.mesh_shape);
        instruction.dim = at.dim;
        instruction.outer = at.outer;
      }
      if (step.to_atom >= 0) {
        const AtomPosition at = positionOf(atoms, step.to_atom, held.spec, stage_.mesh_shape);
        instruction.to_dim = at.dim;
        instruction.to_outer = at.outer;
      }
      instruction.outputs = {localTensor(sharded_, value, step.after, stage_.mesh_shape)};
      held = {append(std::move(instruction)), step.after};
    }
    return held;
  }

  void emitResult(int result) {
    const GraphOutput& output = graph_.outputs()[static_cast<std::size_t>(result)];
    const ValueRef root = sharded_.root(output.value);
    const auto point = point_of_result_.find(result);
    const Held source =
        point == point_of_result_.end() ? own(root) : pointHeld(point->second, root.node);
    const ShardingSpec wanted =
        output.updates ? own({*output.updates, 0}).spec : replicatedSpec(mesh_.numAxes());
    if (output.updates && source.spec != wanted &&
        bufferOwner(sharded_, output.value) == ValueRef{*output.updates, 0}) {
      throwChoiceMismatch(sharded_, output.value.node,
                          "it gives an input another spec than that is stored in");
    }
    result_held_[static_cast<std::size_t>(result)] =
        convert(output.value, {viewOf(output.value, source), source.spec}, wanted,
                output.value.node)
            .ref;
  }

  void checkSpec(ValueRef value, const ShardingSpec& spec) const {
    if (!isValid(sharded_.atoms(value), spec, stage_.mesh_shape)) {
      throwChoiceMismatch(sharded_, value.node, "a spec is not valid on the mesh");
    }
  }

  const ShardedGraph& sharded_;
  const Graph& graph_;
  const StagePlan& stage_;
  const DeviceMesh& mesh_;
  ReshardTableCache tables_;
  std::vector<ConversionPoint> points_;
  std::vector<const ConversionChoice*> point_choice_;
  std::vector<std::optional<Held>> point_held_;
  std::map<ValueRef, std::vector<std::size_t>> points_of_value_;
  std::map<std::pair<NodeId, int>, std::size_t> point_of_operand_;
  std::map<int, std::size_t> point_of_result_;
  std::vector<const OpChoice*> choice_of_;
  std::vector<std::vector<Held>> own_;  // by node: its outputs
  std::map<std::pair<ValueRef, std::pair<int, int>>, LocalRef> views_;
  std::vector<std::vector<int>> write_backs_;  // by node: results written back after it
  std::vector<std::optional<LocalRef>> result_held_;
  Phase phase_ = Phase::kForward;
  ProgramTable table_;
};

}  // namespace

ProgramTable emitProgram(const ShardedGraph& graph, const Plan& plan, const DeviceMesh& mesh) {
  if (plan.stages.size() != 1 || plan.stages[0].mesh_shape != mesh.shape()) {
    throw Error(ErrorKind::kPlan, "E311", "the plan does not fit the mesh it is to run on.",
                {.values = {"stages: " + std::to_string(plan.stages.size()),
                            "mesh axes: " + std::to_string(mesh.numAxes())},
                 .advice = "a mesh of the shape the plan was made for"});
  }
  ProgramTable table = Emitter(graph, plan.stages[0], mesh).emit();
  dropDeadInstructions(table);
  return table;
}

}  // namespace shardwright
