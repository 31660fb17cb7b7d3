// The stage search on NumPy tables.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "bindings/core/interrupt_watch.h"
#include "interop/stage_dp.h"
#include "interop/stage_infeasible.h"

namespace py = pybind11;

namespace shardwright {

namespace {

// [begin, end, submesh, variant]; 0 <= begin < end <= num_layers are read.
using Times = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

template <typename T, typename Array>
RangeTable<T> tableOf(const Array& array, py::ssize_t submesh, py::ssize_t variant) {
  const auto values = array.template unchecked<4>();
  const int num_layers = static_cast<int>(array.shape(0));
  RangeTable<T> table(num_layers, T{});
  for (int i = 0; i < num_layers; ++i) {
    for (int j = i + 1; j <= num_layers; ++j) table.at(i, j) = values(i, j, submesh, variant);
  }
  return table;
}

// [layer] or [layer, submesh before, submesh after]; layer 0 is not read.
std::vector<Boundary> boundariesOf(const Times& array) {
  std::vector<Boundary> boundaries;
  const auto num_layers = static_cast<std::size_t>(array.shape(0));
  const std::size_t entries = static_cast<std::size_t>(array.size()) / num_layers;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const double* begin = array.data() + layer * entries;
    boundaries.push_back({std::vector<double>(begin, begin + entries)});
  }
  return boundaries;
}

py::dict toDict(const StageProblem& problem, const StageAnswer& answer) {
  py::list stages;
  for (const PlannedStage& stage : answer.stages) {
    const StageKind& kind = problem.kinds[static_cast<std::size_t>(stage.kind)];
    stages.append(py::make_tuple(stage.begin, stage.end, kind.submesh, kind.variant));
  }
  py::dict result;
  result["status"] = shardwright::toString(answer.status);
  result["stages"] = stages;
  result["time"] =
      answer.stages.empty() ? std::numeric_limits<double>::infinity() : answer.evaluation.time;
  result["lower_bound"] = answer.lower_bound;
  result["longest_step"] = answer.evaluation.longest_step;
  result["stage_times"] = answer.evaluation.stage_times;
  result["stage_memory_bytes"] = answer.evaluation.stage_memory_bytes;
  result["num_devices"] = answer.evaluation.num_devices;
  result["exact_runs"] = answer.num_exact_runs;
  result["seconds"] = answer.seconds;
  return result;
}

py::dict searchFromPython(const Times& times, const std::vector<std::pair<int, int>>& submeshes,
                          int num_devices, bool use_all_devices, int num_microbatches,
                          const std::optional<Times>& boundary_times, bool overlap_transfers,
                          const std::string& schedule, const std::optional<Bytes>& fixed_bytes,
                          const std::optional<Bytes>& microbatch_bytes,
                          std::optional<std::int64_t> memory_limit_bytes, double time_limit_s) {
  StageProblem problem;
  problem.num_layers = static_cast<int>(times.shape(0));
  for (const auto& [hosts, devices] : submeshes) problem.submeshes.push_back({hosts, devices});
  problem.num_devices = num_devices;
  problem.use_all_devices = use_all_devices;
  problem.num_microbatches = num_microbatches;
  problem.charge = overlap_transfers ? TransferCharge::kLink : TransferCharge::kBothStages;
  problem.schedule = parseScheduleKind(schedule);
  problem.memory_limit_bytes = memory_limit_bytes;
  for (py::ssize_t s = 0; s < times.shape(2); ++s) {
    for (py::ssize_t v = 0; v < times.shape(3); ++v) {
      problem.kinds.push_back({static_cast<std::int32_t>(s), 0, 0, static_cast<std::int32_t>(v)});
      problem.times.push_back(tableOf<double>(times, s, v));
      if (fixed_bytes && microbatch_bytes) {
        problem.memory.push_back({tableOf<std::int64_t>(*fixed_bytes, s, v),
                                  tableOf<std::int64_t>(*microbatch_bytes, s, v)});
      }
    }
  }
  if (boundary_times) problem.boundaries = boundariesOf(*boundary_times);
  InterruptWatch watch;
  const auto is_interrupted = [&] { return watch(); };
  StageAnswer answer;
  try {
    const py::gil_scoped_release release;
    answer =
        searchStages(problem, {.time_limit_s = time_limit_s, .is_interrupted = is_interrupted});
    if (answer.status == StageStatus::kInfeasible) {
      throwStagesInfeasible(problem, {.time_limit_s = time_limit_s - answer.seconds,
                                      .is_interrupted = is_interrupted});
    }
  } catch (const Error&) {
    watch.rethrow();  // while it was found out what would do
    throw;
  }
  if (answer.stages.empty()) watch.rethrow();
  return toDict(problem, answer);
}

}  // namespace

void bindStages(py::module_& module) {
  module.def("search_stages", &searchFromPython, py::kw_only(), py::arg("times"),
             py::arg("submeshes"), py::arg("num_devices"), py::arg("use_all_devices"),
             py::arg("num_microbatches"), py::arg("boundary_times"), py::arg("overlap_transfers"),
             py::arg("schedule"), py::arg("fixed_bytes"), py::arg("microbatch_bytes"),
             py::arg("memory_limit_bytes"), py::arg("time_limit_s"),
             "The stages of least time for tables whose shapes shardwright.stages has checked.");
}

}  // namespace shardwright
