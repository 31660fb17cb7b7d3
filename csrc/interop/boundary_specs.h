// How a tensor lies at a boundary between layers, said without the atoms of either side: each layer
// refines its dims on its own, so a spec that both must understand names dims.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/placement.h"

namespace shardwright {

// One atom per dim: atom i of a boundary spec is dim i, whatever its size.
TensorAtoms wholeDims(const std::vector<std::int64_t>& shape);

// `spec`, which names atoms of a value with atoms `atoms`, as a boundary spec of a tensor of shape
// `boundary` that holds the same elements in the same order. Nothing when it cannot be said so:
// pending sums, shards that are not one block per dim.
//
// Example on mesh (2, 2): with atoms {2, 512} of a dim of 1024, axis 0 on the outer and axis 1 on
// the inner one are S01 of the dim, since the outer atom is cut up completely; with atoms {4, 256}
// they are nothing.
std::optional<ShardingSpec> boundarySpec(const TensorAtoms& atoms, const ShardingSpec& spec,
                                         const std::vector<std::int64_t>& boundary,
                                         const std::vector<int>& mesh_shape);

}  // namespace shardwright
