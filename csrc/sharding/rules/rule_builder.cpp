#include "sharding/rules/rule_builder.h"

#include <algorithm>

namespace shardwright {
namespace {

int countValues(const Arg& arg) {
  if (arg.asValue() != nullptr) {
    return 1;
  }
  int count = 0;
  if (const ArgList* list = arg.asList()) {
    for (const Arg& element : *list) {
      count += countValues(element);
    }
  }
  return count;
}

const Arg* findArg(const Node& node, int arg) {
  const auto position = static_cast<std::size_t>(arg);
  if (position >= node.args.size() || node.args[position].isNone()) {
    return nullptr;
  }
  return &node.args[position];
}

DimFactors withoutNoFactor(DimFactors dims) {
  for (std::vector<int>& dim : dims) {
    std::erase(dim, kNoFactor);
  }
  return dims;
}

DimFactors oneEach(const std::vector<int>& factors) {
  DimFactors dims;
  dims.reserve(factors.size());
  for (const int factor : factors) {
    dims.push_back({factor});
  }
  return dims;
}

}  // namespace

RuleBuilder::RuleBuilder(const Graph& graph, const Node& node)
    : graph_(&graph), node_(&node), operands_(node.operands()) {
  rule_.operands.resize(operands_.size());
  rule_.outputs.resize(node.outputs.size());
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    rule_.operands[i].dims.resize(graph.meta(operands_[i]).shape.size());
  }
  for (std::size_t o = 0; o < node.outputs.size(); ++o) {
    rule_.outputs[o].dims.resize(node.outputs[o].shape.size());
  }
}

const TensorMeta& RuleBuilder::operandMeta(int operand) const {
  return graph_->meta(operands_.at(static_cast<std::size_t>(operand)));
}

const Shape& RuleBuilder::outputShape(int output) const {
  return node_->outputs.at(static_cast<std::size_t>(output)).shape;
}

bool RuleBuilder::isComputed(int output) const { return outputShape(output) != Shape{0}; }

std::optional<int> RuleBuilder::operandOfArg(int arg) const {
  const Arg* found = findArg(*node_, arg);
  if (found == nullptr || countValues(*found) == 0) {
    return std::nullopt;
  }
  int operand = 0;
  for (int i = 0; i < arg; ++i) {
    operand += countValues(node_->args[static_cast<std::size_t>(i)]);
  }
  return operand;
}

std::int64_t RuleBuilder::intArg(int arg, std::int64_t otherwise) const {
  const Arg* found = findArg(*node_, arg);
  const auto* value = found == nullptr ? nullptr : std::get_if<std::int64_t>(&found->value);
  return value == nullptr ? otherwise : *value;
}

bool RuleBuilder::boolArg(int arg, bool otherwise) const {
  const Arg* found = findArg(*node_, arg);
  const auto* value = found == nullptr ? nullptr : std::get_if<bool>(&found->value);
  return value == nullptr ? otherwise : *value;
}

double RuleBuilder::numberArg(int arg, double otherwise) const {
  const Arg* found = findArg(*node_, arg);
  if (found == nullptr) {
    return otherwise;
  }
  if (const auto* real = std::get_if<double>(&found->value)) {
    return *real;
  }
  if (const auto* flag = std::get_if<bool>(&found->value)) {
    return *flag ? 1 : 0;
  }
  const auto* integer = std::get_if<std::int64_t>(&found->value);
  return integer == nullptr ? otherwise : static_cast<double>(*integer);
}

std::vector<std::int64_t> RuleBuilder::intsArg(int arg) const {
  std::vector<std::int64_t> values;
  const Arg* found = findArg(*node_, arg);
  if (found == nullptr) {
    return values;
  }
  if (const auto* single = std::get_if<std::int64_t>(&found->value)) {
    return {*single};
  }
  if (const ArgList* list = found->asList()) {
    for (const Arg& element : *list) {
      if (const auto* value = std::get_if<std::int64_t>(&element.value)) {
        values.push_back(*value);
      }
    }
  }
  return values;
}

