#include "graph/graph.h"

#include <array>
#include <string_view>
#include <unordered_set>

#include "base/checked.h"
#include "base/error.h"

namespace shardwright {
namespace {

struct DTypeFacts {
  DType dtype;
  const char* name;
  std::int64_t bytes;
  bool floating;
};

constexpr std::array<DTypeFacts, 10> kDTypes = {{
    {DType::kFloat64, "float64", 8, true},
    {DType::kFloat32, "float32", 4, true},
    {DType::kFloat16, "float16", 2, true},
    {DType::kBFloat16, "bfloat16", 2, true},
    {DType::kInt64, "int64", 8, false},
    {DType::kInt32, "int32", 4, false},
    {DType::kInt16, "int16", 2, false},
    {DType::kInt8, "int8", 1, false},
    {DType::kUInt8, "uint8", 1, false},
    {DType::kBool, "bool", 1, false},
}};

// The table is in the order of the enumeration.
const DTypeFacts& facts(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

void collectValues(const Arg& arg, std::vector<ValueRef>& values) {
  if (const ValueRef* value = arg.asValue()) {
    values.push_back(*value);
  } else if (const ArgList* list = arg.asList()) {
    for (const Arg& element : *list) {
      collectValues(element, values);
    }
  }
}

[[noreturn]] void throwMalformed(const std::string& summary, const Node& node,
                                 std::vector<std::string> values = {}) {
  values.insert(values.begin(), "op: " + node.op);
  throw Error(ErrorKind::kCapture, "E121", summary,
              {.values = std::move(values),
               .where = node.source,
               .advice = "capture the step again; if this persists, report the node above"});
}

}  // namespace

std::int64_t elementBytes(DType dtype) { return facts(dtype).bytes; }

const char* dtypeName(DType dtype) { return facts(dtype).name; }

DType parseDType(const std::string& name) {
  for (const DTypeFacts& entry : kDTypes) {
    if (name == entry.name) {
      return entry.dtype;
    }
  }
  throw Error(ErrorKind::kCapture, "E120", "tensors of dtype " + name + " cannot be sharded.",
              {.advice = "keep tensors of this dtype out of the step, or cast them"});
}

bool isFloating(DType dtype) { return facts(dtype).floating; }

std::int64_t TensorMeta::numElements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count = checkedMul(count, size);
  }
  return count;
}

std::int64_t TensorMeta::bytes() const { return checkedMul(numElements(), elementBytes(dtype)); }

const char* phaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "";
}

const char* inputKindName(InputKind kind) {
  switch (kind) {
    case InputKind::kParameter:
      return "parameter";
    case InputKind::kBuffer:
      return "buffer";
    case InputKind::kOptimizerState:
      return "optimizer_state";
    case InputKind::kBatch:
      return "batch";
    case InputKind::kHyper:
      return "hyper";
    case InputKind::kRng:
      return "rng";
    case InputKind::kConstant:
      return "constant";
  }
  return "";
}

std::vector<ValueRef> Node::operands() const {
  std::vector<ValueRef> values;
  for (const Arg& arg : args) {
    collectValues(arg, values);
  }
  for (const auto& [keyword, arg] : kwargs) {
    collectValues(arg, values);
  }
  return values;
}

Graph::Graph(std::vector<Node> nodes, std::vector<GraphOutput> outputs)
    : nodes_(std::move(nodes)), outputs_(std::move(outputs)) {
  uses_.resize(nodes_.size());
  std::unordered_set<std::string_view> names;
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    uses_[index].resize(node.outputs.size());
    if (!names.insert(node.name).second) {
      throwMalformed("two nodes of the graph are called " + node.name + ".", node);
    }
    const std::vector<ValueRef> operands = node.operands();
    for (std::size_t operand = 0; operand < operands.size(); ++operand) {
      const ValueRef value = operands[operand];
      if (!value.node.isValid() || value.node.index() >= index || value.output < 0 ||
          static_cast<std::size_t>(value.output) >= uses_[value.node.index()].size()) {
        throwMalformed("operand " + std::to_string(operand) + " of node " + node.name +
                           " is not defined before it.",
                       node);
      }
      uses_[value.node.index()][static_cast<std::size_t>(value.output)].push_back(
          {NodeId(index), static_cast<int>(operand)});
    }
  }
  for (const GraphOutput& output : outputs_) {
    const NodeId id = output.value.node;
    if (!id.isValid() || id.index() >= nodes_.size() || output.value.output < 0 ||
        static_cast<std::size_t>(output.value.output) >= uses_[id.index()].size()) {
      throw Error(ErrorKind::kCapture, "E121", "an output of the graph names no value.",
                  {.advice = "capture the step again; if this persists, report it"});
    }
    if (!output.updates) {
      continue;
    }
    if (!output.updates->isValid() || output.updates->index() >= nodes_.size() ||
        nodes_[output.updates->index()].op != "input") {
      throwMalformed("an output of the graph updates a node that is no input.", nodes_[id.index()]);
    }
    if (meta(output.value) != nodes_[output.updates->index()].outputs.at(0)) {
      throwMalformed("the new value of input " + nodes_[output.updates->index()].name +
                         " has another shape or dtype than the input.",
                     nodes_[id.index()]);
    }
  }
}

const TensorMeta& Graph::meta(ValueRef value) const {
  return nodes_[value.node.index()].outputs[static_cast<std::size_t>(value.output)];
}

const std::vector<Use>& Graph::uses(ValueRef value) const {
  return uses_[value.node.index()][static_cast<std::size_t>(value.output)];
}

}  // namespace shardwright
