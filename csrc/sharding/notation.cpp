#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sharding/registry.h"

namespace shardwright {
namespace {

[[noreturn]] void fail(const std::string& notation, const Node& node, const std::string& problem) {
  throw Error(ErrorKind::kRule, "E202", "the sharding rule of " + node.op + " does not fit.",
              {.values = {problem, "rule: " + notation, "node: " + node.name},
               .where = node.source,
               .advice = "write one name per dim, as in \"b m k, b k n -> b m n\"; see "
                         "sw.register_rule"});
}

// The dims of one tensor as factor names, outer to inner; a "1" has none.
using NamedDims = std::vector<std::vector<std::string>>;

class Parser {
 public:
  Parser(const std::string& notation, const Graph& graph, const Node& node,
         const std::map<std::string, std::int64_t>& sizes)
      : notation_(notation), graph_(graph), node_(node), sizes_(sizes) {}

  ShardingRule parse() {
    const std::size_t arrow = notation_.find("->");
    if (arrow == std::string::npos || notation_.find("->", arrow + 2) != std::string::npos) {
      problem("the text needs exactly one \"->\"");
    }
    const std::vector<ValueRef> operands = node_.operands();
    const std::vector<NamedDims> left = tensors(notation_.substr(0, arrow), operands.size());
    const std::vector<NamedDims> right = tensors(notation_.substr(arrow + 2), node_.outputs.size());
    if (left.size() != operands.size() || right.size() != node_.outputs.size()) {
      problem("the text has " + std::to_string(left.size()) + " operands and " +
              std::to_string(right.size()) + " outputs, the node " +
              std::to_string(operands.size()) + " and " + std::to_string(node_.outputs.size()));
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      measure(left[i], graph_.meta(operands[i]), "operand " + std::to_string(i));
    }
    for (std::size_t o = 0; o < right.size(); ++o) {
      measure(right[o], node_.outputs[o], "output " + std::to_string(o));
    }
    solveGroups();
    ShardingRule rule;
    for (const NamedDims& tensor : left) {
      rule.operands.push_back(map(tensor, rule));
    }
    for (const NamedDims& tensor : right) {
      rule.outputs.push_back(map(tensor, rule));
    }
    rule.aliases.assign(right.size(), -1);
    return rule;
  }

 private:
  [[noreturn]] void problem(const std::string& text) const { fail(notation_, node_, text); }

  std::vector<NamedDims> tensors(const std::string& text, std::size_t expected) {
    std::vector<NamedDims> result;
    std::size_t start = 0;
    for (;;) {
      const std::size_t comma = text.find(',', start);
      result.push_back(dims(text.substr(start, comma - start)));
      if (comma == std::string::npos) {
        break;
      }
      start = comma + 1;
    }
    if (expected == 0 && result.size() == 1 && result[0].empty()) {
      result.clear();
    }
    return result;
  }

  NamedDims dims(const std::string& text) {
    NamedDims result;
    bool in_group = false;
    std::size_t position = 0;
    while (position < text.size()) {
      const char c = text[position];
      if (std::isspace(static_cast<unsigned char>(c)) != 0) {
        ++position;
      } else if (c == '(' && !in_group) {
        in_group = true;
        result.emplace_back();
        ++position;
      } else if (c == ')' && in_group) {
        in_group = false;
        ++position;
      } else if (c == '1' && !in_group) {
        result.emplace_back();
        ++position;
      } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
        const std::string name = identifier(text, position);
        if (!in_group) {
          result.emplace_back();
        }
        result.back().push_back(name);
      } else {
        problem(std::string("unexpected \"") + c + "\"");
      }
    }
    if (in_group) {
      problem("a \"(\" is not closed");
    }
    return result;
  }

  std::string identifier(const std::string& text, std::size_t& position) {
    std::string name;
    while (
        position < text.size() &&
        (std::isalnum(static_cast<unsigned char>(text[position])) != 0 || text[position] == '_')) {
      name.push_back(text[position++]);
    }
    if (position < text.size() && text[position] == '*') {
      blocked_[name] = true;
      ++position;
    }
    return name;
  }

  // Learns the sizes of names that stand alone and remembers the groups.
  void measure(const NamedDims& tensor, const TensorMeta& meta, const std::string& what) {
    if (tensor.size() != meta.shape.size()) {
      problem(what + " has " + std::to_string(meta.shape.size()) + " dims, the text " +
              std::to_string(tensor.size()));
    }
    for (std::size_t d = 0; d < tensor.size(); ++d) {
      if (tensor[d].size() == 1) {
        learn(tensor[d][0], meta.shape[d]);
      } else {
        groups_.emplace_back(tensor[d], meta.shape[d]);
      }
    }
  }

  void learn(const std::string& name, std::int64_t size) {
    const auto [entry, is_new] = sizes_.try_emplace(name, size);
    if (!is_new && entry->second != size) {
      problem("\"" + name + "\" is both " + std::to_string(entry->second) + " and " +
              std::to_string(size));
    }
  }

  void solveGroups() {
    for (std::size_t round = 0; round <= groups_.size(); ++round) {
      for (const auto& [names, size] : groups_) {
        std::int64_t known = 1;
        std::vector<std::string> unknown;
        for (const std::string& name : names) {
          const auto found = sizes_.find(name);
          if (found == sizes_.end()) {
            unknown.push_back(name);
          } else {
            known *= found->second;
          }
        }
        if (unknown.size() == 1 && known > 0 && size % known == 0) {
          sizes_[unknown[0]] = size / known;
        } else if (unknown.empty() && known != size) {
          problem("a dim of size " + std::to_string(size) + " is written with factors of product " +
                  std::to_string(known));
        } else if (!unknown.empty() && round == groups_.size()) {
          problem("the size of \"" + unknown[0] + "\" is not known; give it in sizes");
        }
      }
    }
  }

  TensorMap map(const NamedDims& tensor, ShardingRule& rule) {
    TensorMap result;
    for (const std::vector<std::string>& names : tensor) {
      std::vector<int>& dim = result.dims.emplace_back();
      for (const std::string& name : names) {
        const std::int64_t size = sizes_.at(name);
        if (size <= 1) {
          continue;
        }
        const auto [entry, is_new] =
            factors_.try_emplace(name, static_cast<int>(rule.factors.size()));
        if (is_new) {
          Factor factor;
          factor.size = size;
          factor.blocked = blocked_.contains(name);
          rule.factors.push_back(factor);
        }
        dim.push_back(entry->second);
      }
    }
    return result;
  }

  const std::string& notation_;
  const Graph& graph_;
  const Node& node_;
  std::map<std::string, std::int64_t> sizes_;
  std::map<std::string, bool> blocked_;
  std::map<std::string, int> factors_;
  std::vector<std::pair<std::vector<std::string>, std::int64_t>> groups_;
};

}  // namespace

ShardingRule ruleFromNotation(const std::string& notation, const Graph& graph, const Node& node,
                              const std::map<std::string, std::int64_t>& sizes) {
  return Parser(notation, graph, node, sizes).parse();
}

}  // namespace shardwright
