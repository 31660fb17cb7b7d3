// Intersections of the shards of two specs on two meshes: what planTransfer distributes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sharding/transfer.h"

namespace shardwright {

// How one side of a transfer cuts the value. Shards are numbered row-major over the parts of the
// atoms.
struct ShardGrid {
  std::vector<std::int64_t> parts;        // per atom of Region: number of shards
  std::vector<std::int64_t> sizes;        // per atom: elements of one shard
  std::vector<std::vector<int>> holders;  // per shard: who holds it
};

// Atoms of the value as Region lists them.
std::vector<int> atomOrder(const TensorAtoms& atoms);

// Holders are positions in the mesh. Contract: the spec is valid and shards only atoms of the
// value.
ShardGrid makeShardGrid(const TensorAtoms& atoms, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape);

// The elements that shard `source` has and shard `target` needs, in coordinates of the whole.
struct Tile {
  Region region;
  std::size_t source = 0;
  std::size_t target = 0;
};

// All tiles, row-major; they cover the value and do not overlap.
std::vector<Tile> intersectGrids(const ShardGrid& source, const ShardGrid& target);

// Both sides of a transfer. Devices are numbered densely in ascending order of their ranks, hosts
// likewise.
struct TransferTiles {
  std::vector<int> ranks;       // global rank of each device
  std::vector<int> hosts;       // of each device
  std::vector<int> host_names;  // of each host: as in Submesh::hosts
  ShardGrid source;             // holders: devices, ascending
  ShardGrid target;
  std::vector<Tile> tiles;
  std::int64_t element_bytes = 0;

  int rankOf(int device) const { return ranks[static_cast<std::size_t>(device)]; }
  int hostOf(int device) const { return hosts[static_cast<std::size_t>(device)]; }
};

// Contract: as planTransfer has checked.
TransferTiles makeTransferTiles(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                                const Submesh& source, const ShardingSpec& to,
                                const Submesh& target);

// `region` of the whole value in coordinates of the shard that holds it.
Region localRegion(const Region& region, const ShardGrid& grid);
std::int64_t numElements(const Region& region);
// At most `count` parts of nearly equal size that cover the region: cut along the outermost atom
// with at least `count` elements, else along the longest.
std::vector<Region> splitRegion(const Region& region, std::size_t count);

}  // namespace shardwright
