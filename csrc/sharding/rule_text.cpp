#include "sharding/rule_text.h"

#include <cstddef>
#include <vector>

namespace shardwright {
namespace {

std::string letters(int factor) {
  std::string name(1, static_cast<char>('a' + factor % 26));
  return factor < 26 ? name : name + std::to_string(factor / 26);
}

std::string dimText(const ShardingRule& rule, const std::vector<int>& dim) {
  if (dim.empty()) {
    return "1";
  }
  std::string text;
  for (const int factor : dim) {
    text += (text.empty() ? "" : " ") + letters(factor);
    text += rule.factors[static_cast<std::size_t>(factor)].blocked ? "*" : "";
  }
  return dim.size() == 1 ? text : "(" + text + ")";
}

std::string tensorsText(const ShardingRule& rule, const std::vector<TensorMap>& maps) {
  std::string text;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    text += i == 0 ? "" : ", ";
    for (std::size_t d = 0; d < maps[i].dims.size(); ++d) {
      text += (d == 0 ? "" : " ") + dimText(rule, maps[i].dims[d]);
    }
  }
  return text;
}

template <typename Predicate>
std::string factorList(const ShardingRule& rule, const char* title, Predicate predicate) {
  std::string text;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    if (predicate(rule.factors[f])) {
      text += (text.empty() ? title : std::string(" ")) + letters(static_cast<int>(f));
    }
  }
  return text;
}

std::string partialsText(const ShardingRule& rule) {
  std::string text;
  for (const PartialRule& partial : rule.partials) {
    text += text.empty() ? "; P: " : " | ";
    std::string operands;
    for (std::size_t i = 0; i < partial.operands.size(); ++i) {
      if (partial.operands[i]) {
        operands += (operands.empty() ? "" : " ") + std::to_string(i);
      }
    }
    text += operands;
  }
  return text;
}

}  // namespace

std::string ruleText(const ShardingRule& rule) {
  return tensorsText(rule, rule.operands) + " -> " + tensorsText(rule, rule.outputs) +
         partialsText(rule) +
         factorList(rule, "; offset: ", [](const Factor& f) { return f.needs_offset; }) +
         factorList(rule, "; max: ", [](const Factor& f) { return f.reduce == ReduceOp::kMax; }) +
         factorList(rule, "; min: ", [](const Factor& f) { return f.reduce == ReduceOp::kMin; });
}

}  // namespace shardwright
