#include "sharding/refinement.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace shardwright {
namespace {

// One tensor of a rule with the value it stands for.
struct Occurrence {
  const TensorMap* map;
  ValueRef value;
};

std::vector<Occurrence> occurrences(std::size_t node, const ShardingRule& rule,
                                    const std::vector<ValueRef>& operands) {
  std::vector<Occurrence> result;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    result.push_back({&rule.operands[i], operands[i]});
  }
  for (std::size_t o = 0; o < rule.outputs.size(); ++o) {
    result.push_back({&rule.outputs[o], {NodeId(node), static_cast<int>(o)}});
  }
  return result;
}

class DisjointSets {
 public:
  explicit DisjointSets(std::size_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  }
  std::size_t find(std::size_t element) {
    while (parent_[element] != element) {
      parent_[element] = parent_[parent_[element]];
      element = parent_[element];
    }
    return element;
  }
  // The smaller representative stays, so that groups are numbered by their first member.
  void merge(std::size_t a, std::size_t b) {
    a = find(a);
    b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parent_;
};

}  // namespace

Refinement::Refinement(const Graph& graph, const std::vector<ShardingRule>& rules) {
  addDims(graph);
  link_of_factor_.resize(rules.size());
  for (std::size_t node = 0; node < rules.size(); ++node) {
    addNode(node, rules[node], graph.node(NodeId(node)).operands());
  }
  for (const GraphOutput& output : graph.outputs()) {
    if (output.updates) {
      addUpdate(graph, output);
    }
  }
}

const Cuts& Refinement::cuts(ValueRef value, int dim) const {
  return dims_[static_cast<std::size_t>(dimIndex(value, dim))].cuts;
}

bool Refinement::isDropped(NodeId node, int factor) const {
  const int link = link_of_factor_[node.index()][static_cast<std::size_t>(factor)];
  return link >= 0 && links_[static_cast<std::size_t>(link)].dropped;
}

int Refinement::dimIndex(ValueRef value, int dim) const {
  return first_dim_[value.node.index()][static_cast<std::size_t>(value.output)] + dim;
}

void Refinement::addDims(const Graph& graph) {
  first_dim_.resize(graph.nodes().size());
  for (std::size_t node = 0; node < graph.nodes().size(); ++node) {
    for (const TensorMeta& meta : graph.nodes()[node].outputs) {
      first_dim_[node].push_back(static_cast<int>(dims_.size()));
      for (const std::int64_t size : meta.shape) {
        Dim dim;
        dim.size = size;
        dims_.push_back(std::move(dim));
      }
    }
  }
}

void Refinement::addNode(std::size_t node, const ShardingRule& rule,
                         const std::vector<ValueRef>& operands) {
  const std::vector<Occurrence> tensors = occurrences(node, rule, operands);
  DisjointSets sets(rule.factors.size());
  std::vector<bool> appears(rule.factors.size(), false);
  for (const Occurrence& tensor : tensors) {
    for (const std::vector<int>& dim : tensor.map->dims) {
      for (const int factor : dim) {
        appears[static_cast<std::size_t>(factor)] = true;
        sets.merge(static_cast<std::size_t>(dim[0]), static_cast<std::size_t>(factor));
      }
    }
  }
  std::map<std::size_t, Link> link_of_set;
  // A blocked factor is never sharded, so its places need not be cut alike: each is its own group.
  int next_group = static_cast<int>(rule.factors.size());
  for (const Occurrence& tensor : tensors) {
    for (std::size_t d = 0; d < tensor.map->dims.size(); ++d) {
      const std::vector<int>& dim = tensor.map->dims[d];
      std::int64_t stride = 1;
      for (auto factor = dim.rbegin(); factor != dim.rend(); ++factor) {
        const Factor& facts = rule.factors[static_cast<std::size_t>(*factor)];
        Piece piece;
        piece.dim = dimIndex(tensor.value, static_cast<int>(d));
        piece.group = facts.blocked ? next_group++ : *factor;
        piece.stride = stride;
        piece.size = facts.size;
        link_of_set[sets.find(static_cast<std::size_t>(*factor))].pieces.push_back(piece);
        stride *= facts.size;
      }
    }
  }
  std::vector<int>& link_of_factor = link_of_factor_[node];
  link_of_factor.assign(rule.factors.size(), -1);
  for (auto& [set, link] : link_of_set) {
    for (std::size_t factor = 0; factor < rule.factors.size(); ++factor) {
      if (appears[factor] && sets.find(factor) == set) {
        link_of_factor[factor] = static_cast<int>(links_.size());
      }
    }
    accept(std::move(link));
  }
}

