// Where one pipeline stage runs: a logical mesh over some of the cluster's devices.
#pragma once

#include <vector>

#include "mesh/cluster.h"

namespace shardwright {

// Position p of `ranks` and `hosts` has the row-major coordinate p on `shape`.
struct Submesh {
  std::vector<int> shape;
  std::vector<int> ranks;  // global, in mesh order
  std::vector<int> hosts;  // of each rank

  bool operator==(const Submesh&) const = default;
};

// The submesh with the hosts that the ranks have on `cluster`, whose devices are numbered host by
// host. Throws ClusterError [E358] unless there is one rank of the cluster per position, none
// twice. Worked example: shape (1, 4), ranks 4..7 on hosts of 4 devices are all on host 1.
Submesh makeSubmesh(std::vector<int> shape, std::vector<int> ranks, const Cluster& cluster);

// Throws ClusterError [E358] unless the submesh has one rank and host per position and no rank
// twice.
void checkSubmesh(const Submesh& submesh);

}  // namespace shardwright
