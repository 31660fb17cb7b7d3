// The exact dynamic program over (node, devices left), kept to what bounds leave in play.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "interop/device_bounds.h"

namespace shardwright {

struct ProgramPath {
  std::vector<std::size_t> arcs;  // indices into DeviceBounds::arcs()
  double sum = 0;
  double peak = 0;
};

struct ProgramResult {
  std::optional<ProgramPath> path;
  bool finished = false;  // false when `stopped` said so; there is no path then
};

// The path of least sum with peaks <= cap and sum <= limit, if there is one. The passes bound what
// lies before and after a node; the more prices they cover, the less is looked at. All of them must
// be of `cap`.
ProgramResult findCheapestPath(const DeviceGraph& graph, const DeviceBounds& bounds, double cap,
                               double limit, const std::vector<PricedPass>& passes,
                               const std::function<bool()>& stopped);

}  // namespace shardwright
