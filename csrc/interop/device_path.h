// Cheapest path through an acyclic graph whose arcs use devices: the search under the stage DP.
// Minimises (sum of costs) + peak_weight * (largest peak) over paths that use the given devices.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace shardwright {

struct DeviceArc {
  double cost = 0;
  double peak = 0;
  std::int32_t to = 0;  // a node of larger index
  std::int32_t devices = 0;
};

struct DeviceGraph {
  std::vector<std::size_t> first_arc;  // arcs of node v: [first_arc[v], first_arc[v + 1])
  std::vector<DeviceArc> arcs;
  std::vector<std::int32_t> starts;  // a path begins at one of these, ascending
  std::int32_t end = 0;
  std::int32_t num_devices = 0;
  bool use_all_devices = true;  // exactly num_devices, otherwise at most
  double peak_weight = 0;

  std::size_t numNodes() const { return first_arc.size() - 1; }
};

struct DevicePathOptions {
  double time_limit_s = 60.0;
  // Asked now and then; true ends the search with the best found so far.
  std::function<bool()> is_interrupted = {};
};

struct DevicePath {
  std::vector<std::size_t> arcs;  // empty when there is no path, or none was found
  double value = 0;               // of the path
  double lower_bound = 0;         // no path costs less; infinity when there is none
  bool finished = false;          // value equals lower_bound, or there is no path
  double price = 0;               // per device, of the bound under which the path was found
  int num_exact_runs = 0;         // dynamic programs over (node, devices) that were run
};

// Exact: thresholds on the peak are enumerated from the most promising range of them; a range is
// closed by a Lagrangian bound (a price per device makes the graph one-dimensional), or by the
// dynamic program over (node, devices), kept to the arcs and device counts that the bounds leave.
// The same graph gives the same path unless the time limit cuts the search.
// Contract: costs and peaks are finite and not negative, devices >= 0.
DevicePath findDevicePath(const DeviceGraph& graph, const DevicePathOptions& options = {});

}  // namespace shardwright
