// Finds the sharding rule of a node. One file per op family registers its ops (rules/*.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "sharding/rule.h"

namespace shardwright {

using RuleMaker = std::function<ShardingRule(const Graph&, const Node&)>;

// Rules by op name. Built once by builtinRules(); users add their own through sw.register_rule.
class RuleRegistry {
 public:
  // Later registrations of one op replace earlier ones.
  void add(const std::string& op, RuleMaker maker);
  bool contains(const std::string& op) const;
  // Throws RuleError [E201] naming op, node, shapes and source line when the op has no rule: an
  // unknown op is never replicated silently; RuleError [E202] when the rule's factors do not
  // multiply up to the sizes of the node's dims.
  ShardingRule rule(const Graph& graph, NodeId node) const;
  std::vector<std::string> ops() const;  // sorted

 private:
  std::map<std::string, RuleMaker> makers_;
};

// Every rule that ships with shardwright.
RuleRegistry builtinRules();

// Rule from einsum-like text, for sw.register_rule and for simple ops: "b m k, b k n -> b m n".
// Sizes come from the operands' and outputs' shapes; "1" is a size-1 dim, "*" marks a blocked
// factor
// ("n*"), "(h e)" a dim of several factors, outer to inner (all sizes but one must be known from
// elsewhere in the text or from `sizes`). "," parts tensors, an empty part is a 0-d tensor. Throws
// RuleError [E202].
ShardingRule ruleFromNotation(const std::string& notation, const Graph& graph, const Node& node,
                              const std::map<std::string, std::int64_t>& sizes = {});

}  // namespace shardwright
