// Least costs over the values of a few kept nodes of a problem, everything else eliminated; where
// that is too wide, on values that cannot be excluded or, failing that, on the most promising ones.
// Private to layer_costs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "intraop/elimination.h"
#include "intraop/problem.h"
#include "intraop/reduced_problem.h"
#include "intraop/reduction.h"

namespace shardwright {

class PortElimination {
 public:
  // `allowed`: by kept node, the strategies of interest, ascending. `problem` must outlive this and
  // have no memory limit. At most about `max_work` table entries are visited.
  PortElimination(const Problem& problem, const std::vector<std::int32_t>& kept_nodes,
                  const std::vector<std::vector<std::int32_t>>& allowed, double max_work);

  // For every combination of the kept nodes' strategies, the first slowest; infinity where there is
  // no choice, or none is wanted.
  const std::vector<double>& costs() const { return costs_; }
  // Whether these are the least costs; otherwise each is the cost of a good choice, and where none
  // was found there may be one.
  bool isExact() const { return is_exact_; }
  // Costs are rounded down by so many bits (see Reduction::costShift).
  int costShift() const { return cost_shift_; }
  // The choice of every node that attains a finite cost.
  std::vector<std::int32_t> choice(const std::vector<std::int32_t>& kept_strategies) const;

 private:
  struct Candidate;
  std::unique_ptr<Candidate> narrowed(const Candidate& whole,
                                      const std::vector<std::vector<std::int32_t>>& values) const;
  std::unique_ptr<Candidate> narrow(const Candidate& whole, double max_work);
  void use(std::unique_ptr<Candidate> candidate);

  struct Deleter {
    void operator()(Candidate* candidate) const;
  };

  const Problem& problem_;
  std::vector<std::int32_t> kept_nodes_;
  std::unique_ptr<Candidate, Deleter> used_;
  std::vector<double> costs_;
  bool is_exact_ = true;
  int cost_shift_ = 0;
};

}  // namespace shardwright
