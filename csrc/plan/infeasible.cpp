#include "plan/infeasible.h"

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

}  // namespace

void throwInfeasible(const std::vector<std::vector<int>>& mesh_shapes,
                     std::optional<std::int64_t> limit_bytes,
                     const std::optional<SmallestPeak>& smallest, const Cluster& cluster) {
  std::string where = mesh_shapes.size() == 1
                          ? "mesh " + shapeText(mesh_shapes.front())
                          : "any mesh of " + std::to_string(cluster.numDevices()) + " devices";
  if (!smallest) {
    throw Error(ErrorKind::kInfeasible, "E204",
                "no sharding of the step is valid on " + where + ".",
                {.advice = "fewer forced specs, or another mesh"});
  }
  const std::string limit = limit_bytes ? bytesText(*limit_bytes) : "the memory";
  ErrorDetails details;
  details.values = {"smallest peak found: " + bytesText(smallest->peak.bytes) + " (" +
                    breakdown(smallest->peak.by_kind) + ")"};
  if (!smallest->largest_tensor.empty()) {
    details.values.push_back("largest tensor: " + smallest->largest_tensor);
  }
  details.advice = "memory_limit=\"" + bytesLimitText(smallest->peak.bytes) + "\"";
  details.advice += ", or " + std::to_string(cluster.numDevices() * 2) + " devices";
  throw Error(ErrorKind::kInfeasible, "E203",
              "no sharding fits " + limit + " per device on " + where + ".", details);
}

}  // namespace shardwright
