// Pareto fronts of (cost, bytes at the tracked memory rows): what is left of a set of partial
// choices once those that another one beats in cost and in bytes at every row are gone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace shardwright::pareto {

template <size_t kRows>
struct Point {
  double cost = 0.0;
  std::array<int64_t, kRows> bytes{};
  bool operator==(const Point&) const = default;
};

// Ascending bytes (first row first), then cost; no point beats another.
template <size_t kRows>
using Front = std::vector<Point<kRows>>;

template <size_t kRows>
bool precedes(const Point<kRows>& a, const Point<kRows>& b) {
  return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
}

template <size_t kRows>
Point<kRows> sum(const Point<kRows>& a, const Point<kRows>& b) {
  Point<kRows> result = a;
  result.cost += b.cost;
  for (size_t i = 0; i < kRows; ++i) result.bytes[i] += b.bytes[i];
  return result;
}

template <size_t kRows>
Point<kRows> difference(const Point<kRows>& a, const Point<kRows>& b) {
  Point<kRows> result = a;
  result.cost -= b.cost;
  for (size_t i = 0; i < kRows; ++i) result.bytes[i] -= b.bytes[i];
  return result;
}

// Takes points in the order of precedes and passes on those that nothing before them beats. With
// three rows some beaten points may pass: fronts are then larger than needed, never wrong.
template <size_t kRows>
class Sieve {
 public:
  explicit Sieve(Front<kRows>& out) : out_(out) {}

  void offer(const Point<kRows>& point) {
    if (!isBeaten(point)) out_.push_back(point);
  }

 private:
  bool isBeaten(const Point<kRows>& point) {
    if constexpr (kRows == 1) {
      return !out_.empty() && out_.back().cost <= point.cost;
    } else if constexpr (kRows == 2) {
      // Least cost by bytes at the second row, falling.
      auto next = least_cost_.upper_bound(point.bytes[1]);
      if (next != least_cost_.begin() && std::prev(next)->second <= point.cost) return true;
      auto first = least_cost_.lower_bound(point.bytes[1]);
      while (first != least_cost_.end() && first->second >= point.cost) {
        first = least_cost_.erase(first);
      }
      least_cost_.emplace(point.bytes[1], point.cost);
      return false;
    } else {
      constexpr size_t kMaxLookBack = 64;
      const size_t first = out_.size() > kMaxLookBack ? out_.size() - kMaxLookBack : 0;
      for (size_t i = out_.size(); i-- > first;) {
        const Point<kRows>& other = out_[i];
        bool beats = other.cost <= point.cost;
        for (size_t row = 1; row < kRows; ++row) beats &= other.bytes[row] <= point.bytes[row];
        if (beats) return true;
      }
      return false;
    }
  }

  Front<kRows>& out_;
  std::map<int64_t, double> least_cost_;  // two rows only
};

// The front of the union of two fronts.
template <size_t kRows>
Front<kRows> merged(const Front<kRows>& a, const Front<kRows>& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  Front<kRows> out;
  out.reserve(a.size() + b.size());
  Sieve<kRows> sieve(out);
  auto i = a.begin();
  auto j = b.begin();
  while (i != a.end() && j != b.end()) sieve.offer(precedes(*j, *i) ? *j++ : *i++);
  while (i != a.end()) sieve.offer(*i++);
  while (j != b.end()) sieve.offer(*j++);
  return out;
}

// The front of the union of many fronts, merged in pairs.
template <size_t kRows>
Front<kRows> merged(std::vector<Front<kRows>> fronts) {
  if (fronts.empty()) return {};
  while (fronts.size() > 1) {
    size_t kept = 0;
    for (size_t i = 0; i < fronts.size(); i += 2) {
      fronts[kept++] =
          i + 1 < fronts.size() ? merged(fronts[i], fronts[i + 1]) : std::move(fronts[i]);
    }
    fronts.resize(kept);
  }
  return std::move(fronts.front());
}

// Upper ends of the cost of a partial choice, one per vector of multipliers: a point is of interest
// while cost + multipliers . bytes is at most the level of each.
template <size_t kRows>
struct Levels {
  std::vector<std::array<double, kRows>> multipliers;
  std::vector<double> levels;

  // How far the point is above the worst level; at most 0 when it is of interest.
  double excess(const Point<kRows>& point) const {
    double worst = -1e300;
    for (size_t i = 0; i < levels.size(); ++i) {
      double priced = point.cost;
      for (size_t row = 0; row < kRows; ++row) {
        priced += multipliers[i][row] * static_cast<double>(point.bytes[row]);
      }
      worst = std::max(worst, priced - levels[i]);
    }
    return worst;
  }
};

// The front of all sums of a point of one and a point of the other that stay within the levels.
template <size_t kRows>
Front<kRows> sums(const Front<kRows>& a, const Front<kRows>& b, const Levels<kRows>& levels) {
  const Front<kRows>& few = a.size() <= b.size() ? a : b;
  const Front<kRows>& many = a.size() <= b.size() ? b : a;
  std::vector<Front<kRows>> shifted;
  shifted.reserve(few.size());
  for (const Point<kRows>& point : few) {
    Front<kRows> run;
    for (const Point<kRows>& other : many) {
      const Point<kRows> both = sum(point, other);
      if (levels.excess(both) <= 0.0) run.push_back(both);
    }
    if (!run.empty()) shifted.push_back(std::move(run));
  }
  return merged(std::move(shifted));
}

}  // namespace shardwright::pareto
