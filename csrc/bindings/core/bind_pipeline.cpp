// The search for pipeline stages of a whole step.

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "bindings/core/interrupt_watch.h"
#include "plan/pipeline_search.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::dict toDict(const FoundStage& stage) {
  py::dict result;
  result["begin"] = stage.begin;
  result["end"] = stage.end;
  result["num_hosts"] = stage.submesh.num_hosts;
  result["devices_per_host"] = stage.submesh.devices_per_host;
  result["first_device"] = stage.first_device;
  result["mesh_shape"] = stage.mesh_shape;
  result["recomputed"] = stage.recomputed;
  result["microbatches_in_flight"] = stage.microbatches_in_flight;
  result["forward_us"] = stage.forward_us;
  result["backward_us"] = stage.backward_us;
  result["update_us"] = stage.update_us;
  result["memory_bytes"] = stage.memory_bytes;
  result["specs"] = stage.specs;
  return result;
}

py::dict toDict(const PipelineAnswer& answer) {
  py::list stages;
  for (const FoundStage& stage : answer.stages) stages.append(toDict(stage));
  py::dict result;
  result["status"] = shardwright::toString(answer.status);
  result["interrupted"] = answer.interrupted;
  result["stages"] = stages;
  result["time_us"] = answer.time_us;
  result["lower_bound_us"] = answer.lower_bound_us;
  result["unlimited_us"] = answer.unlimited_us;
  result["num_layer_classes"] = answer.num_layer_classes;
  result["num_kinds"] = answer.num_kinds;
  result["seconds"] = answer.seconds;
  return result;
}

py::dict searchFromPython(const Graph& graph, std::vector<int> layers, const Graph* recomputed,
                          std::vector<int> recomputed_layers, const RuleRegistry& registry,
                          const Cluster& cluster, int num_microbatches, const std::string& schedule,
                          std::optional<int> num_stages,
                          std::optional<std::int64_t> memory_limit_bytes, double memory_share,
                          const std::vector<std::pair<int, int>>& submeshes, int max_specs,
                          bool shard_all_products, bool says_what_would_do, double time_limit_s,
                          std::shared_ptr<PricedLayers> priced) {
  PipelineOptions options;
  options.num_microbatches = num_microbatches;
  options.schedule = parseScheduleKind(schedule);
  options.num_stages = num_stages;
  options.memory_limit_bytes = memory_limit_bytes;
  options.memory_share = memory_share;
  for (const auto& [hosts, devices] : submeshes) options.submeshes.push_back({hosts, devices});
  options.max_specs = max_specs;
  options.shard_all_products = shard_all_products;
  options.says_what_would_do = says_what_would_do;
  options.time_limit_s = time_limit_s;
  options.priced = std::move(priced);
  InterruptWatch watch;
  options.is_interrupted = [&watch] { return watch(); };
  const LayeredGraph step{&graph, std::move(layers)};
  const LayeredGraph again{recomputed, std::move(recomputed_layers)};
  PipelineAnswer answer;
  try {
    const py::gil_scoped_release release;
    answer =
        searchPipeline(step, recomputed == nullptr ? nullptr : &again, registry, cluster, options);
  } catch (const Error&) {
    watch.rethrow();  // while it was found out what would do
    throw;
  }
  if (answer.stages.empty()) watch.rethrow();
  return toDict(answer);
}

}  // namespace

void bindPipeline(py::module_& module) {
  py::class_<PricedLayers, std::shared_ptr<PricedLayers>>(
      module, "PricedLayers", "What searches have priced of one step's layers, for later ones.")
      .def(py::init<>());
  module.def("search_pipeline", &searchFromPython, py::arg("graph"), py::arg("layers"),
             py::kw_only(), py::arg("recomputed") = py::none(),
             py::arg("recomputed_layers") = std::vector<int>{}, py::arg("registry"),
             py::arg("cluster"), py::arg("num_microbatches"), py::arg("schedule"),
             py::arg("num_stages") = py::none(), py::arg("memory_limit_bytes") = py::none(),
             py::arg("memory_share") = 1.0,
             py::arg("submeshes") = std::vector<std::pair<int, int>>{}, py::arg("max_specs") = 4,
             py::arg("shard_all_products") = false, py::arg("says_what_would_do") = true,
             py::arg("time_limit_s") = 60.0, py::arg("priced") = py::none(),
             "Stages of least time for a step whose nodes have layers (-1: every layer).");
}

}  // namespace shardwright
