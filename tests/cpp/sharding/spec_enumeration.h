// Every valid spec of a tensor on a mesh, by trying all placements: for exhaustive tests.
#pragma once

#include <vector>

#include "sharding/placement.h"

namespace shardwright {

inline std::vector<ShardingSpec> allSpecs(const TensorAtoms& atoms, const std::vector<int>& mesh,
                                          const std::vector<ReduceOp>& pending) {
  std::vector<Placement> placements = {Placement::replicate()};
  for (const ReduceOp op : pending) {
    placements.push_back(Placement::partial(op));
  }
  for (std::size_t atom = 0; atom < atoms.sizes.size(); ++atom) {
    for (std::size_t order = 0; order < mesh.size(); ++order) {
      placements.push_back(Placement::shard(static_cast<int>(atom), static_cast<int>(order)));
    }
  }
  std::vector<ShardingSpec> specs = {{}};
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    std::vector<ShardingSpec> longer;
    for (const ShardingSpec& spec : specs) {
      for (const Placement& placement : placements) {
        longer.push_back(spec);
        longer.back().push_back(placement);
      }
    }
    specs = std::move(longer);
  }
  std::erase_if(specs, [&](const ShardingSpec& spec) { return !isValid(atoms, spec, mesh); });
  return specs;
}

}  // namespace shardwright
