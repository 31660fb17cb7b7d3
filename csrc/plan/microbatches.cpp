#include "plan/microbatches.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "sharding/atom_classes.h"
#include "sharding/strategy.h"

namespace shardwright {

const char* overTimeName(OverTime over_time) {
  switch (over_time) {
    case OverTime::kSame:
      return "same";
    case OverTime::kSplit:
      return "split";
    case OverTime::kPending:
      return "pending";
    case OverTime::kVarying:
      break;
  }
  return "varying";
}

namespace {

constexpr const char* kDropout = "shardwright.dropout.default";

class Cutter {
 public:
  Cutter(const ShardedGraph& sharded, const MicrobatchOptions& options)
      : sharded_(sharded),
        graph_(sharded.graph()),
        options_(options),
        classes_(sharded),
        mesh_shape_{options.num_microbatches},
        batch_only_(graph_.nodes().size(), false),
        follows_update_(graph_.nodes().size(), false),
        is_accumulated_(graph_.nodes().size()) {
    step_.nodes.resize(graph_.nodes().size());
    findTimeClasses();
  }

  MicrobatchStep run() {
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      const NodeId node(index);
      is_accumulated_[index].resize(graph_.node(node).outputs.size(), false);
      noteOrigin(node);
      if (graph_.node(node).input) {
        placeInput(node);
      } else {
        place(node);
      }
    }
    for (const GraphOutput& output : graph_.outputs()) {
      placeResult(output);
    }
    if (!step_.whole.empty()) {
      return std::move(step_);
    }
    runLate();
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      writeCall(NodeId(index));
      for (std::size_t output = 0; output < is_accumulated_[index].size(); ++output) {
        if (is_accumulated_[index][output]) {
          step_.accumulated.push_back({NodeId(index), static_cast<int>(output)});
        }
      }
    }
    return std::move(step_);
  }

 private:
  MicrobatchNode& form(NodeId node) { return step_.nodes[node.index()]; }
  OverTime stateOf(ValueRef value) {
    return form(value.node).outputs[static_cast<std::size_t>(value.output)];
  }
  bool isOnce(ValueRef value) { return form(value.node).once; }

  [[noreturn]] void refuse(const char* code, NodeId node, const std::string& what,
                           std::vector<std::string> values, const std::string& advice) const {
    const Node& op = graph_.node(node);
    values.insert(values.begin(),
                  op.input ? "input: " + op.input->name : "node: " + op.name + ", " + op.op);
    throw Error(ErrorKind::kPlan, code, what,
                {.values = std::move(values), .where = op.source, .advice = advice});
  }

  [[noreturn]] void refuseMixing(NodeId node, std::vector<std::string> values = {}) const {
    refuse("E330", node, "the step cannot run in microbatches: samples of one need others.",
           std::move(values),
           "num_microbatches=1, or let samples meet in sums that only the loss or the update uses");
  }

  [[noreturn]] void refuseForeign(NodeId node) const {
    refuse("E331", node,
           "the step cannot run in microbatches: an op depends on which samples it gets.", {},
           "num_microbatches=1, or make these values outside of the step and pass them as batch");
  }

  // The outermost atom of the first dim of each split input is what is cut.
  void findTimeClasses() {
    for (const NodeId node : options_.split_inputs) {
      const TensorAtoms& atoms = sharded_.atoms({node, 0});
      const std::int64_t parts = options_.num_microbatches;
      if (atoms.dims.empty() || atoms.dims[0].empty() ||
          atoms.sizes[static_cast<std::size_t>(atoms.dims[0][0])] % parts != 0) {
        refuse("E333", node, "a batch cannot be cut into so many microbatches.",
               {"microbatches: " + std::to_string(parts)},
               "a number of samples that the number of microbatches divides, also where the step "
               "reshapes the batch");
      }
      time_classes_.push_back(classes_.of({node, 0}, atoms.dims[0][0]));
    }
    std::ranges::sort(time_classes_);
  }

