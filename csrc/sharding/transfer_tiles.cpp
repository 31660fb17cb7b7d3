#include "sharding/transfer_tiles.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardwright {

namespace {

// One interval of an atom that neither side cuts.
struct Interval {
  AtomRange range;
  std::int64_t source_part = 0;
  std::int64_t target_part = 0;
};

std::vector<Interval> intervalsOf(std::int64_t size, std::int64_t source_size,
                                  std::int64_t target_size) {
  std::vector<Interval> intervals;
  for (std::int64_t begin = 0; begin < size;) {
    const std::int64_t source_part = begin / source_size;
    const std::int64_t target_part = begin / target_size;
    const std::int64_t end =
        std::min((source_part + 1) * source_size, (target_part + 1) * target_size);
    intervals.push_back({.range = {.begin = begin, .size = end - begin},
                         .source_part = source_part,
                         .target_part = target_part});
    begin = end;
  }
  return intervals;
}

int denseIndex(const std::vector<int>& sorted, int value) {
  return static_cast<int>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
}

// Positions in `submesh` become devices, ascending.
void toDevices(ShardGrid& grid, const Submesh& submesh, const std::vector<int>& ranks) {
  for (std::vector<int>& holders : grid.holders) {
    for (int& holder : holders) {
      holder = denseIndex(ranks, submesh.ranks[static_cast<std::size_t>(holder)]);
    }
    std::sort(holders.begin(), holders.end());
  }
}

}  // namespace

std::vector<int> atomOrder(const TensorAtoms& atoms) {
  std::vector<int> order;
  for (const std::vector<int>& dim : atoms.dims) {
    order.insert(order.end(), dim.begin(), dim.end());
  }
  return order;
}

ShardGrid makeShardGrid(const TensorAtoms& atoms, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape) {
  const std::vector<int> order = atomOrder(atoms);
  ShardGrid grid;
  std::vector<std::vector<int>> axes;
  std::int64_t num_shards = 1;
  const std::vector<std::int64_t> shards = atomShards(atoms, spec, mesh_shape);
  for (const int atom : order) {
    const auto index = static_cast<std::size_t>(atom);
    grid.parts.push_back(shards[index]);
    grid.sizes.push_back(atoms.sizes[index] / shards[index]);
    axes.push_back(axesOfAtom(spec, atom));
    num_shards *= shards[index];
  }
  grid.holders.resize(static_cast<std::size_t>(num_shards));
  int num_positions = 1;
  for (const int size : mesh_shape) {
    num_positions *= size;
  }
  std::vector<int> coordinate(mesh_shape.size(), 0);
  for (int position = 0; position < num_positions; ++position) {
    std::int64_t shard = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::int64_t part = 0;
      for (const int axis : axes[i]) {
        const auto a = static_cast<std::size_t>(axis);
        part = part * mesh_shape[a] + coordinate[a];
      }
      shard = shard * grid.parts[i] + part;
    }
    grid.holders[static_cast<std::size_t>(shard)].push_back(position);
    for (std::size_t axis = mesh_shape.size(); axis-- > 0;) {
      if (++coordinate[axis] < mesh_shape[axis]) {
        break;
      }
      coordinate[axis] = 0;
    }
  }
  return grid;
}

std::vector<Tile> intersectGrids(const ShardGrid& source, const ShardGrid& target) {
  std::vector<Tile> tiles(1);
  for (std::size_t i = 0; i < source.parts.size(); ++i) {
    const std::vector<Interval> intervals =
        intervalsOf(source.sizes[i] * source.parts[i], source.sizes[i], target.sizes[i]);
    std::vector<Tile> longer;
    longer.reserve(tiles.size() * intervals.size());
    for (const Tile& tile : tiles) {
      for (const Interval& interval : intervals) {
        Tile& next = longer.emplace_back(tile);
        next.region.push_back(interval.range);
        next.source = tile.source * static_cast<std::size_t>(source.parts[i]) +
                      static_cast<std::size_t>(interval.source_part);
        next.target = tile.target * static_cast<std::size_t>(target.parts[i]) +
                      static_cast<std::size_t>(interval.target_part);
      }
    }
    tiles = std::move(longer);
  }
  return tiles;
}

TransferTiles makeTransferTiles(const TensorAtoms& atoms, DType dtype, const ShardingSpec& from,
                                const Submesh& source, const ShardingSpec& to,
                                const Submesh& target) {
  TransferTiles result;
  result.element_bytes = elementBytes(dtype);
  std::map<int, int> host_of_rank;
  for (const Submesh* submesh : {&source, &target}) {
    for (std::size_t i = 0; i < submesh->ranks.size(); ++i) {
      host_of_rank.emplace(submesh->ranks[i], submesh->hosts[i]);
    }
  }
  for (const auto& [rank, host] : host_of_rank) {
    result.ranks.push_back(rank);
    result.hosts.push_back(host);
  }
  std::vector<int>& names = result.host_names;
  names = result.hosts;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (int& host : result.hosts) {
    host = denseIndex(names, host);
  }
  result.source = makeShardGrid(atoms, from, source.shape);
  result.target = makeShardGrid(atoms, to, target.shape);
  toDevices(result.source, source, result.ranks);
  toDevices(result.target, target, result.ranks);
  result.tiles = intersectGrids(result.source, result.target);
  return result;
}

Region localRegion(const Region& region, const ShardGrid& grid) {
  Region local = region;
  for (std::size_t i = 0; i < local.size(); ++i) {
    local[i].begin %= grid.sizes[i];
  }
  return local;
}

std::int64_t numElements(const Region& region) {
  std::int64_t count = 1;
  for (const AtomRange& range : region) {
    count *= range.size;
  }
  return count;
}

std::vector<Region> splitRegion(const Region& region, std::size_t count) {
  const auto wanted = static_cast<std::int64_t>(count);
  auto cut = std::find_if(region.begin(), region.end(),
                          [&](const AtomRange& range) { return range.size >= wanted; });
  if (cut == region.end()) {
    cut = std::max_element(region.begin(), region.end(),
                           [](const AtomRange& a, const AtomRange& b) { return a.size < b.size; });
  }
  if (cut == region.end() || cut->size <= 1 || count <= 1) {
    return {region};
  }
  const auto atom = static_cast<std::size_t>(cut - region.begin());
  const std::int64_t parts = std::min(wanted, cut->size);
  std::vector<Region> pieces;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = cut->size * part / parts;
    const std::int64_t end = cut->size * (part + 1) / parts;
    Region& piece = pieces.emplace_back(region);
    piece[atom] = {.begin = cut->begin + begin, .size = end - begin};
  }
  return pieces;
}

}  // namespace shardwright
