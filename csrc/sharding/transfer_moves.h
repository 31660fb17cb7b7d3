// Who sends which part of a transfer's tiles to whom, and what that costs.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/cluster.h"
#include "sharding/transfer_tiles.h"

namespace shardwright {

// A part of a tile on its way from one device to another.
struct Move {
  TransferKind kind = TransferKind::kSend;
  int from = 0;  // devices
  int to = 0;
  std::size_t piece = 0;
  std::int64_t bytes = 0;
};

struct PricedMoves {
  std::vector<Region> pieces;  // what moves, in coordinates of the whole
  std::vector<Move> moves;
  double cost_us = 0;
};

// The cheapest of the ways that planTransfer describes, priced as it says; of equally cheap ones
// the first, plainer one. What a rank of both meshes has is no move.
PricedMoves cheapestMoves(const TransferTiles& tiles, const Cluster& cluster);

}  // namespace shardwright
