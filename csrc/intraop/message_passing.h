// Sequential tree-reweighted message passing on a ReducedProblem: bounds where exact elimination is
// too wide. Every number is a multiple of the problem's quantum, so the bounds hold exactly.
// Source: Kolmogorov, "Convergent tree-reweighted message passing", PAMI 28 (2006).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "intraop/elimination.h"
#include "intraop/weighted_costs.h"

namespace shardwright {

class MessagePassing {
 public:
  // problem must be arc consistent and outlive this.
  explicit MessagePassing(const ReducedProblem& problem);

  // Unary costs with memory priced in; messages stay, as they are valid under any costs.
  void setCosts(WeightedCosts costs);

  // Messages over an edge to its earlier end u and to its later end v. Any values are valid; what
  // is set is rounded to the problem's quantum.
  std::span<const double> messageToU(size_t e) const;
  std::span<const double> messageToV(size_t e) const;
  void setMessageToU(size_t e, std::span<const double> costs);
  void setMessageToV(size_t e, std::span<const double> costs);

  // Pairs of neighbouring variables that gain most when each pair becomes one variable: pairwise
  // messages cannot see that the cheapest entries around a triangle contradict each other, a joint
  // variable can. Disjoint, best first, at most doubling the entries of all tables.
  std::vector<std::pair<int32_t, int32_t>> worthJoining();

  // One forward and one backward pass. Returns a lower bound on every choice within memory.
  double sweep();
  // A choice read off during the last forward pass, each variable given the earlier ones.
  const std::vector<int32_t>& labels() const { return labels_; }

  // One more sweep; bounds on the cost of every choice that takes a value, per variable and value.
  // The bound of one sweep belongs to one set of messages: mixing sweeps would cut off optima.
  MarginalResult marginals();

 private:
  struct Side {
    int32_t edge = 0;
    int32_t other = 0;
    const Matrix* table = nullptr;  // rows are this variable's values
    size_t from_other = 0;          // offset of the message that comes in over this edge
    size_t to_other = 0;
  };
  struct Node {
    std::vector<Side> earlier;
    std::vector<Side> later;
    double share = 1.0;
  };

  void setMessage(size_t offset, std::span<const double> costs);
  size_t gather(int32_t v);
  void decide(int32_t v);
  double send(const Side& side, double share, size_t n);
  double forward(std::vector<double>* passed);

  const ReducedProblem& problem_;
  WeightedCosts costs_;
  std::vector<Node> nodes_;
  std::vector<double> messages_;
  std::vector<size_t> to_v_;      // offset of each edge's messages: to v first, then to u
  std::vector<double> incoming_;  // scratch: own cost plus all messages
  std::vector<double> base_;
  std::vector<int32_t> labels_;
  double cap_;
};

}  // namespace shardwright
