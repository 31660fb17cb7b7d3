#include "plan/local_arguments.h"

#include <algorithm>
#include <type_traits>

#include "base/checked.h"
#include "base/error.h"

namespace shardwright {

void throwChoiceMismatch(const ShardedGraph& graph, NodeId node, const std::string& what,
                         std::vector<std::string> values) {
  const Node& op = graph.graph().node(node);
  values.insert(values.begin(), "node: " + op.name + ", " + op.op);
  throw Error(
      ErrorKind::kPlan, "E311", "the plan does not fit the step: " + what + ".",
      {.values = std::move(values),
       .where = op.source,
       .advice = "plan this step again; a plan is good for the graph it was made for only"});
}

namespace {

// The axes on one atom or factor, outermost first, as the index of this rank's part.
RankInt partIndex(const std::vector<int>& axes, const std::vector<int>& mesh_shape,
                  std::int64_t scale) {
  RankInt index;
  for (std::size_t i = axes.size(); i-- > 0;) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    index.per_axis[axis] = scale;
    scale = checkedMul<std::int64_t>(scale, mesh_shape[axis]);
  }
  return index;
}

// (Assigned in place: a moved temporary of a recursive variant draws a false warning from GCC 12.)
template <typename Value>
void append(LocalArgList& list, Value value) {
  list.emplace_back().value = std::move(value);
}

class CallWriter {
 public:
  CallWriter(const ShardedGraph& graph, const OpChoice& choice, const std::vector<int>& mesh_shape,
             const std::vector<LocalRef>& operands)
      : graph_(graph),
        node_(graph.graph().node(choice.node)),
        rule_(graph.rule(choice.node)),
        choice_(choice),
        mesh_shape_(mesh_shape),
        operands_(operands),
        values_(node_.operands()) {}

  LocalCall write() {
    readFactors();
    LocalCall call;
    for (const Arg& arg : node_.args) {
      call.args.push_back(local(arg));
    }
    for (const auto& [name, arg] : node_.kwargs) {
      call.kwargs.emplace_back(name, local(arg));
    }
    const int offset_factor = shardedOffsetFactor();
    const bool offset = offset_factor >= 0 && !rule_.offset_op.empty();
    const bool special = offset || (any_sharded_ && !rule_.sharded_op.empty());
    call.op = offset ? rule_.offset_op : special ? rule_.sharded_op : node_.op;
    if (call.op == "aten.view.default" || call.op == "aten._unsafe_view.default") {
      call.op = "aten.reshape.default";
    }
    const std::size_t num_args = call.args.size();
    for (const ArgEdit& edit : rule_.edits) {
      if (edit.arg < 0) {
        if (special) {
          const std::size_t position = num_args + static_cast<std::size_t>(-1 - edit.arg);
          call.args.resize(std::max(call.args.size(), position + 1));
          call.args[position] = edited(edit, call.args[position]);
        }
      } else if (static_cast<std::size_t>(edit.arg) < num_args) {
        apply(edit, call.args[static_cast<std::size_t>(edit.arg)]);
      } else if (any_sharded_) {
        throwChoiceMismatch(
            graph_, choice_.node,
            "argument " + std::to_string(edit.arg) + " of a sharded op is left to its default");
      }
    }
    if (offset) {
      append(call.args, offsetOf(offset_factor));
    }
    return call;
  }

