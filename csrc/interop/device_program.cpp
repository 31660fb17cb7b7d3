#include "interop/device_program.h"

#include <algorithm>
#include <cmath>

#include "intraop/min_plus.h"

namespace shardwright {
namespace {

class DeviceProgram {
 public:
  DeviceProgram(const DeviceGraph& graph, const DeviceBounds& bounds, double cap, double limit,
                const std::vector<PricedPass>& passes)
      : graph_(graph),
        bounds_(bounds),
        cap_(cap),
        passes_(passes),
        ranges_(bounds.deviceRanges(cap)),
        rows_(bounds.numNodes()) {
    double size = std::abs(limit);
    for (const PricedPass& pass : passes) {
      size = std::max(size, std::abs(bounds.priceOfAll(pass.price)));
    }
    limit_ = std::isinf(limit) ? limit : limit + roundingError(size);
  }

  ProgramResult run(const std::function<bool()>& stopped) {
    const auto end = static_cast<std::size_t>(graph_.end);
    for (std::size_t v = bounds_.numNodes(); v-- > 0;) {
      if (v % 64 == 0 && stopped()) return {};
      limitRow(v);
      if (rows_[v].empty()) continue;
      if (v == end) rows_[v].cost[0] = 0;
      fillRow(v);
      trimRow(v);
    }
    return {traceBack(), true};
  }

 private:
  // Least cost from a node to the end for each number of devices used on the way.
  struct Row {
    std::int32_t low = 0;
    std::vector<double> cost;

    bool empty() const { return cost.empty(); }
    std::int32_t high() const { return low + static_cast<std::int32_t>(cost.size()) - 1; }
  };

  // A path with `after` devices behind node v costs at least this in front of it.
  double costBefore(std::size_t v, std::int32_t after) const {
    double best = 0;
    for (const PricedPass& pass : passes_) {
      best = std::max(best, pass.before[v] - pass.price * (graph_.num_devices - after));
    }
    return best;
  }

  double costAfter(std::size_t v, std::int32_t after) const {
    double best = 0;
    for (const PricedPass& pass : passes_) {
      best = std::max(best, pass.after[v] - pass.price * after);
    }
    return best;
  }

  // Sets the device counts of a row that can belong to a path within the limit.
  void limitRow(std::size_t v) {
    if (ranges_.most_before[v] < 0 || ranges_.most_after[v] < 0) return;
    std::int32_t low = ranges_.fewest_after[v];
    std::int32_t high =
        std::min(ranges_.most_after[v], graph_.num_devices - ranges_.fewest_before[v]);
    if (graph_.use_all_devices) low = std::max(low, graph_.num_devices - ranges_.most_before[v]);
    const auto fits = [&](std::int32_t after) {
      return costBefore(v, after) + costAfter(v, after) <= limit_;
    };
    while (low <= high && !fits(low)) ++low;
    while (low <= high && !fits(high)) --high;
    if (low > high) return;
    rows_[v].low = low;
    rows_[v].cost.assign(static_cast<std::size_t>(high - low + 1), kNoPath);
  }

  bool isDear(std::size_t v, const DeviceArc& arc) const {
    const auto to = static_cast<std::size_t>(arc.to);
    return std::ranges::any_of(passes_, [&](const PricedPass& pass) {
      return pass.before[v] + arc.cost + pass.price * arc.devices + pass.after[to] -
                 bounds_.priceOfAll(pass.price) >
             limit_;
    });
  }

  void fillRow(std::size_t v) {
    Row& row = rows_[v];
    for (std::size_t a = bounds_.firstArc()[v]; a < bounds_.firstArc()[v + 1]; ++a) {
      const DeviceArc& arc = bounds_.arcs()[a];
      const Row& next = rows_[static_cast<std::size_t>(arc.to)];
      if (arc.peak > cap_ || next.empty() || isDear(v, arc)) continue;
      const std::int32_t low = std::max(next.low, row.low - arc.devices);
      const std::int32_t high = std::min(next.high(), row.high() - arc.devices);
      if (low > high) continue;
      min_plus::relax(row.cost.data() + (low + arc.devices - row.low), arc.cost,
                      next.cost.data() + (low - next.low),
                      static_cast<std::size_t>(high - low + 1));
    }
  }

  // Drops what cannot be completed within the limit, and the ends of the row that hold nothing.
  void trimRow(std::size_t v) {
    Row& row = rows_[v];
    for (std::size_t k = 0; k < row.cost.size(); ++k) {
      if (row.cost[k] == kNoPath) continue;
      const auto after = row.low + static_cast<std::int32_t>(k);
      if (row.cost[k] + costBefore(v, after) > limit_) row.cost[k] = kNoPath;
    }
    const auto holds = [](double cost) { return cost != kNoPath; };
    const auto last = std::find_if(row.cost.rbegin(), row.cost.rend(), holds).base();
    row.cost.erase(last, row.cost.end());
    const auto first = std::find_if(row.cost.begin(), row.cost.end(), holds);
    row.low += static_cast<std::int32_t>(first - row.cost.begin());
    row.cost.erase(row.cost.begin(), first);
  }

  double at(std::size_t v, std::int32_t devices) const {
    const Row& row = rows_[v];
    if (row.empty() || devices < row.low || devices > row.high()) return kNoPath;
    return row.cost[static_cast<std::size_t>(devices - row.low)];
  }

  std::optional<ProgramPath> traceBack() const {
    ProgramPath path;
    path.sum = kNoPath;
    std::size_t v = 0;
    std::int32_t devices = 0;
    for (const std::int32_t start : graph_.starts) {
      const auto s = static_cast<std::size_t>(start);
      const std::int32_t fewest = graph_.use_all_devices ? graph_.num_devices : 0;
      for (std::int32_t used = fewest; used <= graph_.num_devices; ++used) {
        if (at(s, used) < path.sum) {
          path.sum = at(s, used);
          v = s;
          devices = used;
        }
      }
    }
    if (path.sum == kNoPath) return std::nullopt;
    const auto end = static_cast<std::size_t>(graph_.end);
    while (v != end) {
      const double wanted = at(v, devices);
      for (std::size_t a = bounds_.firstArc()[v];; ++a) {
        const DeviceArc& arc = bounds_.arcs()[a];
        const auto to = static_cast<std::size_t>(arc.to);
        // The same sum as in relax(), so that one arc gives exactly the wanted cost.
        if (arc.peak > cap_ || arc.cost + at(to, devices - arc.devices) != wanted) continue;
        path.arcs.push_back(a);
        path.peak = std::max(path.peak, arc.peak);
        devices -= arc.devices;
        v = to;
        break;
      }
    }
    return path;
  }

  const DeviceGraph& graph_;
  const DeviceBounds& bounds_;
  double cap_;
  double limit_ = 0;
  const std::vector<PricedPass>& passes_;
  DeviceRanges ranges_;
  std::vector<Row> rows_;
};

}  // namespace

ProgramResult findCheapestPath(const DeviceGraph& graph, const DeviceBounds& bounds, double cap,
                               double limit, const std::vector<PricedPass>& passes,
                               const std::function<bool()>& stopped) {
  return DeviceProgram(graph, bounds, cap, limit, passes).run(stopped);
}

}  // namespace shardwright
