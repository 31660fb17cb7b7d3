#include "plan/validate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "sharding/conversion_points.h"

namespace shardwright {
namespace {

using Kind = Placement::Kind;

// One tensor of the op: where its atoms are in the rule, and the spec the plan gives it.
struct Side {
  const TensorMap* map = nullptr;
  const TensorAtoms* atoms = nullptr;
  const ShardingSpec* spec = nullptr;
  bool is_output = false;
  std::string label;
};

std::optional<int> factorOfAtom(const Side& side, int atom) {
  for (std::size_t dim = 0; dim < side.atoms->dims.size(); ++dim) {
    const std::vector<int>& dim_atoms = side.atoms->dims[dim];
    for (std::size_t position = 0; position < dim_atoms.size(); ++position) {
      if (dim_atoms[position] == atom) {
        return side.map->dims[dim][position];
      }
    }
  }
  return std::nullopt;
}

bool hasFactor(const Side& side, int factor) {
  for (const std::vector<int>& dim : side.map->dims) {
    if (std::find(dim.begin(), dim.end(), factor) != dim.end()) {
      return true;
    }
  }
  return false;
}

class OpCheck {
 public:
  OpCheck(const ShardedGraph& graph, const std::vector<int>& mesh_shape, const OpChoice& choice)
      : graph_(graph), mesh_shape_(mesh_shape), choice_(choice), rule_(graph.rule(choice.node)) {
    const Node& node = graph.graph().node(choice.node);
    operand_values_ = node.operands();
    if (choice.operands.size() != operand_values_.size() ||
        choice.outputs.size() != node.outputs.size()) {
      fail("has another number of operands or outputs");
    }
    for (std::size_t index = 0; index < operand_values_.size(); ++index) {
      sides_.push_back({&rule_.operands[index], &graph.atoms(operand_values_[index]),
                        &choice.operands[index], false, "operand " + std::to_string(index)});
    }
    for (std::size_t index = 0; index < choice.outputs.size(); ++index) {
      sides_.push_back({&rule_.outputs[index], &graph.atoms({choice.node, static_cast<int>(index)}),
                        &choice.outputs[index], true, "output " + std::to_string(index)});
    }
    for (const Side& side : sides_) {
      if (!isValid(*side.atoms, *side.spec, mesh_shape)) {
        fail("has a sharding that does not divide its " + side.label + " evenly");
      }
    }
  }

  Strategy strategy() {
    Strategy result;
    result.operands = choice_.operands;
    result.outputs = choice_.outputs;
    for (std::size_t axis = 0; axis < mesh_shape_.size(); ++axis) {
      const int chosen = axisChoice(axis);
      result.axis_choice.push_back(chosen);
      result.axis_order.push_back(chosen >= 0 ? orderOnAxis(axis) : 0);
      if (chosen >= 0) {
        result.compute_shards *= mesh_shape_[axis];
      }
    }
    checkOffsets(result.axis_choice);
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    std::vector<std::string> values;
    for (const Side& side : sides_) {
      if (side.spec->size() == mesh_shape_.size()) {
        values.push_back(side.label + ": " + printSpec(*side.atoms, *side.spec));
      }
    }
    throwPlanMismatch(graph_, choice_.node, what, std::move(values));
  }

  const Placement& at(const Side& side, std::size_t axis) const { return (*side.spec)[axis]; }

  // The factor all sharded tensors have on this axis, -1 when none is sharded.
  int factorOnAxis(std::size_t axis) const {
    int factor = Strategy::kReplicated;
    for (const Side& side : sides_) {
      if (at(side, axis).kind != Kind::kShard) {
        continue;
      }
      const std::optional<int> here = factorOfAtom(side, at(side, axis).atom);
      if (!here || (factor >= 0 && *here != factor)) {
        fail("shards different factors on mesh axis " + std::to_string(axis));
      }
      factor = *here;
    }
    return factor;
  }

  int axisChoice(std::size_t axis) const {
    const int factor = factorOnAxis(axis);
    if (factor >= 0) {
      checkFactor(axis, factor);
      return factor;
    }
    const bool any_pending = std::any_of(sides_.begin(), sides_.end(), [&](const Side& side) {
      return at(side, axis).kind == Kind::kPartial;
    });
    return any_pending ? partialChoice(axis) : Strategy::kReplicated;
  }

  void checkFactor(std::size_t axis, int factor) const {
    const Factor& described = rule_.factors[static_cast<std::size_t>(factor)];
    if (described.blocked) {
      fail("shards a dim that must stay whole, on mesh axis " + std::to_string(axis));
    }
    for (const Side& side : sides_) {
      const Placement& placement = at(side, axis);
      if (hasFactor(side, factor)) {
        if (placement.kind != Kind::kShard) {
          fail("does not shard its " + side.label + " on mesh axis " + std::to_string(axis));
        }
        continue;
      }
      const bool whole = !side.is_output || !side.map->missing_is_partial ||
                         std::find(side.map->unaffected.begin(), side.map->unaffected.end(),
                                   factor) != side.map->unaffected.end();
      const bool fits =
          whole ? placement.kind == Kind::kReplicate
                : placement.kind == Kind::kPartial && placement.reduce == described.reduce;
      if (!fits) {
        fail("gives its " + side.label + " the wrong placement on mesh axis " +
             std::to_string(axis) + (whole ? " (must be replicated)" : " (must be partial)"));
      }
    }
  }