 private:
  // Which factor each axis shards, and in which order, from where the specs' atoms lie in the rule.
  void readFactors() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      readFactors(graph_.atoms(values_[i]), rule_.operands[i], choice_.operands[i]);
    }
    for (std::size_t o = 0; o < choice_.outputs.size(); ++o) {
      readFactors(graph_.atoms({choice_.node, static_cast<int>(o)}), rule_.outputs[o],
                  choice_.outputs[o]);
    }
  }

  void readFactors(const TensorAtoms& atoms, const TensorMap& map, const ShardingSpec& spec) {
    if (!isValid(atoms, spec, mesh_shape_)) {
      throwChoiceMismatch(graph_, choice_.node, "a spec is not valid on the mesh",
                          {"spec: " + std::to_string(spec.size()) + " placements for " +
                           std::to_string(mesh_shape_.size()) + " axes"});
    }
    for (std::size_t d = 0; d < atoms.dims.size(); ++d) {
      for (std::size_t k = 0; k < atoms.dims[d].size(); ++k) {
        const std::vector<int> axes = axesOfAtom(spec, atoms.dims[d][k]);
        if (axes.empty()) {
          continue;
        }
        const int factor = map.dims[d][k];
        any_sharded_ = true;
        auto& known = axesOfFactor(factor);
        if (!known.empty() && known != axes) {
          throwChoiceMismatch(graph_, choice_.node, "its specs shard one factor in two ways");
        }
        known = axes;
      }
    }
  }

  std::vector<int>& axesOfFactor(int factor) {
    factor_axes_.resize(rule_.factors.size());
    return factor_axes_[static_cast<std::size_t>(factor)];
  }

  int shardedOffsetFactor() {
    for (std::size_t factor = 0; factor < rule_.factors.size(); ++factor) {
      if (rule_.factors[factor].needs_offset && !axesOfFactor(static_cast<int>(factor)).empty()) {
        return static_cast<int>(factor);
      }
    }
    return -1;
  }

  RankInt offsetOf(int index) {
    const Factor& factor = rule_.factors[static_cast<std::size_t>(index)];
    const std::vector<int>& axes = axesOfFactor(index);
    std::int64_t part = factor.size;
    for (const int axis : axes) {
      part /= mesh_shape_[static_cast<std::size_t>(axis)];
    }
    return partIndex(axes, mesh_shape_, checkedMul(part, factor.offset_stride));
  }

  LocalArg local(const Arg& arg) {
    return std::visit(
        [&](const auto& value) -> LocalArg {
          using Value = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, ValueRef>) {
            return {operands_[next_operand_++]};
          } else if constexpr (std::is_same_v<Value, ArgList>) {
            LocalArgList elements;
            for (const Arg& element : value) {
              elements.push_back(local(element));
            }
            return {std::move(elements)};
          } else {
            return {value};
          }
        },
        arg.value);
  }

  void apply(const ArgEdit& edit, LocalArg& arg) {
    if (edit.element < 0) {
      arg = edited(edit, arg);
      return;
    }
    auto* list = std::get_if<LocalArgList>(&arg.value);
    if (list == nullptr || static_cast<std::size_t>(edit.element) >= list->size()) {
      throwChoiceMismatch(graph_, choice_.node,
                          "argument " + std::to_string(edit.arg) + " is not the list expected");
    }
    LocalArg& element = (*list)[static_cast<std::size_t>(edit.element)];
    element = edited(edit, element);
  }

  LocalArg edited(const ArgEdit& edit, const LocalArg& arg) {
    using Kind = ArgEdit::Kind;
    const auto output = static_cast<std::size_t>(edit.output);
    const ValueRef value{choice_.node, edit.output};
    switch (edit.kind) {
      case Kind::kLocalShape:
        return list(outputShape(output));
      case Kind::kLocalDim:
        return {outputShape(output)[static_cast<std::size_t>(edit.dim)]};
      case Kind::kScale:
        return scaled(edit, arg);
      case Kind::kGlobalAtoms:
      case Kind::kLocalAtoms:
      case Kind::kAtomStarts:
        break;
    }
    const TensorAtoms& atoms = graph_.atoms(value);
    const ShardingSpec& spec = choice_.outputs[output];
    const std::vector<std::int64_t> shards = atomShards(atoms, spec, mesh_shape_);
    LocalArgList elements;
    for (const std::vector<int>& dim : atoms.dims) {
      for (const int atom : dim) {
        const auto index = static_cast<std::size_t>(atom);
        const std::int64_t part = atoms.sizes[index] / shards[index];
        if (edit.kind == Kind::kGlobalAtoms) {
          append(elements, atoms.sizes[index]);
        } else if (edit.kind == Kind::kLocalAtoms) {
          append(elements, part);
        } else {
          append(elements, partIndex(axesOfAtom(spec, atom), mesh_shape_, part));
        }
      }
    }
    return {std::move(elements)};
  }

  static LocalArg list(const std::vector<std::int64_t>& values) {
    LocalArgList elements;
    for (const std::int64_t value : values) {
      append(elements, value);
    }
    return {std::move(elements)};
  }

  std::vector<std::int64_t> outputShape(std::size_t output) const {
    return localTensor(graph_, {choice_.node, static_cast<int>(output)}, choice_.outputs[output],
                       mesh_shape_)
        .local_shape;
  }

  LocalArg scaled(const ArgEdit& edit, const LocalArg& arg) {
    const auto* value = std::get_if<std::int64_t>(&arg.value);
    if (value == nullptr) {
      return arg;  // an omitted bound stays omitted
    }
    const auto dim = static_cast<std::size_t>(edit.dim);
    const bool is_output = edit.operand < 0;
    const ValueRef whole = is_output ? ValueRef{choice_.node, edit.output}
                                     : values_[static_cast<std::size_t>(edit.operand)];
    const ShardingSpec& spec = is_output ? choice_.outputs[static_cast<std::size_t>(edit.output)]
                                         : choice_.operands[static_cast<std::size_t>(edit.operand)];
    const std::int64_t global = graph_.graph().meta(whole).shape[dim];
    const std::int64_t part = localShape(graph_.atoms(whole), spec, mesh_shape_)[dim];
    const std::int64_t bound =
        std::clamp<std::int64_t>(*value < 0 ? *value + global : *value, 0, global);
    if (part == global) {
      return arg;
    }
    const std::int64_t product = checkedMul(bound, part);
    if (product % global != 0) {
      throwChoiceMismatch(
          graph_, choice_.node, "a bound of a slice does not fall between shards",
          {"bound: " + std::to_string(bound),
           "dim: " + std::to_string(global) + ", of it local " + std::to_string(part)});
    }
    return {product / global};
  }

  const ShardedGraph& graph_;
  const Node& node_;
  const ShardingRule& rule_;
  const OpChoice& choice_;
  const std::vector<int>& mesh_shape_;
  const std::vector<LocalRef>& operands_;
  std::vector<ValueRef> values_;
  std::vector<std::vector<int>> factor_axes_;  // outermost first
  bool any_sharded_ = false;
  std::size_t next_operand_ = 0;
};

}  // namespace

LocalCall localCall(const ShardedGraph& graph, const OpChoice& choice,
                    const std::vector<int>& mesh_shape, const std::vector<LocalRef>& operands) {
  return CallWriter(graph, choice, mesh_shape, operands).write();
}

}  // namespace shardwright
