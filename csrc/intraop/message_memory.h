// What message passing learned on one state of a reduction, kept for the next: fixing and
// contraction renumber variables and values, but original nodes and strategies stay. Any messages
// give a valid bound, so this only saves sweeps.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "intraop/message_passing.h"
#include "intraop/reduced_problem.h"
#include "intraop/table_pool.h"

namespace shardwright {

class MessageMemory {
 public:
  // pool is the one of the reduction that all problems handed in are read from.
  explicit MessageMemory(const TablePool& pool) : pool_(&pool) {}

  // Takes down the messages of a problem, in place of those known before.
  void store(const ReducedProblem& problem, const MessagePassing& passing);
  // Starts the messages of a later state. A variable that has merged others receives what they
  // received.
  void recall(const ReducedProblem& problem, MessagePassing& passing) const;

  // Ascent on the memory multipliers: direction (bytes) per layout row, and the gain aimed at.
  void storeAscent(const ReducedProblem& problem, const std::vector<double>& direction,
                   double target_gain);
  std::vector<double> recallDirection(const ReducedProblem& problem) const;
  // 0 when nothing is known.
  double targetGain() const { return target_gain_; }

 private:
  const TablePool* pool_;
  // By sending and receiving node; one cost per strategy of the receiver.
  std::unordered_map<uint64_t, std::vector<double>> messages_;
  std::vector<char> is_known_;  // nodes that sent messages
  std::map<int32_t, double> direction_of_row_;
  double target_gain_ = 0.0;
};

}  // namespace shardwright
