#include "interop/device_path.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <queue>

#include "interop/device_bounds.h"
#include "interop/device_program.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

// Thresholds low..high on the peak, by index; no path whose peak is among them has a smaller sum of
// costs than `sum_bound`, or a smaller value than `bound`.
struct Interval {
  std::size_t low = 0;
  std::size_t high = 0;
  double sum_bound = 0;
  double bound = 0;

  // The most promising on top of a std::priority_queue; ties by threshold, so that runs repeat.
  friend bool operator<(const Interval& a, const Interval& b) {
    return a.bound != b.bound ? a.bound > b.bound : a.low > b.low;
  }
};

class DevicePathSearch {
 public:
  DevicePathSearch(const DeviceGraph& graph, const DevicePathOptions& options)
      : graph_(graph), options_(options), bounds_(graph), start_(Clock::now()) {}

  DevicePath run() {
    collectThresholds();
    result_.value = kNoPath;
    const std::optional<std::size_t> lowest = lowestThreshold();
    if (!lowest) {
      result_.lower_bound = kNoPath;
      result_.finished = true;
      return result_;
    }
    lowest_ = *lowest;
    push({*lowest, thresholds_.size() - 1, 0, 0});
    while (!open_.empty()) {
      if (stopped()) break;
      const Interval interval = open_.top();
      open_.pop();
      if (isClosed(interval.bound)) continue;
      work(interval);
    }
    conclude();
    return result_;
  }

 private:
  double weight() const { return graph_.peak_weight; }

  bool stopped() const {
    if (options_.is_interrupted && options_.is_interrupted()) return true;
    return std::chrono::duration<double>(Clock::now() - start_).count() > options_.time_limit_s;
  }

  // Whether nothing better than the incumbent can be there.
  bool isClosed(double bound) const {
    return bound == kNoPath || bound >= result_.value - roundingError(result_.value);
  }

  void push(Interval interval) {
    interval.bound =
        std::max(interval.bound, interval.sum_bound + weight() * thresholds_[interval.low]);
    if (!isClosed(interval.bound)) open_.push(interval);
  }

  void collectThresholds() {
    thresholds_.reserve(graph_.arcs.size());
    for (const DeviceArc& arc : graph_.arcs) thresholds_.push_back(arc.peak);
    std::ranges::sort(thresholds_);
    thresholds_.erase(std::ranges::unique(thresholds_).begin(), thresholds_.end());
  }

