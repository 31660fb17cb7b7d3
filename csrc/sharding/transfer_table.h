// Prices of all transfers between two meshes, remembered: what a search over stages asks for.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "mesh/submesh.h"
#include "sharding/transfer.h"

namespace shardwright {

// Not thread safe. Only the atoms' sizes in the value's order and the bytes of an element matter,
// so values alike share their prices.
class TransferTable {
 public:
  // Throws ClusterError [E358] as planTransfer.
  TransferTable(Submesh source, Submesh target, Cluster cluster);

  // transferCostUs, or kUnreachableUs for specs between which planTransfer finds no way (a pending
  // reduction, uneven shards).
  double costUs(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                const ShardingSpec& to);
  std::size_t size() const { return costs_.size(); }

 private:
  // Element bytes, sizes in order, specs with their atoms numbered in that order.
  using Key = std::tuple<std::int64_t, std::vector<std::int64_t>, ShardingSpec, ShardingSpec>;

  Submesh source_;
  Submesh target_;
  Cluster cluster_;
  std::map<Key, double> costs_;
};

}  // namespace shardwright
