#include "sharding/transfer.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "sharding/transfer_moves.h"
#include "sharding/transfer_tiles.h"

namespace shardwright {

namespace {

[[noreturn]] void throwSpec(const TensorAtoms& atoms, const ShardingSpec& spec,
                            const std::string& side, const std::string& reason) {
  throw Error(ErrorKind::kPlan, "E341",
              "a value cannot move to another stage: its " + side + " spec " + reason + ".",
              {.values = {"spec: " + printSpec(atoms, spec)},
               .advice = "convert on the stage's own mesh first (planReshard)"});
}

void checkSide(const TensorAtoms& atoms, const ShardingSpec& spec, const Submesh& submesh,
               const std::string& side) {
  checkSubmesh(submesh);
  const std::vector<int> order = atomOrder(atoms);
  if (!isValid(atoms, spec, submesh.shape)) {
    throw Error(
        ErrorKind::kPlan, "E341",
        "a value cannot move to another stage: its " + side + " spec does not fit the mesh.",
        {.values = {"placements: " + std::to_string(spec.size()) +
                    ", mesh axes: " + std::to_string(submesh.shape.size())},
         .advice = "one placement per axis of the stage's mesh, with even shards"});
  }
  if (hasPartial(spec)) {
    throwSpec(atoms, spec, side, "has a pending reduction");
  }
  for (const Placement& placement : spec) {
    if (placement.kind == Placement::Kind::kShard &&
        std::find(order.begin(), order.end(), placement.atom) == order.end()) {
      throwSpec(atoms, spec, side, "shards an atom that the value does not have");
    }
  }
}

// Checks what planTransfer promises to check.
TransferTiles checkedTiles(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                           const Submesh& source, const ShardingSpec& to, const Submesh& target,
                           const Cluster& cluster) {
  checkSide(atoms, from, source, "source");
  checkSide(atoms, to, target, "target");
  if (!cluster.abstract_axes.empty()) {
    throw Error(ErrorKind::kCluster, "E358", "an abstract cluster has no links between stages.",
                {.values = {"cluster: " + cluster.name},
                 .advice = "describe hosts and links, or give the boundary's costs as a table"});
  }
  return makeTransferTiles(atoms, dtype, from, source, to, target);
}

// Fewer and larger boxes with the same elements: neighbours along one atom become one.
void mergeNeighbours(std::vector<Region>& regions) {
  const std::size_t num_atoms = regions.empty() ? 0 : regions.front().size();
  for (std::size_t atom = num_atoms; atom-- > 0;) {
    const auto others = [&](const Region& region) {
      std::vector<std::int64_t> key;
      for (std::size_t i = 0; i < num_atoms; ++i) {
        if (i != atom) {
          key.insert(key.end(), {region[i].begin, region[i].size});
        }
      }
      return key;
    };
    std::sort(regions.begin(), regions.end(), [&](const Region& a, const Region& b) {
      return std::pair(others(a), a[atom].begin) < std::pair(others(b), b[atom].begin);
    });
    std::vector<Region> merged;
    for (const Region& region : regions) {
      if (!merged.empty() && others(merged.back()) == others(region) &&
          merged.back()[atom].begin + merged.back()[atom].size == region[atom].begin) {
        merged.back()[atom].size += region[atom].size;
      } else {
        merged.push_back(region);
      }
    }
    regions = std::move(merged);
  }
}

std::vector<TransferStep> copiesWithinRanks(const TransferTiles& all) {
  std::map<int, std::vector<Region>> by_device;
  for (const Tile& tile : all.tiles) {
    const std::vector<int>& holders = all.source.holders[tile.source];
    for (const int device : all.target.holders[tile.target]) {
      if (std::binary_search(holders.begin(), holders.end(), device)) {
        by_device[device].push_back(tile.region);
      }
    }
  }
  std::vector<TransferStep> steps;
  for (auto& [device, regions] : by_device) {
    mergeNeighbours(regions);
    TransferStep& step = steps.emplace_back();
    step.kind = TransferKind::kCopy;
    step.from = step.to = all.rankOf(device);
    for (const Region& region : regions) {
      step.bytes += numElements(region) * all.element_bytes;
      step.copies.push_back(
          {.source = localRegion(region, all.source), .target = localRegion(region, all.target)});
    }
  }
  return steps;
}

std::vector<TransferStep> messages(const TransferTiles& all, const PricedMoves& priced) {
  struct Message {
    std::tuple<TransferKind, int, int> key;  // kind, from, to
    std::int64_t bytes = 0;
    std::vector<Region> regions;
    std::size_t round = 0;
  };
  std::map<std::tuple<TransferKind, int, int>, Message> by_key;
  for (const Move& move : priced.moves) {
    const std::tuple key(move.kind, move.from, move.to);
    Message& message = by_key[key];
    message.key = key;
    message.bytes += move.bytes;
    message.regions.push_back(priced.pieces[move.piece]);
  }
  std::vector<Message> ordered;
  for (auto& [key, message] : by_key) {
    mergeNeighbours(message.regions);
    ordered.push_back(std::move(message));
  }
  // Rounds in which every rank has one message, the largest ones first; kind after kind.
  std::stable_sort(ordered.begin(), ordered.end(), [](const Message& a, const Message& b) {
    return std::tuple(std::get<0>(a.key), -a.bytes) < std::tuple(std::get<0>(b.key), -b.bytes);
  });
  std::vector<std::vector<bool>> busy;
  std::size_t first_round = 0;
  TransferKind last_kind = TransferKind::kSend;
  for (Message& message : ordered) {
    const auto& [kind, from, to] = message.key;
    const auto sender = static_cast<std::size_t>(from);
    const auto receiver = static_cast<std::size_t>(to);
    if (kind != last_kind) {
      first_round = busy.size();
      last_kind = kind;
    }
    message.round = first_round;
    while (message.round < busy.size() &&
           (busy[message.round][sender] || busy[message.round][receiver])) {
      ++message.round;
    }
    if (message.round == busy.size()) {
      busy.emplace_back(all.ranks.size(), false);
    }
    busy[message.round][sender] = busy[message.round][receiver] = true;
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const Message& a, const Message& b) {
    return std::tuple(a.round, a.key) < std::tuple(b.round, b.key);
  });
  std::vector<TransferStep> result;
  for (const Message& message : ordered) {
    const auto& [kind, from, to] = message.key;
    const ShardGrid& given = kind == TransferKind::kSend ? all.source : all.target;
    TransferStep& step = result.emplace_back();
    step.kind = kind;
    step.from = all.rankOf(from);
    step.to = all.rankOf(to);
    step.crosses_hosts = all.hostOf(from) != all.hostOf(to);
    step.bytes = message.bytes;
    for (const Region& region : message.regions) {
      step.copies.push_back(
          {.source = localRegion(region, given), .target = localRegion(region, all.target)});
    }
  }
  return result;
}

}  // namespace

