#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/runtime/bind.h"
#include "runtime/stage_transfer.h"

namespace py = pybind11;

namespace shardwright {

namespace {

// Plans come as plain values: the planner's module and this one share no types.
using RegionValue = std::vector<std::pair<std::int64_t, std::int64_t>>;
using CopyValue = std::pair<RegionValue, RegionValue>;
using StepValue = std::tuple<std::string, int, int, std::int64_t, std::vector<CopyValue>>;
using ChannelValue = std::pair<std::string, std::vector<int>>;

Region regionOf(const RegionValue& value) {
  Region region;
  for (const auto& [begin, size] : value) {
    region.push_back({.begin = begin, .size = size});
  }
  return region;
}

TransferStep stepOf(const StepValue& value) {
  const auto& [kind, from, to, bytes, copies] = value;
  TransferStep step;
  for (const TransferKind known :
       {TransferKind::kCopy, TransferKind::kSend, TransferKind::kRelay, TransferKind::kGather}) {
    if (kind == transferKindName(known)) {
      step.kind = known;
    }
  }
  step.from = from;
  step.to = to;
  step.bytes = bytes;
  for (const auto& [source, target] : copies) {
    step.copies.push_back({.source = regionOf(source), .target = regionOf(target)});
  }
  return step;
}

TransferChannel channelOf(const ChannelValue& value) {
  return {.group = value.first, .ranks = value.second};
}

StageTransfer makeStageTransfer(int rank, const std::vector<StepValue>& steps, bool has_source,
                                bool has_target, std::vector<std::int64_t> source_sizes,
                                std::vector<std::int64_t> target_shape,
                                std::vector<std::int64_t> target_sizes, at::ScalarType dtype,
                                const at::Device& device, const ChannelValue& sends,
                                const ChannelValue& gathers) {
  TransferRoute route{.rank = rank,
                      .steps = {},
                      .has_source = has_source,
                      .has_target = has_target,
                      .source_sizes = std::move(source_sizes),
                      .target_shape = std::move(target_shape),
                      .target_sizes = std::move(target_sizes)};
  for (const StepValue& step : steps) {
    route.steps.push_back(stepOf(step));
  }
  return {std::move(route), at::TensorOptions().dtype(dtype).device(device), channelOf(sends),
          channelOf(gathers)};
}

}  // namespace

void bindStageTransfer(py::module_& module) {
  py::class_<PendingTransfer>(module, "PendingTransfer", "A transfer under way.")
      .def("wait", &PendingTransfer::wait, py::call_guard<py::gil_scoped_release>(),
           "The target shard on ranks of the target mesh, None elsewhere. Once only.");
  py::class_<StageTransfer>(module, "StageTransfer", "One rank's part of a transfer plan.")
      .def(py::init(&makeStageTransfer), py::kw_only(), py::arg("rank"), py::arg("steps"),
           py::arg("has_source"), py::arg("has_target"), py::arg("source_sizes"),
           py::arg("target_shape"), py::arg("target_sizes"), py::arg("dtype"), py::arg("device"),
           py::arg("sends"), py::arg("gathers"))
      .def("start", &StageTransfer::start, py::arg("shard"), py::arg("tag"), py::arg("context"),
           py::call_guard<py::gil_scoped_release>(), py::keep_alive<0, 1>(),
           "Posts this rank's sends and receives.");
}

}  // namespace shardwright
