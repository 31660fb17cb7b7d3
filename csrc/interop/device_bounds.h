// One-dimensional passes over a DeviceGraph: with a price per device, or counting devices alone.
// They bound what any path through a node or arc can cost.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "interop/device_path.h"

namespace shardwright {

inline constexpr double kNoPath = std::numeric_limits<double>::infinity();

// Cheapest ways at one price: from a start to each node, and from each node to the end.
struct PricedPass {
  double price = 0;
  std::vector<double> before;
  std::vector<double> after;
};

// Devices that ways to and from each node can use; fewest > most where there is no way.
struct DeviceRanges {
  std::vector<std::int32_t> fewest_before;
  std::vector<std::int32_t> most_before;
  std::vector<std::int32_t> fewest_after;
  std::vector<std::int32_t> most_after;
};

// The arcs in play. Node order is that of the graph; arcs leave play for good.
class DeviceBounds {
 public:
  explicit DeviceBounds(const DeviceGraph& graph);

  const std::vector<std::size_t>& firstArc() const { return first_arc_; }
  const std::vector<DeviceArc>& arcs() const { return arcs_; }
  // The arc's index in the graph.
  std::size_t originalArc(std::size_t arc) const { return original_[arc]; }
  std::size_t numNodes() const { return first_arc_.size() - 1; }

  // All passes below use only arcs with peak <= cap.

  // Fewest devices that a path needs; more than num_devices when there is none.
  std::int64_t fewestDevices(double cap) const;
  DeviceRanges deviceRanges(double cap) const;
  // Lower bound on the sum of costs: the best of the prices tried, starting at `price`, which then
  // holds the best price. kNoPath when no path uses the devices.
  double bestBound(double cap, double& price) const;
  PricedPass pricedPass(double cap, double price) const;
  // What `price` takes off a path's priced cost: the bound is before + after - this.
  double priceOfAll(double price) const { return price * graph_.num_devices; }

  // Removes arcs that no path cheaper than `value` has, given that its peak is at least
  // `least_peak` and at most `cap`.
  void removeArcs(double value, double cap, double least_peak, double price);

 private:
  struct Tangent {
    double price = 0;
    double bound = 0;  // of the sum of costs
    double slope = 0;  // devices used beyond the given ones
  };
  // The cheapest path at a price; a finite bound only where the end is reached.
  Tangent tangentAt(double cap, double price) const;

  const DeviceGraph& graph_;
  std::vector<std::size_t> first_arc_;
  std::vector<DeviceArc> arcs_;
  std::vector<std::size_t> original_;
};

// Differences below this are rounding errors, in sums of about this size.
inline double roundingError(double size) { return 1e-11 * (size < 0 ? -size : size); }

}  // namespace shardwright
