#include "runtime/shard_layout.h"

#include <string>

#include "base/error.h"
#ifdef SHARDWRIGHT_WITH_CUDA
#include "runtime/cuda/transpose_parts.h"
#endif

namespace shardwright {

namespace {

[[noreturn]] void throwIndivisible(c10::IntArrayRef shape, std::int64_t dim, std::int64_t outer,
                                   std::int64_t parts) {
  std::string shape_text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    shape_text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  throw Error(ErrorKind::kInternal, "E902", "a local tensor does not divide as its plan says.",
              {.values = {"local shape " + shape_text + "], dim " + std::to_string(dim) +
                          ", outer " + std::to_string(outer) + ", parts " + std::to_string(parts)},
               .advice = "report this together with the plan (train_step.plan.save)"});
}

// [first, second, columns] -> [second, first, columns], contiguous.
at::Tensor transposeSlabs(const at::Tensor& contiguous, std::int64_t first, std::int64_t second,
                          std::int64_t columns) {
#ifdef SHARDWRIGHT_WITH_CUDA
  if (contiguous.is_cuda()) {
    return transposePartsCuda(contiguous, first, second, columns);
  }
#endif
  return contiguous.view({first, second, columns}).transpose(0, 1).contiguous();
}

}  // namespace

PartView partView(c10::IntArrayRef shape, std::int64_t dim, std::int64_t outer, std::int64_t parts,
                  bool whole) {
  const auto rank = static_cast<std::int64_t>(shape.size());
  if (dim < 0 || dim >= rank || outer < 1 || parts < 1) {
    throwIndivisible(shape, dim, outer, parts);
  }
  PartView view{.rows = outer, .parts = parts, .columns = 1};
  for (std::int64_t i = 0; i < dim; ++i) {
    view.rows *= shape[static_cast<std::size_t>(i)];
  }
  const std::int64_t divisor = whole ? outer * parts : outer;
  const std::int64_t size = shape[static_cast<std::size_t>(dim)];
  if (size % divisor != 0) {
    throwIndivisible(shape, dim, outer, parts);
  }
  view.columns = size / divisor;
  for (std::int64_t i = dim + 1; i < rank; ++i) {
    view.columns *= shape[static_cast<std::size_t>(i)];
  }
  return view;
}

at::Tensor packParts(const at::Tensor& tensor, const PartView& view) {
  const at::Tensor contiguous = tensor.contiguous();
  if (view.rows == 1) {
    return contiguous.view({view.parts, view.rows, view.columns});
  }
  return transposeSlabs(contiguous, view.rows, view.parts, view.columns);
}

at::Tensor unpackParts(const at::Tensor& slabs, const PartView& view, c10::IntArrayRef shape) {
  if (view.rows == 1) {
    return slabs.view(shape);
  }
  return transposeSlabs(slabs, view.parts, view.rows, view.columns).view(shape);
}

at::Tensor takePart(const at::Tensor& tensor, const PartView& view, std::int64_t index,
                    c10::IntArrayRef shape) {
  const at::Tensor part =
      tensor.contiguous().view({view.rows, view.parts, view.columns}).select(1, index);
  return part.clone(at::MemoryFormat::Contiguous).view(shape);
}

std::vector<std::int64_t> gatheredShape(c10::IntArrayRef shape, std::int64_t dim,
                                        std::int64_t parts) {
  std::vector<std::int64_t> result = shape.vec();
  result[static_cast<std::size_t>(dim)] *= parts;
  return result;
}

std::vector<std::int64_t> scatteredShape(c10::IntArrayRef shape, std::int64_t dim,
                                         std::int64_t parts) {
  std::vector<std::int64_t> result = shape.vec();
  result[static_cast<std::size_t>(dim)] /= parts;
  return result;
}

}  // namespace shardwright
