// Writes one node's sharding rule: factors by size, then the factors of each operand and output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "sharding/rule.h"

namespace shardwright {

// Stands for "no factor here": a dim of size 1, or one that is broadcast.
inline constexpr int kNoFactor = -1;

using Shape = std::vector<std::int64_t>;
// The factors of each dim of a tensor, outer to inner; kNoFactor entries count for nothing.
using DimFactors = std::vector<std::vector<int>>;

// Example, aten.mm:
//
//   RuleBuilder rule(graph, node);
//   const int m = rule.addFactor(rule.operandShape(0)[0]);
//   const int k = rule.addFactor(rule.operandShape(0)[1]);
//   const int n = rule.addFactor(rule.operandShape(1)[1]);
//   rule.setOperand(0, {m, k});
//   rule.setOperand(1, {k, n});
//   rule.setOutput(0, {m, n});
//   rule.addPartial({0});  // either factor may be pending
//   rule.addPartial({1});
//   return rule.finish();
class RuleBuilder {
 public:
  RuleBuilder(const Graph& graph, const Node& node);

  const Node& node() const { return *node_; }
  int numOperands() const { return static_cast<int>(operands_.size()); }
  int numOutputs() const { return static_cast<int>(node_->outputs.size()); }
  const TensorMeta& operandMeta(int operand) const;
  const Shape& operandShape(int operand) const { return operandMeta(operand).shape; }
  const Shape& outputShape(int output) const;
  // False for an output that is not computed (shape {0}).
  bool isComputed(int output) const;

  // Index of the first tensor in argument `arg` among the operands; nullopt if it holds none.
  std::optional<int> operandOfArg(int arg) const;
  // The argument at `arg`, or `otherwise` when it is omitted or None.
  std::int64_t intArg(int arg, std::int64_t otherwise) const;
  bool boolArg(int arg, bool otherwise) const;
  double numberArg(int arg, double otherwise) const;
  // Integers of a list argument (a bare integer counts as a list of one); empty when omitted.
  std::vector<std::int64_t> intsArg(int arg) const;
  std::vector<bool> boolsArg(int arg) const;
  const Arg* kwarg(const std::string& name) const;

  // A new factor; kNoFactor for size 1 and 0.
  int addFactor(std::int64_t size);
  int addBlocked(std::int64_t size);
  int addReduction(std::int64_t size, ReduceOp reduce);
  int addNeedsOffset(std::int64_t size);
  // One factor per dim of `shape`.
  std::vector<int> addFactors(const Shape& shape);

  // One factor per dim.
  void setOperand(int operand, const std::vector<int>& factors);
  void setOutput(int output, const std::vector<int>& factors);
  // Any number of factors per dim.
  void setOperandDims(int operand, DimFactors dims);
  void setOutputDims(int output, DimFactors dims);
  // Every dim gets a blocked factor of its own.
  void blockOperand(int operand);
  void blockOutput(int output);

  ShardingRule& rule() { return rule_; }
  // A pending sum on all of `operands` passes to all computed outputs.
  void addPartial(const std::vector<int>& operands);
  void addEdit(ArgEdit edit) { rule_.edits.push_back(edit); }
  void setFlops(double flops) { rule_.flops = flops; }

  ShardingRule finish();

 private:
  const Graph* graph_;
  const Node* node_;
  std::vector<ValueRef> operands_;
  ShardingRule rule_;
};

// `dim` of a tensor of `rank` dims as an index, -1 counting from the end.
int wrapDim(std::int64_t dim, int rank);
// Number of elements as a double, for flops.
double elementCount(const Shape& shape);
// The factor of each dim of a tensor of `rank` dims that is broadcast (right-aligned) against a
// tensor with `factors`, given its own sizes.
std::vector<int> broadcastFactors(const Shape& shape, const std::vector<int>& factors);

}  // namespace shardwright
