// The cuts of every dim of every value, refined over the whole graph to a fixpoint: where an op
// sees a dim as several factors, the dim is cut there, and so is every dim tied to it.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "sharding/rule.h"

namespace shardwright {

// A cut is the number of elements inside it: 12 seen as (3, 4) has cut 4. The cuts of one dim
// divide one another and are kept descending, without 1 and the size.
using Cuts = std::vector<std::int64_t>;

class Refinement {
 public:
  // `rules` are those of the graph's nodes, in order, as the registry gives them.
  Refinement(const Graph& graph, const std::vector<ShardingRule>& rules);

  const Cuts& cuts(ValueRef value, int dim) const;
  // Whether the cuts that `factor` of `node` needs clash with those of earlier nodes, so that it
  // has no place among the atoms.
  bool isDropped(NodeId node, int factor) const;

 private:
  // A factor where it appears: elements [stride, stride * size) of a dim.
  struct Piece {
    int dim = 0;
    int group = 0;  // pieces of one group are cut alike
    std::int64_t stride = 1;
    std::int64_t size = 1;
  };
  // Factors of one node (or one updated input) that share dims: accepted or dropped together.
  struct Link {
    std::vector<Piece> pieces;
    bool dropped = false;
  };
  struct Dim {
    std::int64_t size = 1;
    Cuts cuts;
    std::vector<std::pair<int, int>> pieces;  // accepted (link, piece index)
  };

  int dimIndex(ValueRef value, int dim) const;
  void addDims(const Graph& graph);
  void addNode(std::size_t node, const ShardingRule& rule, const std::vector<ValueRef>& operands);
  void addUpdate(const Graph& graph, const GraphOutput& output);
  void accept(Link link);
  bool tryLink(int link);
  bool insert(int dim, std::int64_t cut);
  bool spread(const Piece& from, int link, std::int64_t cut);

  std::vector<std::vector<int>> first_dim_;  // [node][output]
  std::vector<Dim> dims_;
  std::vector<Link> links_;
  std::vector<std::vector<int>> link_of_factor_;        // [node][factor], -1 = appears nowhere
  std::vector<std::pair<int, std::int64_t>> inserted_;  // by the link being tried, in order
};

}  // namespace shardwright
