#include "interop/boundary_specs.h"

#include <algorithm>
#include <cstddef>

namespace shardwright {
namespace {

// One mesh axis that shards: it cuts runs of `extent` elements (row major) into `parts`.
struct Split {
  std::int64_t extent = 1;
  int parts = 1;
  std::size_t axis = 0;
};

std::vector<Split> splitsOf(const TensorAtoms& atoms, const ShardingSpec& spec,
                            const std::vector<int>& mesh_shape) {
  std::vector<Split> splits;
  std::int64_t extent = 1;
  for (std::size_t dim = atoms.dims.size(); dim-- > 0;) {
    for (std::size_t place = atoms.dims[dim].size(); place-- > 0;) {
      const int atom = atoms.dims[dim][place];
      extent *= atoms.sizes[static_cast<std::size_t>(atom)];
      std::int64_t rest = extent;
      for (const int axis : axesOfAtom(spec, atom)) {
        const int parts = mesh_shape[static_cast<std::size_t>(axis)];
        splits.push_back({rest, parts, static_cast<std::size_t>(axis)});
        rest /= parts;
      }
    }
  }
  std::ranges::sort(splits, std::ranges::greater(), &Split::extent);
  return splits;
}

}  // namespace

TensorAtoms wholeDims(const std::vector<std::int64_t>& shape) {
  TensorAtoms atoms;
  for (const std::int64_t size : shape) {
    atoms.dims.push_back({static_cast<int>(atoms.sizes.size())});
    atoms.sizes.push_back(size);
  }
  return atoms;
}

std::optional<ShardingSpec> boundarySpec(const TensorAtoms& atoms, const ShardingSpec& spec,
                                         const std::vector<std::int64_t>& boundary,
                                         const std::vector<int>& mesh_shape) {
  if (hasPartial(spec)) {
    return std::nullopt;
  }
  ShardingSpec result(spec.size(), Placement::replicate());
  const std::vector<Split> splits = splitsOf(atoms, spec, mesh_shape);
  std::size_t next = 0;
  std::int64_t inner = 1;
  for (const std::int64_t size : boundary) {
    inner *= size;
  }
  if (inner == 0) return splits.empty() ? std::optional(result) : std::nullopt;  // no elements
  for (std::size_t dim = 0; dim < boundary.size(); ++dim) {
    std::int64_t rest = inner;
    inner /= boundary[dim];
    // Its splits must begin with the whole dim and go on where the last one ended.
    for (int order = 0; next < splits.size() && splits[next].extent == rest && rest > inner;
         ++order) {
      rest /= splits[next].parts;
      if (rest < inner || rest % inner != 0) {
        return std::nullopt;
      }
      result[splits[next].axis] = Placement::shard(static_cast<int>(dim), order);
      ++next;
    }
  }
  return next == splits.size() ? std::optional(result) : std::nullopt;
}

}  // namespace shardwright