void Refinement::addUpdate(const Graph& graph, const GraphOutput& output) {
  const ValueRef input{*output.updates, 0};
  const int rank = static_cast<int>(graph.meta(input).shape.size());
  for (int d = 0; d < rank; ++d) {
    Link link;
    for (const ValueRef value : {input, output.value}) {
      Piece piece;
      piece.dim = dimIndex(value, d);
      piece.size = dims_[static_cast<std::size_t>(piece.dim)].size;
      link.pieces.push_back(piece);
    }
    accept(std::move(link));
  }
}

void Refinement::accept(Link link) {
  links_.push_back(std::move(link));
  const int index = static_cast<int>(links_.size()) - 1;
  if (tryLink(index)) {
    return;
  }
  Link& dropped = links_.back();
  dropped.dropped = true;
  for (auto entry = inserted_.rbegin(); entry != inserted_.rend(); ++entry) {
    std::erase(dims_[static_cast<std::size_t>(entry->first)].cuts, entry->second);
  }
  for (const Piece& piece : dropped.pieces) {
    std::erase_if(dims_[static_cast<std::size_t>(piece.dim)].pieces,
                  [index](const auto& entry) { return entry.first == index; });
  }
}

bool Refinement::tryLink(int link) {
  inserted_.clear();
  const Link& tried = links_[static_cast<std::size_t>(link)];
  for (std::size_t i = 0; i < tried.pieces.size(); ++i) {
    const Piece& piece = tried.pieces[i];
    dims_[static_cast<std::size_t>(piece.dim)].pieces.emplace_back(link, static_cast<int>(i));
    if (!insert(piece.dim, piece.stride) || !insert(piece.dim, piece.stride * piece.size)) {
      return false;
    }
  }
  for (const Piece& piece : tried.pieces) {
    const Cuts cuts = dims_[static_cast<std::size_t>(piece.dim)].cuts;
    for (const std::int64_t cut : cuts) {
      if (!spread(piece, link, cut)) {
        return false;
      }
    }
  }
  for (std::size_t next = 0; next < inserted_.size(); ++next) {
    const auto [dim, cut] = inserted_[next];
    const auto pieces = dims_[static_cast<std::size_t>(dim)].pieces;
    for (const auto& [other, index] : pieces) {
      const Link& holder = links_[static_cast<std::size_t>(other)];
      if (!spread(holder.pieces[static_cast<std::size_t>(index)], other, cut)) {
        return false;
      }
    }
  }
  return true;
}

bool Refinement::insert(int dim_index, std::int64_t cut) {
  Dim& dim = dims_[static_cast<std::size_t>(dim_index)];
  if (cut <= 1 || cut >= dim.size) {
    return true;
  }
  for (const std::int64_t other : dim.cuts) {
    if (other == cut) {
      return true;
    }
    if (other % cut != 0 && cut % other != 0) {
      return false;
    }
  }
  dim.cuts.insert(std::upper_bound(dim.cuts.begin(), dim.cuts.end(), cut, std::greater<>()), cut);
  inserted_.emplace_back(dim_index, cut);
  return true;
}

bool Refinement::spread(const Piece& from, int link, std::int64_t cut) {
  if (cut <= from.stride || cut >= from.stride * from.size) {
    return true;
  }
  const std::int64_t inner = cut / from.stride;
  for (const Piece& to : links_[static_cast<std::size_t>(link)].pieces) {
    if (to.group == from.group && !insert(to.dim, to.stride * inner)) {
      return false;
    }
  }
  return true;
}

}  // namespace shardwright