  bool isTime(ValueRef value, int atom) {
    return std::ranges::binary_search(time_classes_, classes_.of(value, atom));
  }

  // Atom of a value along which it is cut, -1 for none.
  int timeAtom(ValueRef value, NodeId reader) {
    int found = -1;
    for (const std::vector<int>& dim : sharded_.atoms(value).dims) {
      for (const int atom : dim) {
        if (isTime(value, atom)) {
          if (found >= 0 && found != atom) {
            refuseMixing(reader, {"a tensor with two dims of the batch"});
          }
          found = atom;
        }
      }
    }
    return found;
  }

  // Whether the values of a node follow from the batch, constants and buffers alone: then they can
  // be computed from the whole batch at no cost worth speaking of.
  void noteOrigin(NodeId node) {
    const Node& op = graph_.node(node);
    if (op.input) {
      batch_only_[node.index()] = op.input->kind == InputKind::kBatch ||
                                  op.input->kind == InputKind::kConstant ||
                                  op.input->kind == InputKind::kBuffer;
      return;
    }
    const std::vector<ValueRef> operands = op.operands();
    batch_only_[node.index()] = std::ranges::all_of(
        operands, [&](ValueRef value) { return batch_only_[value.node.index()]; });
    follows_update_[node.index()] =
        op.phase == Phase::kUpdate || std::ranges::any_of(operands, [&](ValueRef value) {
          return follows_update_[value.node.index()];
        });
  }

  void placeInput(NodeId node) {
    const int atom = timeAtom({node, 0}, node);
    const bool is_split =
        std::ranges::find(options_.split_inputs, node) != options_.split_inputs.end();
    if (atom >= 0 && !is_split) {
      refuse("E330", node, "the step cannot run in microbatches: an input has a dim of the batch.",
             {"it is the same for every microbatch, and samples are matched with its elements"},
             "num_microbatches=1, or pass it as a batch argument with the samples in dim 0");
    }
    form(node).outputs = {atom >= 0 ? OverTime::kSplit : OverTime::kSame};
  }

  // Whether value is made available whole in every part; else the step is refused for `reader`.
  void needWhole(ValueRef value, NodeId reader) {
    if (!batch_only_[value.node.index()]) {
      const Node& maker = graph_.node(value.node);
      refuseMixing(reader, {"it needs whole, for every sample: " + maker.name + ", " + maker.op +
                            (maker.source.empty() ? "" : ", " + maker.source)});
    }
    if (std::ranges::find(step_.whole, value) == step_.whole.end()) {
      step_.whole.push_back(value);
    }
  }

  void place(NodeId node) {
    const Node& op = graph_.node(node);
    const std::vector<ValueRef> operands = op.operands();
    if (op.phase == Phase::kUpdate) {
      placeOnce(node, operands);
      return;
    }
    const auto has = [&](OverTime state) {
      return std::ranges::any_of(operands,
                                 [&](ValueRef v) { return !isOnce(v) && stateOf(v) == state; });
    };
    const bool in_parts = has(OverTime::kSplit) || has(OverTime::kVarying) || isSplit(node);
    if (in_parts) {
      for (const ValueRef value : operands) {
        if (isOnce(value)) {
          needLate(value, node);
        }
      }
      placeInParts(node, operands);
      return;
    }
    if (op.op == kDropout) {
      refuseForeign(node);  // each microbatch would draw another mask of the same values
    }
    if (std::ranges::any_of(operands, [&](ValueRef v) { return isOnce(v); })) {
      placeOnce(node, operands);
    } else if (has(OverTime::kPending)) {
      placePending(node, operands);
    } else {
      form(node).outputs.assign(op.outputs.size(), OverTime::kSame);
    }
  }

  // A value that is known after the parts only is needed in them.
  void needLate(ValueRef value, NodeId reader) {
    if (follows_update_[value.node.index()]) {
      refuse(
          "E332", reader,
          "the step cannot run in microbatches: forward or backward needs what the update makes.",
          {"made by: " + graph_.node(value.node).name + ", " + graph_.node(value.node).op},
          "one update per step, at its end; or num_microbatches=1");
    }
    needWhole(value, reader);
  }

