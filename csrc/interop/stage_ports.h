// Ports: the distinct ways in which a tensor lies on a submesh at a boundary between stages,
// whatever logical mesh and spec say so; and what it costs to go from port to port.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/graph.h"
#include "mesh/cluster.h"
#include "mesh/submesh_shape.h"
#include "sharding/placement.h"

namespace shardwright {

// Which block of a tensor each position of a mesh holds: position by position, dim by dim, the
// block's index and the number of blocks. Equal layouts hold the same elements.
using PortLayout = std::vector<std::int32_t>;

// `spec` names dims (sharding of wholeDims in boundary_specs.h). Worked example: S01 of one dim on
// (2, 2) and S0 on (4) are both {0, 4, 1, 4, 2, 4, 3, 4}.
PortLayout portLayout(const std::vector<int>& mesh_shape, const ShardingSpec& spec,
                      std::size_t num_dims);

// Numbers the ports of every submesh. Port 0 of each stands for boundaries that no tensor of known
// spec crosses.
class StagePorts {
 public:
  struct Port {
    std::vector<int> mesh_shape;  // of the first spec that lies so
    ShardingSpec spec;
    std::size_t num_dims = 0;
  };

  explicit StagePorts(std::size_t num_submeshes);

  int portOf(int submesh, const std::vector<int>& mesh_shape, const ShardingSpec& spec,
             std::size_t num_dims);
  const std::vector<Port>& ports(int submesh) const {
    return ports_[static_cast<std::size_t>(submesh)];
  }
  // Most ports of any submesh.
  int numPorts() const;

 private:
  std::vector<std::vector<Port>> ports_;
  std::vector<std::map<PortLayout, int>> known_;
};

// What crosses a boundary between two stages once per microbatch.
struct BoundaryTensors {
  std::vector<std::int64_t> shape;  // of the main value; empty: none, or a scalar
  DType dtype = DType::kFloat32;
  bool has_gradient = false;  // one of the same shape comes back
  DType gradient_dtype = DType::kFloat32;
  // Of all other values (a scalar main value and its gradient too), in both directions together.
  std::int64_t other_bytes = 0;
  // In how many messages they go, from the stage before and back to it.
  int other_messages_there = 0;
  int other_messages_back = 0;

  auto operator<=>(const BoundaryTensors&) const = default;
};

struct PortPrice {
  double time_us = 0;  // both directions
  double link_us = 0;  // the longer of them
};

// From a port of one submesh to one of the next stage's. The main value and its gradient are priced
// by planTransfer; other values as so many more bytes of the same, or through one port or NIC where
// there is no main value, and by the latency of every message: so many more bytes are as many more
// messages of the main value, which its price has already. Where the stages will stand is not known
// yet: they are taken to be on different hosts if the cluster has any. But stages of one size,
// smaller than a host, stand side by side (placeSubmeshes), and of as many as fill a host only the
// last is on another than the next one: the time is the mean, on hosts of eight for (1, 4) half and
// for (1, 2) a quarter of what it is between hosts, the rest what it is within one. The link is the
// slower of the two.
PortPrice portPrice(const BoundaryTensors& tensors, const StagePorts::Port& from,
                    const SubmeshShape& source, const StagePorts::Port& to,
                    const SubmeshShape& target, const Cluster& cluster);

}  // namespace shardwright
