#include "plan/infeasible.h"

#include <cmath>

#include "base/bytes_text.h"
#include "base/error.h"

namespace shardwright {
namespace {

std::string shapeText(const std::vector<int>& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string breakdown(const MemoryAtPeak& memory) {
  return "parameters " + bytesText(memory.parameters) + ", gradients " +
         bytesText(memory.gradients) + ", optimizer " + bytesText(memory.optimizer) +
         ", activations " + bytesText(memory.activations) + ", other " + bytesText(memory.other);
}

std::string moreTime(double time_limit_s) {
  return "time_limit_s=" + std::to_string(static_cast<std::int64_t>(std::ceil(2 * time_limit_s)));
}

}  // namespace

void throwInfeasible(const FailedSearch& search, const Cluster& cluster) {
  const std::string where =
      search.mesh_shapes.size() == 1
          ? "mesh " + shapeText(search.mesh_shapes.front())
          : "any mesh of " + std::to_string(cluster.numDevices()) + " devices";
  if (search.is_proven_invalid) {
    throw Error(ErrorKind::kInfeasible, "E204",
                "no sharding of the step is valid on " + where + ".",
                {.advice = "fewer forced specs, or another mesh"});
  }
  if (!search.smallest && !search.is_proven_too_large) {
    throw Error(
        ErrorKind::kInfeasible, "E204",
        "no sharding of the step that is valid on " + where + " was found.",
        {.advice = moreTime(search.time_limit_s) + ", fewer forced specs, or another mesh"});
  }
  const std::string limit = search.limit_bytes ? bytesText(*search.limit_bytes) : "the memory";
  const std::string devices = std::to_string(cluster.numDevices() * 2) + " devices";
  ErrorDetails details;
  if (search.smallest) {
    const SmallestPeak& smallest = *search.smallest;
    details.values = {"smallest peak found: " + bytesText(smallest.peak.bytes) + " (" +
                      breakdown(smallest.peak.by_kind) + ")"};
    if (!smallest.largest_tensor.empty()) {
      details.values.push_back("largest tensor: " + smallest.largest_tensor);
    }
    if (search.microbatches_in_flight > 1) {
      details.values.push_back(std::to_string(search.microbatches_in_flight) +
                               " microbatches in flight: activations are those of all of them");
    }
    details.advice = "memory_limit=\"" + bytesLimitText(smallest.peak.bytes) + "\", or ";
  } else {
    details.advice = "a larger memory_limit, or ";
  }
  details.advice +=
      search.is_proven_too_large ? devices : moreTime(search.time_limit_s) + ", or " + devices;
  throw Error(ErrorKind::kInfeasible, "E203",
              search.is_proven_too_large
                  ? "no sharding fits " + limit + " per device on " + where + "."
                  : "no sharding that fits " + limit + " per device on " + where + " was found.",
              details);
}

}  // namespace shardwright
