// One pass of an Elimination under given unary costs: messages towards the last variable, the
// choice read back, and min-marginals. Private to elimination*.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "intraop/elimination.h"

namespace shardwright {

class Elimination::Run {
 public:
  Run(const Elimination& plan, const UnaryCosts& unary, const std::function<bool()>& stop)
      : plan_(plan), unary_(unary), stop_(stop) {}

  // Sends every message; false when stopped.
  bool forward();
  // After forward: the least cost, offset included.
  double total() const { return total_; }
  std::vector<int32_t> backtrack() const;
  // After forward: least cost, offset included, for each assignment of the plan's kept variables.
  std::vector<double> jointCosts() const;
  // After forward: hands the tables out; this may not be used afterwards.
  EliminationTables takeTables();
  // After forward: least cost per variable and value; nothing when stopped.
  std::optional<UnaryCosts> marginals();

  // One table in a bucket, seen from the step: strides for the step's variable and its scope.
  struct Factor {
    const double* costs = nullptr;
    size_t own_stride = 0;
    std::vector<size_t> scope_strides;  // 0 where the table does not depend on that variable
  };
  // The tables in the bucket of step s, whose children have been sent.
  std::vector<Factor> factorsOf(size_t s) const;
  // Gives the step's variable its best label under those of its scope.
  void choose(size_t s, const std::vector<Factor>& factors, std::vector<int32_t>& labels) const;

 private:
  class RowWalk;
  class BaseCosts;
  // Costs over a step's scope, first variable slowest; the least entry is 0 (or all are infinite).
  struct Message {
    std::vector<double> costs;
    int32_t id = 0;
  };
  using MessagePtr = std::shared_ptr<const Message>;
  struct Sent {
    MessagePtr message;
    double least = 0.0;  // what was subtracted
    int32_t name = 0;
  };
  // What flows back through a step: its own marginals and a table for each child.
  struct Returned {
    std::vector<double> marginals;
    std::vector<MessagePtr> to_children;
  };
  size_t numValues(int32_t v) const {
    return static_cast<size_t>(plan_.problem_.variables()[static_cast<size_t>(v)].numValues());
  }
  const std::vector<double>& unaryOf(const Step& step) const {
    return unary_[static_cast<size_t>(step.variable)];
  }
  static size_t offsetOf(const Factor& factor, const std::vector<size_t>& digits);
  // Advances the digits of all scope variables but the last.
  void advance(const Step& step, std::vector<size_t>& digits) const;

  std::vector<int32_t> nameOf(size_t s);
  bool sendMessage(size_t s);
  MessagePtr internMessage(std::vector<double> costs);
  std::optional<std::vector<double>> eliminate(size_t s) const;
  std::optional<Returned> returnThrough(size_t s, const MessagePtr& from_parent);

  const Elimination& plan_;
  const UnaryCosts& unary_;
  const std::function<bool()>& stop_;
  double total_ = 0.0;
  std::vector<MessagePtr> messages_;
  std::vector<double> least_;
  std::vector<int32_t> step_names_;
  std::map<std::vector<double>, int32_t> unary_ids_;
  std::map<std::vector<int32_t>, Sent> message_of_name_;
  std::unordered_multimap<uint64_t, MessagePtr> message_of_hash_;
};

}  // namespace shardwright
