// One list of atoms for a value that two graphs cut differently, so that the specs it has in both
// can be compared and one be transferred to the other.
#pragma once

#include <optional>

#include "sharding/placement.h"

namespace shardwright {

struct CommonAtoms {
  TensorAtoms atoms;  // numbered by their place, dim by dim
  ShardingSpec source;
  ShardingSpec target;
};

// The common refinement of two cuts of one value, dim by dim, with both specs in its terms: a
// sharded atom that is cut further is sharded in the outermost of its pieces. nullopt where cuts do
// not nest or that piece does not divide. Contract: both have the same dims with the same sizes.
//
// Example: dim 8 as {8} sharded over 2 ranks, and as {4, 2} sharded over 4 in its first atom, gives
// atoms {4, 2} with the first one sharded in both specs.
std::optional<CommonAtoms> commonAtoms(const TensorAtoms& source_atoms,
                                       const ShardingSpec& source_spec,
                                       const std::vector<int>& source_mesh,
                                       const TensorAtoms& target_atoms,
                                       const ShardingSpec& target_spec,
                                       const std::vector<int>& target_mesh);

}  // namespace shardwright
