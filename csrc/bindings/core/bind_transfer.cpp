// Submeshes and the way of a value from one to another.

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/core/bind.h"
#include "sharding/common_atoms.h"
#include "sharding/transfer.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::list regionTuples(const Region& region) {
  py::list ranges;
  for (const AtomRange& range : region) {
    ranges.append(py::make_tuple(range.begin, range.size));
  }
  return ranges;
}

py::list copyTuples(const TransferStep& step) {
  py::list copies;
  for (const RegionCopy& copy : step.copies) {
    copies.append(py::make_tuple(regionTuples(copy.source), regionTuples(copy.target)));
  }
  return copies;
}

py::dict trafficDict(const TransferPlan& plan) {
  py::dict traffic;
  for (const auto& [rank, bytes] : plan.rank_traffic) {
    traffic[py::int_(rank)] = py::make_tuple(bytes.sent_bytes, bytes.received_bytes);
  }
  return traffic;
}

std::string stepText(const TransferStep& step) {
  return "<" + std::string(transferKindName(step.kind)) + " " + std::to_string(step.from) + " -> " +
         std::to_string(step.to) + ", " + std::to_string(step.bytes) + " bytes>";
}

void bindSubmesh(py::module_& module) {
  py::class_<Submesh>(module, "Submesh", "A logical mesh over some ranks of the cluster.")
      .def(py::init([](std::vector<int> shape, std::vector<int> ranks, std::vector<int> hosts) {
             Submesh submesh{
                 .shape = std::move(shape), .ranks = std::move(ranks), .hosts = std::move(hosts)};
             checkSubmesh(submesh);
             return submesh;
           }),
           py::arg("shape"), py::arg("ranks"), py::arg("hosts"))
      .def_static("on_cluster", &makeSubmesh, py::arg("shape"), py::arg("ranks"),
                  py::arg("cluster"), "The hosts are those the ranks have on the cluster.")
      .def_property_readonly("shape", [](const Submesh& s) { return py::tuple(py::cast(s.shape)); })
      .def_readonly("ranks", &Submesh::ranks)
      .def_readonly("hosts", &Submesh::hosts)
      .def(py::self == py::self);
}

}  // namespace

void bindTransfer(py::module_& module) {
  bindSubmesh(module);
  py::class_<TransferStep>(module, "TransferStep", "One message of a transfer.")
      .def_property_readonly("kind", [](const TransferStep& s) { return transferKindName(s.kind); })
      .def_readonly("source_rank", &TransferStep::from)
      .def_readonly("target_rank", &TransferStep::to)
      .def_readonly("crosses_hosts", &TransferStep::crosses_hosts)
      .def_readonly("bytes", &TransferStep::bytes)
      .def_property_readonly("copies", &copyTuples)
      .def("__repr__", &stepText);
  py::class_<TransferPlan>(module, "TransferPlan", "The way of a value from mesh to mesh.")
      .def_property_readonly("dtype", [](const TransferPlan& p) { return dtypeName(p.dtype); })
      .def_readonly("source_ranks", &TransferPlan::source_ranks)
      .def_readonly("target_ranks", &TransferPlan::target_ranks)
      .def_readonly("source_shape", &TransferPlan::source_shape)
      .def_readonly("source_sizes", &TransferPlan::source_sizes)
      .def_readonly("target_shape", &TransferPlan::target_shape)
      .def_readonly("target_sizes", &TransferPlan::target_sizes)
      .def_readonly("steps", &TransferPlan::steps)
      .def_readonly("cost_us", &TransferPlan::cost_us)
      .def_readonly("host_pair_bytes", &TransferPlan::host_pair_bytes)
      .def_property_readonly("rank_traffic", &trafficDict);
  module.def(
      "common_atoms",
      [](const TensorAtoms& source_atoms, const ShardingSpec& source,
         const std::vector<int>& source_mesh, const TensorAtoms& target_atoms,
         const ShardingSpec& target, const std::vector<int>& target_mesh)
          -> std::optional<std::tuple<TensorAtoms, ShardingSpec, ShardingSpec>> {
        const auto common =
            commonAtoms(source_atoms, source, source_mesh, target_atoms, target, target_mesh);
        if (!common) {
          return std::nullopt;
        }
        return std::tuple(common->atoms, common->source, common->target);
      },
      py::arg("source_atoms"), py::arg("source"), py::arg("source_mesh"), py::arg("target_atoms"),
      py::arg("target"), py::arg("target_mesh"),
      "Atoms fine enough for a value in two graphs, and its specs in their terms; None where there "
      "are none.");
  module.def(
      "plan_transfer",
      [](const TensorAtoms& atoms, const std::string& dtype, const ShardingSpec& source,
         const Submesh& source_mesh, const ShardingSpec& target, const Submesh& target_mesh,
         const Cluster& cluster) {
        return planTransfer(atoms, parseDType(dtype), source, source_mesh, target, target_mesh,
                            cluster);
      },
      py::arg("atoms"), py::arg("dtype"), py::arg("source"), py::arg("source_mesh"),
      py::arg("target"), py::arg("target_mesh"), py::arg("cluster"),
      "Steps and price of a value's way from one mesh to another. Raises PlanError E341.");
  module.def(
      "transfer_cost_us",
      [](const TensorAtoms& atoms, const std::string& dtype, const ShardingSpec& source,
         const Submesh& source_mesh, const ShardingSpec& target, const Submesh& target_mesh,
         const Cluster& cluster) {
        return transferCostUs(atoms, parseDType(dtype), source, source_mesh, target, target_mesh,
                              cluster);
      },
      py::arg("atoms"), py::arg("dtype"), py::arg("source"), py::arg("source_mesh"),
      py::arg("target"), py::arg("target_mesh"), py::arg("cluster"),
      "The price alone, in microseconds.");
}

}  // namespace shardwright
