#include "sharding/transfer_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "sharding/reshard.h"
#include "sharding/transfer_tiles.h"

namespace shardwright {

namespace {

// The spec with atoms numbered as in `order`; nullopt if it shards another one.
std::optional<ShardingSpec> renumbered(const ShardingSpec& spec, const std::vector<int>& order) {
  ShardingSpec result = spec;
  for (Placement& placement : result) {
    if (placement.kind != Placement::Kind::kShard) {
      continue;
    }
    const auto found = std::find(order.begin(), order.end(), placement.atom);
    if (found == order.end()) {
      return std::nullopt;
    }
    placement.atom = static_cast<std::int16_t>(found - order.begin());
  }
  return result;
}

}  // namespace

TransferTable::TransferTable(Submesh source, Submesh target, Cluster cluster)
    : source_(std::move(source)), target_(std::move(target)), cluster_(std::move(cluster)) {
  checkSubmesh(source_);
  checkSubmesh(target_);
}

double TransferTable::costUs(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                             const ShardingSpec& to) {
  const std::vector<int> order = atomOrder(atoms);
  const std::optional<ShardingSpec> source = renumbered(from, order);
  const std::optional<ShardingSpec> target = renumbered(to, order);
  if (!source || !target || hasPartial(from) || hasPartial(to)) {
    return kUnreachableUs;
  }
  TensorAtoms plain;
  for (std::size_t i = 0; i < order.size(); ++i) {
    plain.sizes.push_back(atoms.sizes[static_cast<std::size_t>(order[i])]);
    plain.dims.push_back({static_cast<int>(i)});
  }
  if (!isValid(plain, *source, source_.shape) || !isValid(plain, *target, target_.shape)) {
    return kUnreachableUs;
  }
  const auto [entry, added] =
      costs_.try_emplace({elementBytes(dtype), plain.sizes, *source, *target}, 0.0);
  if (added) {
    entry->second = transferCostUs(plain, dtype, *source, source_, *target, target_, cluster_);
  }
  return entry->second;
}

}  // namespace shardwright
