// The op table handed over by capture: one node per operation of the whole training step, in
// execution order, with typed arguments and tensor metadata. Immutable once built.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"

namespace shardwright {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
};

// Bytes of one element: 8 for kFloat64, 2 for kBFloat16, 1 for kBool.
std::int64_t elementBytes(DType dtype);
// "float32", "bfloat16", ...: torch's names without the "torch." prefix. parseDType throws
// GraphError [E120] for a name that is not in the enumeration.
const char* dtypeName(DType dtype);
DType parseDType(const std::string& name);
bool isFloating(DType dtype);

// Shape and element type of one tensor; the shape is the global (unsharded) one.
struct TensorMeta {
  std::vector<std::int64_t> shape;
  DType dtype = DType::kFloat32;

  std::int64_t numElements() const;
  std::int64_t bytes() const;  // numElements() * elementBytes(dtype), checked
  bool operator==(const TensorMeta&) const = default;
};

// One tensor of the step: output `output` of node `node`.
struct ValueRef {
  NodeId node;
  int output = 0;

  bool operator==(const ValueRef&) const = default;
  auto operator<=>(const ValueRef&) const = default;
};

// One argument of an op as it stands in the fx graph. None is std::monostate. A dtype, device,
// layout or memory-format argument arrives as a string.
struct Arg;
using ArgList = std::vector<Arg>;
struct Arg {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, ValueRef, ArgList> value;

  bool isNone() const { return std::holds_alternative<std::monostate>(value); }
  const ValueRef* asValue() const { return std::get_if<ValueRef>(&value); }
  const ArgList* asList() const { return std::get_if<ArgList>(&value); }
};

// Part of the step a node belongs to: loss computation; loss.backward(); clipping and optimizer.
enum class Phase : std::uint8_t { kForward, kBackward, kUpdate };
const char* phaseName(Phase phase);  // "forward", "backward", "update"

enum class InputKind : std::uint8_t {
  kParameter,
  kBuffer,
  kOptimizerState,
  kBatch,
  kHyper,     // learning rate, betas, ...: 0-d host scalars, never sharded
  kRng,       // seed of this step's random streams
  kConstant,  // non-uniform constant tensor met while tracing
};
const char* inputKindName(InputKind kind);

// What a graph input is for the user.
struct InputLabel {
  InputKind kind = InputKind::kBatch;
  std::string name;       // unsharded name, e.g. "layers.0.mlp.up.weight"
  std::string parameter;  // owner of an optimizer state, else ""
  std::string key;        // "exp_avg", "lr", ..., else ""
  // Received anew for every microbatch, in memory until that one's backward is done.
  bool per_microbatch = false;
};

// One op. `op` is torch's qualified overload name, e.g. "aten.mm.default", or
// "shardwright.adam_update.default"; graph inputs have op "input" and a label.
struct Node {
  std::string name;  // fx name, unique
  std::string op;
  ArgList args;
  std::vector<std::pair<std::string, Arg>> kwargs;
  std::vector<TensorMeta> outputs;  // an output that is not computed (output_mask) has shape {0}
  Phase phase = Phase::kForward;
  std::string module_path;  // "layers.3.mlp.up", "" when unknown
  std::string source;       // "train.py:41", "" when unknown
  // Which recorded forward op this node is, differentiates or computes again: forward ops are
  // numbered as the user's code ran them. -1 when unknown, as for the engine's sums of gradients.
  std::int64_t forward_index = -1;
  int layer_marks = 0;  // of a forward op: how many calls of sw.mark_layer() came before it
  // Of a backward in two parts: whether it is of the second, run at another time (zero-bubble).
  bool is_late = false;
  std::optional<InputLabel> input;

  // Tensor operands in order: values in args depth first, then in kwargs. A value used twice
  // appears twice.
  std::vector<ValueRef> operands() const;
};

// One output of the step: a value the user's function returns, or the new value of an input.
struct GraphOutput {
  ValueRef value;
  std::optional<NodeId> updates;  // the input node whose storage takes this value
};

// One consumer of a value: operand `operand` (index into Node::operands()) of `node`.
struct Use {
  NodeId node;
  int operand = 0;
};

class Graph {
 public:
  // Checks that names are unique, values are defined before use and outputs resolve.
  // Throws GraphError [E121] naming the node.
  Graph(std::vector<Node> nodes, std::vector<GraphOutput> outputs);

  int numNodes() const { return static_cast<int>(nodes_.size()); }
  const Node& node(NodeId id) const { return nodes_[id.index()]; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  const TensorMeta& meta(ValueRef value) const;
  // Consumers of `value` in execution order; graph outputs are not consumers.
  const std::vector<Use>& uses(ValueRef value) const;

 private:
  std::vector<Node> nodes_;
  std::vector<GraphOutput> outputs_;
  std::vector<std::vector<std::vector<Use>>> uses_;  // [node][output]
};

}  // namespace shardwright
