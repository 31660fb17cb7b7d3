// What the user is told when no plan fits: the smallest peak that was found, what it consists of,
// and what would help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/cluster.h"
#include "plan/replay.h"

namespace shardwright {

struct SmallestPeak {
  std::vector<int> mesh_shape;
  PeakMemory peak;
  std::string largest_tensor;
};

// Throws InfeasibleError [E203]. `smallest` is nullopt where no valid choice was found at all
// (forced specs that exclude each other).
[[noreturn]] void throwInfeasible(const std::vector<std::vector<int>>& mesh_shapes,
                                  std::optional<std::int64_t> limit_bytes,
                                  const std::optional<SmallestPeak>& smallest,
                                  const Cluster& cluster);

}  // namespace shardwright