  bool isSplit(NodeId node) {
    for (std::size_t o = 0; o < graph_.node(node).outputs.size(); ++o) {
      if (timeAtom({node, static_cast<int>(o)}, node) >= 0) {
        return true;
      }
    }
    return false;
  }

  // The factor of a node's rule that counts samples.
  std::optional<int> timeFactor(NodeId node, const std::vector<ValueRef>& operands) {
    const ShardingRule& rule = sharded_.rule(node);
    std::optional<int> found;
    const auto scan = [&](ValueRef value, const TensorMap& map) {
      const TensorAtoms& atoms = sharded_.atoms(value);
      for (std::size_t d = 0; d < atoms.dims.size(); ++d) {
        for (std::size_t k = 0; k < atoms.dims[d].size(); ++k) {
          if (isTime(value, atoms.dims[d][k])) {
            const int factor = map.dims[d][k];
            if (found && *found != factor) {
              refuseMixing(node, {"it goes over the samples twice"});
            }
            found = factor;
          }
        }
      }
    };
    for (std::size_t i = 0; i < operands.size(); ++i) {
      scan(operands[i], rule.operands[i]);
    }
    for (std::size_t o = 0; o < rule.outputs.size(); ++o) {
      scan({node, static_cast<int>(o)}, rule.outputs[o]);
    }
    return found;
  }

  void placeInParts(NodeId node, const std::vector<ValueRef>& operands) {
    MicrobatchNode& placed = form(node);
    if (sharded_.isView(node)) {
      placed.outputs = {stateOf(operands[0])};
      return;
    }
    const bool is_statistic = options_.statistics.contains(node);
    const std::optional<int> factor = timeFactor(node, operands);
    for (const ValueRef value : operands) {
      if (!isOnce(value) && stateOf(value) == OverTime::kPending && !is_statistic) {
        if (factor) {
          needWhole(value, node);
        } else {
          refuseMixing(node, {"it joins a statistic of a microbatch with a sum over all of them"});
        }
      }
    }
    if (!factor) {  // statistics among themselves
      placed.outputs.assign(graph_.node(node).outputs.size(), OverTime::kVarying);
      return;
    }
    for (const Strategy& strategy : enumerateStrategies(sharded_, node, mesh_shape_)) {
      if (strategy.axis_choice[0] == *factor) {
        for (const ShardingSpec& spec : strategy.outputs) {
          placed.outputs.push_back(stateFrom(spec[0], node));
        }
        return;
      }
    }
    refuseMixing(node);
  }

  OverTime stateFrom(const Placement& placement, NodeId node) const {
    if (placement.kind == Placement::Kind::kShard) {
      return OverTime::kSplit;
    }
    if (placement.kind == Placement::Kind::kReplicate) {
      return OverTime::kSame;
    }
    if (placement.reduce != ReduceOp::kSum) {
      refuseMixing(node, {std::string("it takes the ") + reduceOpName(placement.reduce) +
                          " over the samples; only sums are added up over microbatches"});
    }
    return OverTime::kPending;
  }

  // Only pending and same operands: passes the sums on where it is linear in them.
  void placePending(NodeId node, const std::vector<ValueRef>& operands) {
    MicrobatchNode& placed = form(node);
    if (countsElements(node)) {
      placed.outputs.assign(graph_.node(node).outputs.size(), OverTime::kVarying);
      return;
    }
    if (sharded_.isView(node)) {
      placed.outputs = {stateOf(operands[0])};
      return;
    }
    for (const PartialRule& partial : sharded_.rule(node).partials) {
      bool fits = partial.reduce == ReduceOp::kSum;
      for (std::size_t i = 0; i < operands.size(); ++i) {
        fits = fits && partial.operands[i] == (stateOf(operands[i]) == OverTime::kPending);
      }
      if (fits) {
        for (const bool is_pending : partial.outputs) {
          placed.outputs.push_back(is_pending ? OverTime::kPending : OverTime::kSame);
        }
        return;
      }
    }
    // A gradient that is rounded to the dtype of its weight is rounded when it is complete.
    const bool is_cast = graph_.node(node).op == "aten._to_copy.default";
    if (options_.statistics.contains(node) && !is_cast) {
      placed.outputs.assign(graph_.node(node).outputs.size(), OverTime::kVarying);
      return;
    }
    placeOnce(node, operands);
  }

