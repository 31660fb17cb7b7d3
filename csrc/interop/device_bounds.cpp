#include "interop/device_bounds.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace shardwright {
namespace {

constexpr std::int32_t kManyDevices = std::numeric_limits<std::int32_t>::max() / 2;

}  // namespace

DeviceBounds::DeviceBounds(const DeviceGraph& graph)
    : graph_(graph), first_arc_(graph.first_arc), arcs_(graph.arcs), original_(arcs_.size()) {
  for (std::size_t a = 0; a < original_.size(); ++a) original_[a] = a;
}

std::int64_t DeviceBounds::fewestDevices(double cap) const {
  std::vector<std::int32_t> fewest(numNodes(), kManyDevices);
  fewest[static_cast<std::size_t>(graph_.end)] = 0;
  for (std::size_t v = numNodes(); v-- > 0;) {
    std::int32_t best = fewest[v];
    for (std::size_t a = first_arc_[v]; a < first_arc_[v + 1]; ++a) {
      const DeviceArc& arc = arcs_[a];
      const std::int32_t need = arc.devices + fewest[static_cast<std::size_t>(arc.to)];
      if (arc.peak <= cap && need < best) best = need;
    }
    fewest[v] = std::min(best, kManyDevices);
  }
  std::int32_t best = kManyDevices;
  for (const std::int32_t start : graph_.starts) {
    best = std::min(best, fewest[static_cast<std::size_t>(start)]);
  }
  return best;
}

DeviceRanges DeviceBounds::deviceRanges(double cap) const {
  const std::size_t n = numNodes();
  DeviceRanges ranges{std::vector(n, kManyDevices), std::vector(n, -1),
                      std::vector(n, kManyDevices), std::vector(n, -1)};
  const auto end = static_cast<std::size_t>(graph_.end);
  ranges.fewest_after[end] = 0;
  ranges.most_after[end] = 0;
  for (std::size_t v = n; v-- > 0;) {
    for (std::size_t a = first_arc_[v]; a < first_arc_[v + 1]; ++a) {
      const DeviceArc& arc = arcs_[a];
      const auto to = static_cast<std::size_t>(arc.to);
      if (arc.peak > cap || ranges.most_after[to] < 0) continue;
      ranges.fewest_after[v] =
          std::min(ranges.fewest_after[v], arc.devices + ranges.fewest_after[to]);
      ranges.most_after[v] = std::max(ranges.most_after[v], arc.devices + ranges.most_after[to]);
    }
  }
  for (const std::int32_t start : graph_.starts) {
    ranges.fewest_before[static_cast<std::size_t>(start)] = 0;
    ranges.most_before[static_cast<std::size_t>(start)] = 0;
  }
  for (std::size_t v = 0; v < n; ++v) {
    if (ranges.most_before[v] < 0) continue;
    for (std::size_t a = first_arc_[v]; a < first_arc_[v + 1]; ++a) {
      const DeviceArc& arc = arcs_[a];
      const auto to = static_cast<std::size_t>(arc.to);
      if (arc.peak > cap) continue;
      ranges.fewest_before[to] =
          std::min(ranges.fewest_before[to], arc.devices + ranges.fewest_before[v]);
      ranges.most_before[to] =
          std::max(ranges.most_before[to], arc.devices + ranges.most_before[v]);
    }
  }
  return ranges;
}

DeviceBounds::Tangent DeviceBounds::tangentAt(double cap, double price) const {
  std::vector<double> after(numNodes(), kNoPath);
  std::vector<std::int32_t> devices(numNodes(), 0);
  after[static_cast<std::size_t>(graph_.end)] = 0;
  for (std::size_t v = numNodes(); v-- > 0;) {
    double best = after[v];
    std::int32_t used = devices[v];
    for (std::size_t a = first_arc_[v]; a < first_arc_[v + 1]; ++a) {
      const DeviceArc& arc = arcs_[a];
      if (arc.peak > cap) continue;
      const auto to = static_cast<std::size_t>(arc.to);
      const double cost = arc.cost + price * arc.devices + after[to];
      if (cost < best) {
        best = cost;
        used = arc.devices + devices[to];
      }
    }
    after[v] = best;
    devices[v] = used;
  }
  Tangent tangent{price, kNoPath, 0};
  for (const std::int32_t start : graph_.starts) {
    const auto s = static_cast<std::size_t>(start);
    if (after[s] - priceOfAll(price) < tangent.bound) {
      tangent.bound = after[s] - priceOfAll(price);
      tangent.slope = devices[s] - graph_.num_devices;
    }
  }
  return tangent;
}

