// From one stage's mesh to another's: which rank sends which part of a value to which rank, in an
// order that cannot deadlock, and what it costs. Price and steps come from the same function.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "mesh/cluster.h"
#include "mesh/submesh.h"
#include "sharding/placement.h"

namespace shardwright {

// A box of a shard: per atom of the value, dim by dim and outer to inner, a range of the elements
// that the shard holds of it. A row-major shard seen in its atoms' local sizes has it as a strided
// view, also where dims hold several atoms.
struct AtomRange {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  bool operator==(const AtomRange&) const = default;
};
using Region = std::vector<AtomRange>;

// The same elements where they come from and where they go to.
struct RegionCopy {
  Region source;
  Region target;
  bool operator==(const RegionCopy&) const = default;
};

enum class TransferKind : std::uint8_t {
  kCopy,    // inside one rank that is in both meshes: source shard to target shard
  kSend,    // source shard of `from` to target shard of `to`
  kRelay,   // between hosts, after all sends: target shard of `from` to that of `to`
  kGather,  // inside a host, after all relays: target shard of `from` to that of `to`
};
const char* transferKindName(TransferKind kind);  // "copy", "send", "relay", "gather"

// One message: the copies one after the other, each row-major, packed without gaps.
struct TransferStep {
  TransferKind kind = TransferKind::kSend;
  int from = 0;  // global ranks
  int to = 0;
  bool crosses_hosts = false;
  std::int64_t bytes = 0;
  std::vector<RegionCopy> copies;
};

struct RankTraffic {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  bool operator==(const RankTraffic&) const = default;
};

// Steps in one order for all ranks: a rank performs those that name it one after the other. As the
// order is one, and what is passed on comes after what brings it, the first step not yet done can
// always be done: there is no deadlock, even where a send waits for its receiver. Steps that stand
// together mostly have different ranks and run in parallel. At most one message per pair of ranks
// and kind.
struct TransferPlan {
  DType dtype = DType::kFloat32;
  std::vector<int> source_ranks;  // of the meshes, in mesh order
  std::vector<int> target_ranks;
  std::vector<std::int64_t> source_shape;  // of a source shard, dim by dim
  std::vector<std::int64_t> source_sizes;  // of a source shard, atom by atom as in Region
  std::vector<std::int64_t> target_shape;  // of a target shard
  std::vector<std::int64_t> target_sizes;
  std::vector<TransferStep> steps;
  double cost_us = 0;
  // Bytes from one host to another, by (from, to); nothing for what stays inside a host.
  std::map<std::pair<int, int>, std::int64_t> host_pair_bytes;
  std::map<int, RankTraffic> rank_traffic;  // of every rank that sends or receives
};

// How the shards of a value under `from` on mesh `source` become those under `to` on mesh
// `target`. Meshes may have any shapes, share hosts and even ranks.
//  - Tiles are the intersections of source and target shards. A target rank takes what it
//    holds itself from itself, what is on its host from there, and the rest from another host.
//  - Each host receives each byte at most once from other hosts, whatever number of its ranks need
//    it: one of them receives it (or each an equal part) and passes it on inside the host.
//  - Of several ranks that hold a tile the one sends whose host, then whose own link has least to
//    send so far, largest tiles first.
//  - Of a tile that several hosts lack each receives a copy, or each a part that it relays to the
//    other hosts, so that the source's NIC sends the tile once.
//  - Whole tiles or equal parts, within and between hosts, relays or none: the cheapest of all.
// Price in microseconds: sends, relays, gathers; each of these takes as long as its busiest link
// (bytes by bandwidth) plus the start-up of its busiest rank. Links are each device's port in
// either direction (intra_host bandwidth, for all its bytes) and each host's NIC in either
// direction (inter_host bandwidth, shared by its devices). A rank with k messages starts up like a
// collective of k + 1 ranks: latency + hop_latency * (k - 1), of the inter-host link if any of its
// messages leaves the host. Packing is not priced. 0 when nothing moves.
// Worked example: V bytes replicated on host 0 to all 4 devices of host 1: each receives V / 4
// through the NIC (V / inter), then 3 parts of V / 4 from its neighbours (3/4 V / intra).
// Throws PlanError [E341] for a pending reduction on either side (reduce first, with planReshard on
// the source mesh), a spec that is not valid on its mesh or one that shards an atom that is in no
// dim, ClusterError [E358] for a submesh that is not one or an abstract cluster, which has no
// links. Deterministic.
TransferPlan planTransfer(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                          const Submesh& source, const ShardingSpec& to, const Submesh& target,
                          const Cluster& cluster);

// TransferPlan::cost_us without the steps.
double transferCostUs(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                      const Submesh& source, const ShardingSpec& to, const Submesh& target,
                      const Cluster& cluster);

}  // namespace shardwright