  void placeOnce(NodeId node, const std::vector<ValueRef>& operands) {
    form(node).once = true;
    form(node).outputs.assign(graph_.node(node).outputs.size(), OverTime::kSame);
    for (const ValueRef value : operands) {
      readOnce(value, node);
    }
  }

  // `value` is read after the parts.
  void readOnce(ValueRef value, NodeId reader) {
    if (isOnce(value)) {
      return;
    }
    switch (stateOf(value)) {
      case OverTime::kSame:
        break;
      case OverTime::kPending:
        is_accumulated_[value.node.index()][static_cast<std::size_t>(value.output)] = true;
        break;
      case OverTime::kSplit:
        needWhole(value, reader);
        break;
      case OverTime::kVarying:
        refuseMixing(reader, {"it reads a statistic of each microbatch"});
    }
  }

  void placeResult(const GraphOutput& output) {
    step_.joined_dims.push_back(-1);
    const NodeId maker = output.value.node;
    if (isOnce(output.value)) {
      return;
    }
    if (stateOf(output.value) == OverTime::kSplit && !output.updates) {
      step_.joined_dims.back() = joinedDim(output.value);
    } else if (stateOf(output.value) != OverTime::kVarying) {
      readOnce(output.value, maker);
    } else if (!output.updates || graph_.node(*output.updates).input->kind != InputKind::kBuffer) {
      refuseMixing(maker, {"a result, or what lives on, is a statistic of each microbatch"});
    }
  }

  // Dim whose outermost part counts samples.
  int joinedDim(ValueRef value) {
    const TensorAtoms& atoms = sharded_.atoms(value);
    for (std::size_t d = 0; d < atoms.dims.size(); ++d) {
      if (!atoms.dims[d].empty() && isTime(value, atoms.dims[d][0])) {
        return static_cast<int>(d);
      }
    }
    refuseMixing(value.node, {"it is returned, and the samples lie within another dim"});
  }

  // What nobody needs within the parts, and what is the same in all, is computed once.
  void runLate() {
    std::vector<bool> in_parts(graph_.nodes().size(), false);
    for (std::size_t result = 0; result < graph_.outputs().size(); ++result) {
      const ValueRef value = graph_.outputs()[result].value;
      const bool kept = step_.joined_dims[result] >= 0 || stateOf(value) != OverTime::kSame;
      in_parts[value.node.index()] = in_parts[value.node.index()] || kept;
    }
    for (std::size_t index = graph_.nodes().size(); index-- > 0;) {
      const NodeId node(index);
      MicrobatchNode& placed = form(node);
      if (placed.once) {
        continue;
      }
      const bool same = std::ranges::all_of(
          placed.outputs, [](OverTime state) { return state == OverTime::kSame; });
      if (!graph_.node(node).input && same && !in_parts[index]) {
        placed.once = true;
        continue;
      }
      for (const ValueRef value : graph_.node(node).operands()) {
        in_parts[value.node.index()] = true;
      }
    }
  }

  ShardingSpec specOf(ValueRef value, bool once) {
    if (!once && stateOf(value) == OverTime::kSplit) {
      return {Placement::shard(timeAtom(value, value.node))};
    }
    return {Placement::replicate()};
  }