  int partialChoice(std::size_t axis) const {
    for (std::size_t index = 0; index < rule_.partials.size(); ++index) {
      const PartialRule& partial = rule_.partials[index];
      const std::size_t num_operands = choice_.operands.size();
      bool fits = true;
      for (std::size_t side = 0; side < sides_.size() && fits; ++side) {
        const bool pending =
            side < num_operands ? partial.operands[side] : partial.outputs[side - num_operands];
        const Placement& placement = at(sides_[side], axis);
        fits = pending ? placement.kind == Kind::kPartial && placement.reduce == partial.reduce
                       : placement.kind == Kind::kReplicate;
      }
      if (fits) {
        return Strategy::kFirstPartial - static_cast<int>(index);
      }
    }
    fail("lets a pending reduction through that it must not, on mesh axis " + std::to_string(axis));
  }

  int orderOnAxis(std::size_t axis) const {
    std::optional<int> order;
    for (const Side& side : sides_) {
      if (at(side, axis).kind == Kind::kShard) {
        if (order && *order != at(side, axis).order) {
          fail("splits one factor in different orders of the mesh axes");
        }
        order = at(side, axis).order;
      }
    }
    return order.value_or(0);
  }

  // At most one factor that needs an offset may be sharded.
  void checkOffsets(const std::vector<int>& axis_choice) const {
    int with_offset = Strategy::kReplicated;
    for (const int factor : axis_choice) {
      if (factor < 0 || !rule_.factors[static_cast<std::size_t>(factor)].needs_offset) {
        continue;
      }
      if (with_offset >= 0 && with_offset != factor) {
        fail("shards two dims whose positions it must know");
      }
      with_offset = factor;
    }
  }

  const ShardedGraph& graph_;
  const std::vector<int>& mesh_shape_;
  const OpChoice& choice_;
  const ShardingRule& rule_;
  std::vector<ValueRef> operand_values_;
  std::vector<Side> sides_;
};

bool isReplicated(const ShardingSpec& spec) {
  return std::all_of(spec.begin(), spec.end(),
                     [](const Placement& placement) { return placement.kind == Kind::kReplicate; });
}

void checkInput(const ShardedGraph& graph, const OpChoice& choice) {
  const Node& node = graph.graph().node(choice.node);
  const InputKind kind = node.input->kind;
  const bool may_shard = kind == InputKind::kParameter || kind == InputKind::kBuffer ||
                         kind == InputKind::kOptimizerState || kind == InputKind::kBatch;
  for (const ShardingSpec& spec : choice.outputs) {
    if (hasPartial(spec)) {
      throwPlanMismatch(graph, choice.node, "is an input with a pending reduction");
    }
    if (!may_shard && !isReplicated(spec)) {
      throwPlanMismatch(graph, choice.node, "must be the same on every device");
    }
  }
}

}  // namespace

void throwPlanMismatch(const ShardedGraph& graph, NodeId node, const std::string& what,
                       std::vector<std::string> values) {
  const Node& op = graph.graph().node(node);
  const std::string name = op.input ? op.input->name : op.name + " (" + op.op + ")";
  throw Error(
      ErrorKind::kPlan, "E314", "the plan does not fit the step: " + name + " " + what + ".",
      {.values = std::move(values),
       .where = op.source,
       .advice = "plan the step again; a plan fits only the step and mesh it was made for"});
}

Strategy checkedStrategy(const ShardedGraph& graph, const std::vector<int>& mesh_shape,
                         const OpChoice& choice) {
  if (graph.graph().node(choice.node).input) {
    checkInput(graph, choice);
  }
  return OpCheck(graph, mesh_shape, choice).strategy();
}

void checkCoverage(const ShardedGraph& graph, const StagePlan& stage) {
  std::size_t next = 0;
  for (std::size_t index = 0; index < graph.graph().nodes().size(); ++index) {
    const NodeId node(index);
    if (graph.isView(node)) {
      continue;
    }
    if (next >= stage.ops.size() || stage.ops[next].node != node) {
      throwPlanMismatch(graph, node, "has no sharding in it");
    }
    ++next;
  }
  if (next != stage.ops.size()) {
    throw Error(ErrorKind::kPlan, "E314", "the plan has more ops than the step.",
                {.values = {std::to_string(stage.ops.size()) + " against " + std::to_string(next)},
                 .advice = "plan the step again"});
  }
  const std::vector<ConversionPoint> points = conversionPoints(graph);
  if (points.size() != stage.conversions.size()) {
    throw Error(ErrorKind::kPlan, "E314", "the plan has other conversions than the step.",
                {.values = {std::to_string(stage.conversions.size()) + " against " +
                            std::to_string(points.size())},
                 .advice = "plan the step again"});
  }
  for (std::size_t index = 0; index < points.size(); ++index) {
    const ConversionChoice& choice = stage.conversions[index];
    if (choice.value != points[index].value || choice.group != points[index].group) {
      throwPlanMismatch(graph, points[index].value.node, "has no conversion in it");
    }
    if (!isValid(graph.atoms(choice.value), choice.spec, stage.mesh_shape)) {
      throwPlanMismatch(graph, choice.value.node,
                        "is converted to a spec that is not valid for it");
    }
    if (choice.from_first &&
        (choice.group != 1 || choice.spec != stage.conversions[index - 1].spec)) {
      throwPlanMismatch(graph, choice.value.node, "keeps a conversion that was not made");
    }
  }
}

}  // namespace shardwright
