// Plans: the search, its result as plain values, and the certificate.

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/core/bind.h"
#include "plan/certificate.h"
#include "plan/parameter_gradients.h"
#include "plan/planner.h"

namespace py = pybind11;

namespace shardwright {

namespace {

// Polls Python's signal handlers at most every 50 ms from the searching thread; a pending exception
// (KeyboardInterrupt) stops the search and is raised when the GIL is back.
class InterruptPoll {
 public:
  bool operator()() {
    if (raised_) {
      return true;
    }
    const py::gil_scoped_acquire acquire;
    raised_ = PyErr_CheckSignals() != 0;
    if (raised_) {
      error_.emplace();
    }
    return raised_;
  }
  // Calls a Python function; what it raises stops the search as an interrupt does.
  void tell(const py::function& listener, const SolveProgress& progress) {
    const py::gil_scoped_acquire acquire;
    if (raised_) {
      return;
    }
    try {
      listener(progress.phase, progress.cost, progress.lower_bound, progress.seconds);
    } catch (py::error_already_set& error) {
      raised_ = true;
      error_.emplace(std::move(error));
    }
  }
  void rethrow() {
    if (error_) {
      throw py::error_already_set(std::move(*error_));
    }
  }

 private:
  bool raised_ = false;
  std::optional<py::error_already_set> error_;
};

PlanResult planStepFromPython(const ShardedGraph& graph, const Cluster& cluster,
                              std::optional<std::vector<int>> mesh_shape,
                              std::optional<std::int64_t> memory_limit_bytes,
                              std::map<std::string, std::string> forced, int num_microbatches,
                              int microbatches_in_flight, double time_limit_s, double relative_gap,
                              bool shard_all_products, std::string graph_hash,
                              const std::optional<py::function>& on_progress) {
  InterruptPoll poll;
  PlanOptions options;
  options.mesh_shape = std::move(mesh_shape);
  options.memory_limit_bytes = memory_limit_bytes;
  options.forced = std::move(forced);
  options.num_microbatches = num_microbatches;
  options.microbatches_in_flight = microbatches_in_flight;
  options.time_limit_s = time_limit_s;
  options.relative_gap = relative_gap;
  options.shard_all_products = shard_all_products;
  options.graph_hash = std::move(graph_hash);
  options.is_interrupted = [&poll] { return poll(); };
  if (on_progress) {
    options.on_progress = [&](const SolveProgress& progress) { poll.tell(*on_progress, progress); };
  }
  PlanResult result = [&] {
    const py::gil_scoped_release release;
    return planStep(graph, cluster, options);
  }();
  poll.rethrow();
  return result;
}

CertifiedCost certifyFromPython(const ShardedGraph& graph, const Plan& plan) {
  const py::gil_scoped_release release;
  const StagePlan& stage = plan.stages.at(0);
  const DeviceMesh mesh(stage.mesh_shape, plan.cluster);
  CertifyOptions options;
  const double microbatches = plan.num_microbatches;
  options.phase_weight = {microbatches, microbatches, 1};
  options.microbatches_in_flight = plan.microbatches_in_flight;
  return certifyPlan(graph, stage, mesh, plan.cluster, options);
}

// One graph node as the plan file describes it.
py::dict describeNode(const ShardedGraph& graph, NodeId id) {
  const Node& node = graph.graph().node(id);
  py::dict described;
  described["name"] = node.name;
  described["op"] = node.op;
  described["phase"] = phaseName(node.phase);
  described["module_path"] = node.module_path;
  described["source"] = node.source;
  described["input_kind"] = node.input ? inputKindName(node.input->kind) : "";
  described["input_name"] = node.input ? node.input->name : "";
  described["is_view"] = graph.isView(id);
  py::list outputs;
  for (std::size_t output = 0; output < node.outputs.size(); ++output) {
    py::dict value;
    value["shape"] = node.outputs[output].shape;
    value["dtype"] = dtypeName(node.outputs[output].dtype);
    value["atoms"] = graph.atoms({id, static_cast<int>(output)});
    outputs.append(value);
  }
  described["outputs"] = outputs;
  return described;
}

void bindChoices(py::module_& module) {
  py::class_<OpChoice>(module, "OpChoice", "Specs of one node's operands and outputs.")
      .def(py::init([](std::size_t node, std::vector<ShardingSpec> operands,
                       std::vector<ShardingSpec> outputs) {
             return OpChoice{NodeId(node), std::move(operands), std::move(outputs)};
           }),
           py::arg("node"), py::arg("operands"), py::arg("outputs"))
      .def_property_readonly("node", [](const OpChoice& c) { return c.node.index(); })
      .def_readonly("operands", &OpChoice::operands)
      .def_readonly("outputs", &OpChoice::outputs);
  py::class_<ConversionChoice>(module, "ConversionChoice", "Spec of one conversion point.")
      .def(
          py::init([](std::size_t node, int output, int group, ShardingSpec spec, bool from_first) {
            return ConversionChoice{{NodeId(node), output}, group, std::move(spec), from_first};
          }),
          py::arg("node"), py::arg("output"), py::arg("group"), py::arg("spec"),
          py::arg("from_first"))
      .def_property_readonly("node", [](const ConversionChoice& c) { return c.value.node.index(); })
      .def_property_readonly("output", [](const ConversionChoice& c) { return c.value.output; })
      .def_readonly("group", &ConversionChoice::group)
      .def_readonly("spec", &ConversionChoice::spec)
      .def_readonly("from_first", &ConversionChoice::from_first);
  py::class_<StagePlan>(module, "StagePlan", "Nodes of one pipeline stage and their mesh.")
      .def(py::init([](std::vector<int> mesh_shape, std::vector<int> ranks,
                       std::vector<OpChoice> ops, std::vector<ConversionChoice> conversions) {
             return StagePlan{std::move(mesh_shape), std::move(ranks), std::move(ops),
                              std::move(conversions)};
           }),
           py::arg("mesh_shape"), py::arg("ranks"), py::arg("ops"), py::arg("conversions"))
      .def_readonly("mesh_shape", &StagePlan::mesh_shape)
      .def_readonly("ranks", &StagePlan::ranks)
      .def_readonly("ops", &StagePlan::ops)
      .def_readonly("conversions", &StagePlan::conversions);
}

void bindCertificate(py::module_& module) {
  py::class_<CollectiveCount>(module, "CollectiveCount", "Collectives of one kind.")
      .def_readonly("count", &CollectiveCount::count)
      .def_readonly("bytes", &CollectiveCount::bytes)
      .def_readonly("ring_bytes_per_device", &CollectiveCount::ring_bytes_per_device)
      .def_readonly("cost_us", &CollectiveCount::cost_us);
  py::class_<MemoryAtPeak>(module, "MemoryAtPeak", "Bytes of one device at the peak, by kind.")
      .def_readonly("parameters", &MemoryAtPeak::parameters)
      .def_readonly("gradients", &MemoryAtPeak::gradients)
      .def_readonly("optimizer", &MemoryAtPeak::optimizer)
      .def_readonly("activations", &MemoryAtPeak::activations)
      .def_readonly("other", &MemoryAtPeak::other);
  py::class_<MemorySample>(module, "MemorySample", "Bytes of one device at one moment.")
      .def_readonly("moment", &MemorySample::moment)
      .def_property_readonly("phase", [](const MemorySample& s) { return phaseName(s.phase); })
      .def_readonly("memory", &MemorySample::memory);
  py::class_<Certificate>(module, "Certificate", "Recomputed cost and memory of a plan.")
      .def_readonly("cost_us", &Certificate::cost_us)
      .def_readonly("compute_us", &Certificate::compute_us)
      .def_readonly("communication_us", &Certificate::communication_us)
      .def_property_readonly("forward_us", [](const Certificate& c) { return c.phase_us[0]; })
      .def_property_readonly("backward_us", [](const Certificate& c) { return c.phase_us[1]; })
      .def_property_readonly("update_us", [](const Certificate& c) { return c.phase_us[2]; })
      .def_readonly("lower_bound_us", &Certificate::lower_bound_us)
      .def_readonly("gap", &Certificate::gap)
      .def_readonly("status", &Certificate::status)
      .def_readonly("peak_memory_bytes", &Certificate::peak_memory_bytes)
      .def_readonly("peak_node", &Certificate::peak_node)
      .def_readonly("at_peak", &Certificate::at_peak)
      .def_readonly("collectives", &Certificate::collectives)
      .def_readonly("memory_timeline", &Certificate::memory_timeline);
}

}  // namespace

void bindPlan(py::module_& module) {
  bindChoices(module);
  bindCertificate(module);
  py::class_<Plan>(module, "Plan", "The planner's plan; see shardwright.Plan.")
      .def(py::init([](std::string graph_hash, Cluster cluster, std::vector<StagePlan> stages,
                       int num_microbatches, int microbatches_in_flight) {
             Plan plan;
             plan.graph_hash = std::move(graph_hash);
             plan.cluster = std::move(cluster);
             plan.stages = std::move(stages);
             plan.num_microbatches = num_microbatches;
             plan.microbatches_in_flight = microbatches_in_flight;
             return plan;
           }),
           py::arg("graph_hash"), py::arg("cluster"), py::arg("stages"),
           py::arg("num_microbatches"), py::arg("microbatches_in_flight") = 1)
      .def_readonly("graph_hash", &Plan::graph_hash)
      .def_readonly("cluster", &Plan::cluster)
      .def_readonly("stages", &Plan::stages)
      .def_readonly("num_microbatches", &Plan::num_microbatches)
      .def_readonly("microbatches_in_flight", &Plan::microbatches_in_flight)
      .def_readonly("certificate", &Plan::certificate);
  py::class_<MeshTrial>(module, "MeshTrial", "What became of one candidate mesh shape.")
      .def_readonly("mesh_shape", &MeshTrial::mesh_shape)
      .def_readonly("cost_us", &MeshTrial::cost_us)
      .def_readonly("status", &MeshTrial::status);
  py::class_<PlanResult>(module, "PlanResult", "A plan and how it was found.")
      .def_readonly("plan", &PlanResult::plan)
      .def_readonly("trials", &PlanResult::trials)
      .def_readonly("seconds", &PlanResult::seconds)
      .def_readonly("num_nodes", &PlanResult::num_nodes)
      .def_readonly("num_edges", &PlanResult::num_edges);
  module.def(
      "plan_step", &planStepFromPython, py::arg("graph"), py::arg("cluster"), py::kw_only(),
      py::arg("mesh_shape"), py::arg("memory_limit_bytes"), py::arg("forced"),
      py::arg("num_microbatches"), py::arg("microbatches_in_flight") = 1, py::arg("time_limit_s"),
      py::arg("relative_gap") = 1e-4, py::arg("shard_all_products"), py::arg("graph_hash"),
      py::arg("on_progress") = py::none(),
      "The fastest certified plan of a step on a cluster. Raises InfeasibleError, PlanError, "
      "ConfigError.");
  module.def(
      "certify_plan",
      [](const ShardedGraph& graph, const Plan& plan) {
        return certifyFromPython(graph, plan).certificate;
      },
      py::arg("graph"), py::arg("plan"),
      "Cost and memory recomputed from the graph and the choices alone, without a bound. "
      "Raises PlanError E314 when they do not fit.");
  module.def(
      "node_costs",
      [](const ShardedGraph& graph, const Plan& plan) {
        return certifyFromPython(graph, plan).node_us;
      },
      py::arg("graph"), py::arg("plan"),
      "Of the certified cost what each node has, with the conversions made for it.");
  module.def(
      "parameter_gradients",
      [](const ShardedGraph& graph) {
        std::vector<std::pair<std::size_t, ValueRef>> gradients;
        for (const ParameterGradient& gradient : parameterGradients(graph.graph())) {
          gradients.emplace_back(gradient.parameter.index(), gradient.value);
        }
        return gradients;
      },
      py::arg("graph"), "Index of each parameter's node with the value that is its gradient.");
  module.def(
      "describe_nodes",
      [](const ShardedGraph& graph) {
        py::list nodes;
        for (std::size_t index = 0; index < graph.graph().nodes().size(); ++index) {
          nodes.append(describeNode(graph, NodeId(index)));
        }
        return nodes;
      },
      py::arg("graph"), "Name, op, labels, shapes and atoms of every node, in order.");
  module.def(
      "node_names",
      [](const ShardedGraph& graph) {
        std::vector<std::string> names;
        names.reserve(graph.graph().nodes().size());
        for (const Node& node : graph.graph().nodes()) {
          names.push_back(node.name);
        }
        return names;
      },
      py::arg("graph"), "Name of every node, in order.");
}

}  // namespace shardwright