  // The least peak of any path that does not use too many devices.
  std::optional<std::size_t> lowestThreshold() const {
    if (thresholds_.empty() || !devicesCanBeMet(thresholds_.size() - 1)) return std::nullopt;
    std::size_t low = 0;
    std::size_t high = thresholds_.size() - 1;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (bounds_.fewestDevices(thresholds_[middle]) <= graph_.num_devices) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // Whether paths with at most and (if asked) at least the given devices exist.
  bool devicesCanBeMet(std::size_t threshold) const {
    const DeviceRanges ranges = bounds_.deviceRanges(thresholds_[threshold]);
    return std::ranges::any_of(graph_.starts, [&](std::int32_t start) {
      const auto s = static_cast<std::size_t>(start);
      return ranges.fewest_after[s] <= graph_.num_devices &&
             (!graph_.use_all_devices || ranges.most_after[s] >= graph_.num_devices);
    });
  }

  void work(Interval interval) {
    if (!lowerHigh(interval)) return;
    if (!devicesCanBeMet(interval.high)) return;
    const double cap = thresholds_[interval.high];
    interval.sum_bound = std::max(interval.sum_bound, bounds_.bestBound(cap, price_));
    if (interval.sum_bound == kNoPath) return;
    interval.bound =
        std::max(interval.bound, interval.sum_bound + weight() * thresholds_[interval.low]);
    if (isClosed(interval.bound)) return;
    if (!open_.empty() && open_.top().bound < interval.bound) {
      push(interval);  // another one is more promising now
      return;
    }
    if (shouldSplit(interval)) {
      const std::size_t middle = middleOf(interval);
      push({interval.low, middle, interval.sum_bound, interval.bound});
      push({middle + 1, interval.high, interval.sum_bound, interval.bound});
    } else {
      solve(interval);
    }
  }

  // Drops thresholds too high for a path better than the incumbent.
  bool lowerHigh(Interval& interval) const {
    if (result_.value == kNoPath || weight() == 0) return true;
    const double most = (result_.value - interval.sum_bound) / weight();
    const auto end = thresholds_.begin() + static_cast<std::ptrdiff_t>(interval.high) + 1;
    const auto past =
        std::upper_bound(thresholds_.begin() + static_cast<std::ptrdiff_t>(interval.low), end,
                         most + roundingError(most));
    const auto count = static_cast<std::size_t>(past - thresholds_.begin());
    if (count <= interval.low) return false;
    interval.high = count - 1;
    return true;
  }

  // A wide interval is bounded badly: its sum by its upper end, its peak by its lower end.
  bool shouldSplit(const Interval& interval) const {
    if (interval.low == interval.high) return false;
    const double width = weight() * (thresholds_[interval.high] - thresholds_[interval.low]);
    if (result_.value == kNoPath) return width > 2e-3 * interval.bound;
    return width > 0.5 * (result_.value - interval.bound);
  }

  std::size_t middleOf(const Interval& interval) const {
    const double middle = (thresholds_[interval.low] + thresholds_[interval.high]) / 2;
    const auto found = std::upper_bound(thresholds_.begin(), thresholds_.end(), middle);
    const auto index = static_cast<std::size_t>(found - thresholds_.begin());
    return std::clamp(index, interval.low + 1, interval.high) - 1;
  }

  std::vector<PricedPass> passesAt(double cap) const {
    // Prices around the best one tell apart nodes with more and with fewer devices than usual.
    std::vector<PricedPass> passes;
    for (const double factor : {1.0, 0.8, 1.25, 0.5, 2.0}) {
      passes.push_back(bounds_.pricedPass(cap, price_ * factor));
      if (price_ == 0) break;
    }
    return passes;
  }

  void solve(const Interval& interval) {
    const double cap = thresholds_[interval.high];
    const std::vector<PricedPass> passes = passesAt(cap);
    ProgramResult found;
    if (result_.value != kNoPath) {
      const double limit = result_.value - weight() * thresholds_[interval.low];
      found = runProgram(cap, limit, passes);
    } else {
      // Without an incumbent: look close to the bound first, then farther and farther.
      double slack = std::max(1e-3 * interval.sum_bound,
                              weight() * (thresholds_[interval.high] - thresholds_[interval.low]));
      constexpr int kMostWidenings = 8;
      for (int widening = 0; widening <= kMostWidenings; ++widening) {
        const double limit = widening == kMostWidenings ? kNoPath : interval.sum_bound + slack;
        found = runProgram(cap, limit, passes);
        if (!found.finished || found.path) break;
        slack *= 6;
      }
    }
    if (!found.finished) {
      push(interval);
      return;
    }
    if (!found.path) return;
    const std::size_t peak_index = static_cast<std::size_t>(
        std::ranges::lower_bound(thresholds_, found.path->peak) - thresholds_.begin());
    consider(*found.path);
    // Thresholds from its peak up have the same sum; those below have none smaller.
    if (peak_index > interval.low) {
      push({interval.low, peak_index - 1, std::max(interval.sum_bound, found.path->sum),
            interval.bound});
    }
  }

  ProgramResult runProgram(double cap, double limit, const std::vector<PricedPass>& passes) {
    ++result_.num_exact_runs;
    return findCheapestPath(graph_, bounds_, cap, limit, passes, [this] { return stopped(); });
  }

  void consider(const ProgramPath& path) {
    const double value = path.sum + weight() * path.peak;
    if (value >= result_.value) return;
    result_.value = value;
    result_.price = price_;
    result_.arcs.clear();
    for (const std::size_t arc : path.arcs) result_.arcs.push_back(bounds_.originalArc(arc));
    removeArcs();
  }

  // Arcs that belong to nothing better than the incumbent only cost time.
  void removeArcs() {
    double price = price_;
    double cap = thresholds_.back();
    double sum_bound = bounds_.bestBound(cap, price);
    if (weight() > 0 && sum_bound != kNoPath) {
      const double most = (result_.value - sum_bound) / weight();
      cap = std::min(cap, most + roundingError(most));
      sum_bound = bounds_.bestBound(cap, price);
    }
    if (sum_bound == kNoPath) return;
    bounds_.removeArcs(result_.value, cap, thresholds_[lowest_], price);
  }

  void conclude() {
    double bound = kNoPath;
    while (!open_.empty()) {
      if (!isClosed(open_.top().bound)) bound = std::min(bound, open_.top().bound);
      open_.pop();
    }
    result_.finished = bound == kNoPath;
    result_.lower_bound = std::min(bound, result_.value);
  }

  const DeviceGraph& graph_;
  DevicePathOptions options_;
  DeviceBounds bounds_;
  Clock::time_point start_;
  std::vector<double> thresholds_;
  std::size_t lowest_ = 0;
  std::priority_queue<Interval> open_;
  double price_ = 0;  // the best one of the last bound: a good start for the next
  DevicePath result_;
};

}  // namespace

DevicePath findDevicePath(const DeviceGraph& graph, const DevicePathOptions& options) {
  return DevicePathSearch(graph, options).run();
}

}  // namespace shardwright
