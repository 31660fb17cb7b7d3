// How the parts of one sharded atom lie inside a dim, and the packing between that order and the
// part-major order that collectives use.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace shardwright {

// A dim of `outer * parts * inner` elements seen as [outer, parts, inner]; with the dims before and
// after it a row-major tensor is [rows, parts, columns]. Example: heads of a fused QKV weight
// [3 * heads * e, D] split over 4 parts: rows = 3, columns = heads / 4 * e * D.
struct PartView {
  std::int64_t rows = 1;
  std::int64_t parts = 1;
  std::int64_t columns = 1;
};

// View of `shape` whose dim `dim` holds all parts (`whole`), or only one of them (`!whole`: columns
// counts one part). Throws InternalError [E902] when the sizes do not divide.
PartView partView(c10::IntArrayRef shape, std::int64_t dim, std::int64_t outer, std::int64_t parts,
                  bool whole);

// [rows, parts, columns] -> contiguous [parts, rows, columns]: part j becomes slab j. Without rows
// to cross nothing is copied beyond what contiguous() needs.
at::Tensor packParts(const at::Tensor& tensor, const PartView& view);
// [parts, rows, columns] -> contiguous [rows, parts, columns] of shape `shape`.
at::Tensor unpackParts(const at::Tensor& slabs, const PartView& view, c10::IntArrayRef shape);
// Part `index` of a whole tensor, as a new contiguous tensor of shape `shape`.
at::Tensor takePart(const at::Tensor& tensor, const PartView& view, std::int64_t index,
                    c10::IntArrayRef shape);

// `shape` with dim `dim` multiplied or divided by `parts`.
std::vector<std::int64_t> gatheredShape(c10::IntArrayRef shape, std::int64_t dim,
                                        std::int64_t parts);
std::vector<std::int64_t> scatteredShape(c10::IntArrayRef shape, std::int64_t dim,
                                         std::int64_t parts);

}  // namespace shardwright
