// What the user is told when no plan fits: the smallest peak that was found, what it consists of,
// and what would help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/cluster.h"
#include "plan/peak_memory.h"

namespace shardwright {

struct SmallestPeak {
  std::vector<int> mesh_shape;
  PeakMemory peak;
  std::string largest_tensor;
};

struct FailedSearch {
  std::vector<std::vector<int>> mesh_shapes;
  std::optional<std::int64_t> limit_bytes;
  std::optional<SmallestPeak> smallest = std::nullopt;  // nullopt: no valid choice was found at all
  double time_limit_s = 0;
  int microbatches_in_flight = 1;
  // Of every mesh shape: no choice is valid, or none is within the limit. Without a proof the
  // error says no more than that none was found.
  bool is_proven_invalid = false;
  bool is_proven_too_large = false;
};

// Throws InfeasibleError: [E203] where nothing fits the limit, [E204] where no valid choice was
// found whatever the memory (forced specs that exclude each other).
[[noreturn]] void throwInfeasible(const FailedSearch& search, const Cluster& cluster);

}  // namespace shardwright
