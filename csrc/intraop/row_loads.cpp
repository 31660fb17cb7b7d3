#include "intraop/row_loads.h"

#include <algorithm>

namespace shardwright {

RowLoads::RowLoads(const std::vector<int64_t>& overload)
    : num_rows_(static_cast<int32_t>(overload.size())) {
  while (width_ < num_rows_) width_ *= 2;
  maximum_.assign(static_cast<size_t>(2 * width_), kLowest);
  pending_.assign(static_cast<size_t>(2 * width_), 0);
  std::copy(overload.begin(), overload.end(), maximum_.begin() + width_);
  for (auto i = static_cast<size_t>(width_); i-- > 1;) {
    maximum_[i] = std::max(maximum_[2 * i], maximum_[2 * i + 1]);
  }
}

void RowLoads::add(int32_t row_begin, int32_t row_end, int64_t bytes) {
  const auto raise = [&](size_t node) {
    maximum_[node] += bytes;
    pending_[node] += bytes;
  };
  auto left = static_cast<size_t>(row_begin + width_);
  auto right = static_cast<size_t>(row_end + width_);
  const size_t first = left;
  const size_t last = right - 1;
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) raise(left++);
    if (right % 2 == 1) raise(--right);
  }
  for (size_t end : {first, last}) {
    for (size_t node = end / 2; node >= 1; node /= 2) {
      maximum_[node] = std::max(maximum_[2 * node], maximum_[2 * node + 1]) + pending_[node];
    }
  }
}

int64_t RowLoads::maximum(int32_t row_begin, int32_t row_end) const {
  // Walks both borders upwards, adding what is pending at the ancestors passed.
  auto left = static_cast<size_t>(row_begin + width_);
  auto right = static_cast<size_t>(row_end - 1 + width_);
  int64_t from_left = maximum_[left];
  int64_t from_right = maximum_[right];
  while (left / 2 != right / 2) {
    if (left % 2 == 0) from_left = std::max(from_left, maximum_[left + 1]);
    if (right % 2 == 1) from_right = std::max(from_right, maximum_[right - 1]);
    left /= 2;
    right /= 2;
    from_left += pending_[left];
    from_right += pending_[right];
  }
  int64_t result = std::max(from_left, from_right);
  for (size_t node = left / 2; node >= 1; node /= 2) result += pending_[node];
  return result;
}

int32_t RowLoads::worstRow() const {
  size_t node = 1;
  while (node < static_cast<size_t>(width_)) {
    node = maximum_[2 * node] >= maximum_[2 * node + 1] ? 2 * node : 2 * node + 1;
  }
  return static_cast<int32_t>(node) - width_;
}

}  // namespace shardwright
