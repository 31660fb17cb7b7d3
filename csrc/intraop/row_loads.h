// Overload of every memory row under a changing choice: range add, range maximum, worst row.
#pragma once

#include <cstdint>
#include <vector>

namespace shardwright {

class RowLoads {
 public:
  // One overload per row (bytes above the slack; positive = violated).
  explicit RowLoads(const std::vector<int64_t>& overload);

  bool empty() const { return num_rows_ == 0; }
  void add(int32_t row_begin, int32_t row_end, int64_t bytes);
  // Greatest overload in [row_begin, row_end), which must not be empty.
  int64_t maximum(int32_t row_begin, int32_t row_end) const;
  // Greatest overload of all rows; very negative without rows.
  int64_t maximum() const { return num_rows_ == 0 ? kLowest : maximum_[1]; }
  // The first row with the greatest overload.
  int32_t worstRow() const;

 private:
  static constexpr int64_t kLowest = INT64_MIN / 4;

  int32_t num_rows_;
  int32_t width_ = 1;
  std::vector<int64_t> maximum_;  // heap order; includes pending_ of the node itself
  std::vector<int64_t> pending_;
};

}  // namespace shardwright
