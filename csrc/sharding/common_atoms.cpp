#include "sharding/common_atoms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

namespace shardwright {
namespace {

// Elements within each atom of a dim, outer to inner: atoms {2, 3, 4} give {12, 4, 1}.
std::vector<std::int64_t> cutsOf(const TensorAtoms& atoms, std::size_t dim) {
  std::vector<std::int64_t> cuts(atoms.dims[dim].size());
  std::int64_t inside = 1;
  for (std::size_t k = cuts.size(); k-- > 0;) {
    cuts[k] = inside;
    inside *= atoms.sizes[static_cast<std::size_t>(atoms.dims[dim][k])];
  }
  return cuts;
}

std::int64_t sizeOf(const TensorAtoms& atoms, std::size_t dim) {
  std::int64_t size = 1;
  for (const int atom : atoms.dims[dim]) {
    size *= atoms.sizes[static_cast<std::size_t>(atom)];
  }
  return size;
}

// Old atom -> the outermost of its pieces.
using Pieces = std::map<int, int>;

void mapPieces(const TensorAtoms& old, std::size_t dim, const std::vector<std::int64_t>& cuts,
               int first_new, Pieces& pieces) {
  const std::vector<std::int64_t> own = cutsOf(old, dim);
  for (std::size_t k = 0; k < own.size(); ++k) {
    const std::int64_t end =
        own[k] * old.sizes[static_cast<std::size_t>(old.dims[dim][k])];  // elements it spans
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      if (cuts[c] < end) {
        pieces[old.dims[dim][k]] = first_new + static_cast<int>(c);
        break;
      }
    }
  }
}

std::optional<ShardingSpec> translated(const ShardingSpec& spec, const Pieces& pieces,
                                       const TensorAtoms& atoms, const std::vector<int>& mesh) {
  ShardingSpec result = spec;
  for (Placement& placement : result) {
    if (placement.kind == Placement::Kind::kShard) {
      const auto piece = pieces.find(placement.atom);
      if (piece == pieces.end()) {
        return std::nullopt;
      }
      placement.atom = static_cast<std::int16_t>(piece->second);
    }
  }
  return isValid(atoms, result, mesh) ? std::optional(result) : std::nullopt;
}

}  // namespace

std::optional<CommonAtoms> commonAtoms(const TensorAtoms& source_atoms,
                                       const ShardingSpec& source_spec,
                                       const std::vector<int>& source_mesh,
                                       const TensorAtoms& target_atoms,
                                       const ShardingSpec& target_spec,
                                       const std::vector<int>& target_mesh) {
  CommonAtoms common;
  Pieces source_pieces;
  Pieces target_pieces;
  for (std::size_t dim = 0; dim < source_atoms.dims.size(); ++dim) {
    std::vector<std::int64_t> cuts = cutsOf(source_atoms, dim);
    const std::vector<std::int64_t> more = cutsOf(target_atoms, dim);
    cuts.insert(cuts.end(), more.begin(), more.end());
    std::ranges::sort(cuts, std::greater<>());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    const int first_new = static_cast<int>(common.atoms.sizes.size());
    std::int64_t above = sizeOf(source_atoms, dim);
    std::vector<int>& members = common.atoms.dims.emplace_back();
    for (const std::int64_t cut : cuts) {
      if (cut == 0 || above % cut != 0) {
        return std::nullopt;
      }
      members.push_back(static_cast<int>(common.atoms.sizes.size()));
      common.atoms.sizes.push_back(above / cut);
      above = cut;
    }
    mapPieces(source_atoms, dim, cuts, first_new, source_pieces);
    mapPieces(target_atoms, dim, cuts, first_new, target_pieces);
  }
  const auto source = translated(source_spec, source_pieces, common.atoms, source_mesh);
  const auto target = translated(target_spec, target_pieces, common.atoms, target_mesh);
  if (!source || !target) {
    return std::nullopt;
  }
  common.source = *source;
  common.target = *target;
  return common;
}

}  // namespace shardwright