const char* transferKindName(TransferKind kind) {
  switch (kind) {
    case TransferKind::kCopy:
      return "copy";
    case TransferKind::kSend:
      return "send";
    case TransferKind::kRelay:
      return "relay";
    case TransferKind::kGather:
      return "gather";
  }
  return "send";
}

TransferPlan planTransfer(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                          const Submesh& source, const ShardingSpec& to, const Submesh& target,
                          const Cluster& cluster) {
  const TransferTiles all = checkedTiles(atoms, dtype, from, source, to, target, cluster);
  const PricedMoves best = cheapestMoves(all, cluster);
  TransferPlan plan;
  plan.dtype = dtype;
  plan.source_ranks = source.ranks;
  plan.target_ranks = target.ranks;
  plan.source_shape = localShape(atoms, from, source.shape);
  plan.source_sizes = all.source.sizes;
  plan.target_shape = localShape(atoms, to, target.shape);
  plan.target_sizes = all.target.sizes;
  plan.steps = copiesWithinRanks(all);
  for (TransferStep& message : messages(all, best)) {
    plan.steps.push_back(std::move(message));
  }
  plan.cost_us = best.cost_us;
  for (const Move& move : best.moves) {
    plan.rank_traffic[all.rankOf(move.from)].sent_bytes += move.bytes;
    plan.rank_traffic[all.rankOf(move.to)].received_bytes += move.bytes;
    const int from_host = all.host_names[static_cast<std::size_t>(all.hostOf(move.from))];
    const int to_host = all.host_names[static_cast<std::size_t>(all.hostOf(move.to))];
    if (from_host != to_host) {
      plan.host_pair_bytes[{from_host, to_host}] += move.bytes;
    }
  }
  return plan;
}

double transferCostUs(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                      const Submesh& source, const ShardingSpec& to, const Submesh& target,
                      const Cluster& cluster) {
  return cheapestMoves(checkedTiles(atoms, dtype, from, source, to, target, cluster), cluster)
      .cost_us;
}

}  // namespace shardwright
