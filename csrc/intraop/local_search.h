// Primal moves on a choice: repair of memory, single moves, edge-pair moves, and switching whole
// independent pieces of the difference between two choices.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "intraop/reduced_problem.h"
#include "intraop/row_loads.h"
#include "intraop/work_meter.h"

namespace shardwright {

class LocalSearch {
 public:
  // problem and meter must outlive this. stop is asked between moves.
  LocalSearch(const ReducedProblem& problem, std::vector<int32_t> labels, WorkMeter& meter,
              std::function<bool()> stop = {});

  const std::vector<int32_t>& labels() const { return labels_; }
  bool fits() const { return loads_.maximum() <= 0; }
  double cost() const { return problem_.costOf(labels_); }
  // Greatest overload of all rows; negative when there is room.
  int64_t worstOverload() const { return loads_.maximum(); }

  // Moves the cheapest bytes at the worst row until everything fits; false when it gets stuck.
  bool repair(int max_moves);
  // Single moves until none helps, then pair moves along edges, and again. Keeps memory.
  void improve(bool with_pairs);
  // Takes over from `other`, piece by piece (connected sets of variables on which the two differ),
  // what lowers the cost and fits. Returns whether anything was taken.
  bool adopt(const std::vector<int32_t>& other);
  // Takes over pieces of `other` that lower the overload, cheapest per byte first, until it fits.
  bool retreat(const std::vector<int32_t>& other);

 private:
  struct Piece {
    std::vector<int32_t> variables;
    double cost_change = 0.0;
  };

  // What each value of v costs in all, its neighbours staying as they are.
  const double* valueCosts(int32_t v);
  // The same written to `costs`, without one edge (or none).
  void addNeighbours(int32_t v, const ReducedEdge* left_out, double* costs) const;
  bool moveFits(int32_t v, int32_t value) const;
  void move(int32_t v, int32_t value);
  void shiftLoads(int32_t v, int32_t from, int32_t to);
  void relabel(int32_t v, int32_t value);
  bool improveSingles();
  bool improveSingle(int32_t v);
  bool improvePairs();
  bool improvePair(const ReducedEdge& edge);
  std::vector<Piece> piecesOf(const std::vector<int32_t>& other) const;
  void movePiece(const Piece& piece, const std::vector<int32_t>& labels);
  bool stopped() const { return stop_ && stop_(); }

  const ReducedProblem& problem_;
  std::vector<int32_t> labels_;
  RowLoads loads_;
  std::vector<size_t> first_value_;  // of each variable in value_costs_
  std::vector<double> value_costs_;
  std::vector<char> is_stale_;    // value costs of a variable are out of date
  std::vector<char> try_single_;  // something changed around a variable since its last try
  std::vector<char> try_pairs_;
  std::vector<double> costs_u_, costs_v_;  // scratch
  WorkMeter& meter_;
  std::function<bool()> stop_;
};

}  // namespace shardwright