double DeviceBounds::bestBound(double cap, double& price) const {
  constexpr int kMostDoublings = 60;
  constexpr int kMostCuts = 40;
  if (!graph_.use_all_devices) price = std::max(price, 0.0);
  Tangent first = tangentAt(cap, price);
  if (first.bound == kNoPath) return kNoPath;
  // The bound is concave in the price: it rises while too many devices are used.
  const auto finish = [&](const Tangent& best) {
    price = best.price;
    return best.bound;
  };
  if (first.slope == 0) return finish(first);
  const double direction = first.slope > 0 ? 1 : -1;
  double step =
      std::max(std::abs(price) * 0.05, (std::abs(first.bound) + 1e-300) / graph_.num_devices);
  Tangent second = first;
  for (int doubling = 0;; ++doubling) {
    double next = first.price + direction * step;
    const bool at_floor = !graph_.use_all_devices && next <= 0;
    if (at_floor) next = 0;
    second = tangentAt(cap, next);
    if (second.slope == 0) return finish(second);
    if (second.slope * direction < 0) break;
    // At the floor the bound is at its best; too many doublings mean that the devices cannot be
    // met.
    if (at_floor || doubling >= kMostDoublings) return finish(second);
    first = second;
    step *= 2;
  }
  if (first.slope < 0) std::swap(first, second);  // first: too many devices, second: too few
  Tangent best = first.bound > second.bound ? first : second;
  for (int cut = 0; cut < kMostCuts; ++cut) {
    const double crossing =
        (second.bound - first.bound + first.slope * first.price - second.slope * second.price) /
        (first.slope - second.slope);
    const double ceiling = first.bound + first.slope * (crossing - first.price);
    if (ceiling <= best.bound + roundingError(ceiling)) break;
    const Tangent middle = tangentAt(cap, crossing);
    if (middle.bound > best.bound) best = middle;
    if (middle.slope == 0 || middle.bound >= ceiling - roundingError(ceiling)) break;
    (middle.slope > 0 ? first : second) = middle;
  }
  return finish(best);
}

PricedPass DeviceBounds::pricedPass(double cap, double price) const {
  PricedPass pass{price, std::vector(numNodes(), kNoPath), std::vector(numNodes(), kNoPath)};
  pass.after[static_cast<std::size_t>(graph_.end)] = 0;
  for (std::size_t v = numNodes(); v-- > 0;) {
    double best = pass.after[v];
    for (std::size_t a = first_arc_[v]; a < first_arc_[v + 1]; ++a) {
      const DeviceArc& arc = arcs_[a];
      if (arc.peak > cap) continue;
      best = std::min(
          best, arc.cost + price * arc.devices + pass.after[static_cast<std::size_t>(arc.to)]);
    }
    pass.after[v] = best;
  }
  for (const std::int32_t start : graph_.starts) {
    pass.before[static_cast<std::size_t>(start)] = 0;
  }
  for (std::size_t v = 0; v < numNodes(); ++v) {
    const double base = pass.before[v];
    if (base == kNoPath) continue;
    for (std::size_t a = first_arc_[v]; a < first_arc_[v + 1]; ++a) {
      const DeviceArc& arc = arcs_[a];
      if (arc.peak > cap) continue;
      double& to = pass.before[static_cast<std::size_t>(arc.to)];
      to = std::min(to, base + arc.cost + price * arc.devices);
    }
  }
  return pass;
}

void DeviceBounds::removeArcs(double value, double cap, double least_peak, double price) {
  const PricedPass pass = pricedPass(cap, price);
  const double all = priceOfAll(price);
  const double limit = value + roundingError(std::abs(value) + std::abs(all));
  std::size_t kept = 0;
  std::size_t begin = 0;
  for (std::size_t v = 0; v < numNodes(); ++v) {
    const std::size_t end = first_arc_[v + 1];
    for (std::size_t a = begin; a < end; ++a) {
      const DeviceArc& arc = arcs_[a];
      const double sum = pass.before[v] + arc.cost + price * arc.devices +
                         pass.after[static_cast<std::size_t>(arc.to)] - all;
      if (arc.peak > cap || sum + graph_.peak_weight * std::max(arc.peak, least_peak) > limit) {
        continue;
      }
      arcs_[kept] = arc;
      original_[kept] = original_[a];
      ++kept;
    }
    begin = end;
    first_arc_[v + 1] = kept;
  }
  arcs_.resize(kept);
  original_.resize(kept);
}

}  // namespace shardwright