std::vector<bool> RuleBuilder::boolsArg(int arg) const {
  std::vector<bool> values;
  const Arg* found = findArg(*node_, arg);
  const ArgList* list = found == nullptr ? nullptr : found->asList();
  if (list != nullptr) {
    for (const Arg& element : *list) {
      const auto* value = std::get_if<bool>(&element.value);
      values.push_back(value != nullptr && *value);
    }
  }
  return values;
}

const Arg* RuleBuilder::kwarg(const std::string& name) const {
  for (const auto& [key, value] : node_->kwargs) {
    if (key == name && !value.isNone()) {
      return &value;
    }
  }
  return nullptr;
}

int RuleBuilder::addFactor(std::int64_t size) {
  if (size <= 1) {
    return kNoFactor;
  }
  Factor factor;
  factor.size = size;
  rule_.factors.push_back(factor);
  return static_cast<int>(rule_.factors.size()) - 1;
}

int RuleBuilder::addBlocked(std::int64_t size) {
  const int factor = addFactor(size);
  if (factor != kNoFactor) {
    rule_.factors.back().blocked = true;
  }
  return factor;
}

int RuleBuilder::addReduction(std::int64_t size, ReduceOp reduce) {
  const int factor = addFactor(size);
  if (factor != kNoFactor) {
    rule_.factors.back().reduce = reduce;
  }
  return factor;
}

int RuleBuilder::addNeedsOffset(std::int64_t size) {
  const int factor = addFactor(size);
  if (factor != kNoFactor) {
    rule_.factors.back().needs_offset = true;
  }
  return factor;
}

std::vector<int> RuleBuilder::addFactors(const Shape& shape) {
  std::vector<int> factors;
  factors.reserve(shape.size());
  for (const std::int64_t size : shape) {
    factors.push_back(addFactor(size));
  }
  return factors;
}

void RuleBuilder::setOperand(int operand, const std::vector<int>& factors) {
  setOperandDims(operand, oneEach(factors));
}

void RuleBuilder::setOutput(int output, const std::vector<int>& factors) {
  setOutputDims(output, oneEach(factors));
}

void RuleBuilder::setOperandDims(int operand, DimFactors dims) {
  rule_.operands.at(static_cast<std::size_t>(operand)).dims = withoutNoFactor(std::move(dims));
}

void RuleBuilder::setOutputDims(int output, DimFactors dims) {
  rule_.outputs.at(static_cast<std::size_t>(output)).dims = withoutNoFactor(std::move(dims));
}

void RuleBuilder::blockOperand(int operand) {
  std::vector<int> factors;
  for (const std::int64_t size : operandShape(operand)) {
    factors.push_back(addBlocked(size));
  }
  setOperand(operand, factors);
}

void RuleBuilder::blockOutput(int output) {
  std::vector<int> factors;
  for (const std::int64_t size : outputShape(output)) {
    factors.push_back(addBlocked(size));
  }
  setOutput(output, factors);
}

void RuleBuilder::addPartial(const std::vector<int>& operands) {
  PartialRule partial;
  partial.operands.assign(operands_.size(), false);
  for (const int operand : operands) {
    partial.operands.at(static_cast<std::size_t>(operand)) = true;
  }
  for (int output = 0; output < numOutputs(); ++output) {
    partial.outputs.push_back(isComputed(output));
  }
  rule_.partials.push_back(std::move(partial));
}

ShardingRule RuleBuilder::finish() {
  rule_.aliases.resize(node_->outputs.size(), -1);
  return std::move(rule_);
}

int wrapDim(std::int64_t dim, int rank) {
  return static_cast<int>(dim < 0 ? dim + std::max(rank, 1) : dim);
}

double elementCount(const Shape& shape) {
  double count = 1;
  for (const std::int64_t size : shape) {
    count *= static_cast<double>(size);
  }
  return count;
}

std::vector<int> broadcastFactors(const Shape& shape, const std::vector<int>& factors) {
  std::vector<int> own(shape.size(), kNoFactor);
  const std::size_t missing = factors.size() - shape.size();
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    own[dim] = shape[dim] == 1 ? kNoFactor : factors[dim + missing];
  }
  return own;
}

}  // namespace shardwright