  void writeCall(NodeId node) {
    MicrobatchNode& placed = form(node);
    const Node& op = graph_.node(node);
    OpChoice choice;
    choice.node = node;
    std::vector<LocalRef> refs;
    for (const ValueRef value : op.operands()) {
      choice.operands.push_back(specOf(value, placed.once));
      refs.push_back({static_cast<int>(value.node.index()), value.output});
    }
    for (std::size_t o = 0; o < op.outputs.size(); ++o) {
      const ValueRef value{node, static_cast<int>(o)};
      choice.outputs.push_back(specOf(value, placed.once));
      placed.output_shapes.push_back(
          localTensor(sharded_, value, choice.outputs.back(), mesh_shape_).local_shape);
    }
    if (op.input) {
      return;
    }
    placed.call = localCall(sharded_, choice, mesh_shape_, refs);
    if (op.op == kDropout) {
      writeDropout(placed, op);
    } else if (placed.call.op != op.op && placed.call.op != "aten.reshape.default") {
      refuseForeign(node);
    }
    if (countsElements(node)) {
      scaleCounts(node, placed.call);
    }
  }

  // Masks are drawn over the part, from a seed of its own.
  static void writeDropout(MicrobatchNode& placed, const Node& op) {
    placed.call.op = op.op;
    placed.call.args.resize(op.args.size());
    if (placed.call.args.size() > 4) {
      LocalArgList shape;
      for (const std::int64_t size : placed.output_shapes[0]) {
        shape.emplace_back().value = size;
      }
      placed.call.args[4].value = std::move(shape);
    }
  }

  static std::optional<double> numberOf(const LocalArg& arg) {
    if (const auto* integer = std::get_if<std::int64_t>(&arg.value)) {
      return static_cast<double>(*integer);
    }
    const auto* real = std::get_if<double>(&arg.value);
    return real == nullptr ? std::nullopt : std::optional(*real);
  }

  static std::optional<double> numberOf(const Arg& arg) {
    if (const auto* integer = std::get_if<std::int64_t>(&arg.value)) {
      return static_cast<double>(*integer);
    }
    const auto* real = std::get_if<double>(&arg.value);
    return real == nullptr ? std::nullopt : std::optional(*real);
  }

  static double unbiased(std::int64_t count) {
    return static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(count - 1, 1));
  }

  // Whether a node of batch normalisation has the number of elements among its arguments: divides
  // by it, or turns a variance into an unbiased one.
  bool countsElements(NodeId node) const {
    const auto count = options_.statistics.find(node);
    if (count == options_.statistics.end()) {
      return false;
    }
    const Node& op = graph_.node(node);
    return std::ranges::any_of(op.args, [&](const Arg& arg) {
      const std::optional<double> number = numberOf(arg);
      return number && ((isDivision(op) && *number == static_cast<double>(count->second)) ||
                        (isProduct(op) && *number == unbiased(count->second)));
    });
  }

  static bool isDivision(const Node& op) { return op.op.starts_with("aten.div."); }
  static bool isProduct(const Node& op) { return op.op.starts_with("aten.mul."); }

  void scaleCounts(NodeId node, LocalCall& call) const {
    const std::int64_t whole = options_.statistics.at(node);
    const std::int64_t part = whole / options_.num_microbatches;
    for (LocalArg& arg : call.args) {
      if (numberOf(arg)) {
        if (isDivision(graph_.node(node))) {
          arg.value = part;
        } else {
          arg.value = unbiased(part);
        }
      }
    }
  }

  const ShardedGraph& sharded_;
  const Graph& graph_;
  const MicrobatchOptions& options_;
  AtomClasses classes_;
  std::vector<int> mesh_shape_;
  std::vector<int> time_classes_;
  std::vector<bool> batch_only_;                   // by node
  std::vector<bool> follows_update_;               // by node
  std::vector<std::vector<bool>> is_accumulated_;  // by node and output
  MicrobatchStep step_;
};

}  // namespace

MicrobatchStep cutOverTime(const ShardedGraph& graph, const MicrobatchOptions& options) {
  return Cutter(graph, options).run();
}

}  // namespace shardwright
