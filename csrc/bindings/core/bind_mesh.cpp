// Cluster and DeviceMesh as plain values; dtypes are torch's names without "torch.".

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "mesh/cluster.h"
#include "mesh/submesh_shape.h"
#include "sharding/reshard.h"

namespace py = pybind11;

namespace shardwright {

namespace {

std::map<std::string, double> peaksByName(const Cluster& cluster) {
  std::map<std::string, double> peaks;
  for (const auto& [dtype, flops] : cluster.peak_flops_per_us) {
    peaks[dtypeName(dtype)] = flops;
  }
  return peaks;
}

void setPeaksByName(Cluster& cluster, const std::map<std::string, double>& peaks) {
  cluster.peak_flops_per_us.clear();
  for (const auto& [name, flops] : peaks) {
    cluster.peak_flops_per_us[parseDType(name)] = flops;
  }
}

StepKind kindFromName(const std::string& name) {
  for (const StepKind kind : kStepKinds) {
    if (name == stepKindName(kind)) {
      return kind;
    }
  }
  throw py::value_error("no step kind is called " + name);
}

// Ranks outside the mesh are a mistake of the caller, not of the user.
void checkRank(const DeviceMesh& mesh, int rank) {
  if (rank < 0 || rank >= mesh.numDevices()) {
    throw py::index_error("rank " + std::to_string(rank) + " is not in the mesh");
  }
}

void checkAxis(const DeviceMesh& mesh, int axis) {
  if (axis < 0 || axis >= mesh.numAxes()) {
    throw py::index_error("axis " + std::to_string(axis) + " is not in the mesh");
  }
}

void bindClusterParts(py::module_& module) {
  py::class_<Link>(module, "Link")
      .def(py::init([](double bandwidth, double latency, double hop_latency) {
             return Link{bandwidth, latency, hop_latency};
           }),
           py::arg("bandwidth_bytes_per_us"), py::arg("latency_us") = 0.0,
           py::arg("hop_latency_us") = 0.0)
      .def_readonly("bandwidth_bytes_per_us", &Link::bandwidth_bytes_per_us)
      .def_readonly("latency_us", &Link::latency_us)
      .def_readonly("hop_latency_us", &Link::hop_latency_us);
  py::class_<AxisCost>(module, "AxisCost")
      .def(py::init([](double alpha, double beta, double all_to_all_scale) {
             return AxisCost{alpha, beta, all_to_all_scale};
           }),
           py::arg("alpha_us"), py::arg("beta_us_per_byte"), py::arg("all_to_all_scale") = 1.0)
      .def_readonly("alpha_us", &AxisCost::alpha_us)
      .def_readonly("beta_us_per_byte", &AxisCost::beta_us_per_byte)
      .def_readonly("all_to_all_scale", &AxisCost::all_to_all_scale);
  py::class_<CollectiveConstants>(module, "CollectiveConstants")
      .def(py::init([](double all_gather_us, double all_reduce_us, double reduce_scatter_us,
                       double all_to_all_us, double all_to_all_penalty,
                       double reduce_scatter_penalty, std::set<std::string> forbidden,
                       bool reduce_in_fp32) {
             return CollectiveConstants{
                 all_gather_us,      all_reduce_us,          reduce_scatter_us,    all_to_all_us,
                 all_to_all_penalty, reduce_scatter_penalty, std::move(forbidden), reduce_in_fp32};
           }),
           py::arg("all_gather_us") = 0.0, py::arg("all_reduce_us") = 0.0,
           py::arg("reduce_scatter_us") = 0.0, py::arg("all_to_all_us") = 0.0,
           py::arg("all_to_all_penalty") = 1.0, py::arg("reduce_scatter_penalty") = 1.0,
           py::arg("forbidden") = std::set<std::string>{}, py::arg("reduce_in_fp32") = false)
      .def_readonly("all_gather_us", &CollectiveConstants::all_gather_us)
      .def_readonly("all_reduce_us", &CollectiveConstants::all_reduce_us)
      .def_readonly("reduce_scatter_us", &CollectiveConstants::reduce_scatter_us)
      .def_readonly("all_to_all_us", &CollectiveConstants::all_to_all_us)
      .def_readonly("all_to_all_penalty", &CollectiveConstants::all_to_all_penalty)
      .def_readonly("reduce_scatter_penalty", &CollectiveConstants::reduce_scatter_penalty)
      .def_readonly("forbidden", &CollectiveConstants::forbidden)
      .def_readonly("reduce_in_fp32", &CollectiveConstants::reduce_in_fp32);
}

}  // namespace

void bindMesh(py::module_& module) {
  bindClusterParts(module);
  py::class_<Cluster>(module, "Cluster", "The planner's cluster; see shardwright.Cluster.")
      .def(py::init<>())
      .def_readwrite("name", &Cluster::name)
      .def_readwrite("num_hosts", &Cluster::num_hosts)
      .def_readwrite("devices_per_host", &Cluster::devices_per_host)
      .def_property("peak_flops_per_us", &peaksByName, &setPeaksByName)
      .def_readwrite("memory_bandwidth_bytes_per_us", &Cluster::memory_bandwidth_bytes_per_us)
      .def_readwrite("memory_bytes", &Cluster::memory_bytes)
      .def_readwrite("intra_host", &Cluster::intra_host)
      .def_readwrite("inter_host", &Cluster::inter_host)
      .def_readwrite("kernel_overhead_us", &Cluster::kernel_overhead_us)
      .def_readwrite("compute_efficiency", &Cluster::compute_efficiency)
      .def_readwrite("device_type", &Cluster::device_type)
      .def_readwrite("constants", &Cluster::constants)
      .def_readwrite("abstract_axes", &Cluster::abstract_axes);
  py::class_<DeviceMesh>(module, "DeviceMesh", "A logical grid of ranks, row major.")
      .def(py::init<std::vector<int>, const Cluster&>(), py::arg("shape"), py::arg("cluster"))
      .def_property_readonly(
          "shape", [](const DeviceMesh& mesh) { return py::tuple(py::cast(mesh.shape())); })
      .def_property_readonly("num_devices", &DeviceMesh::numDevices)
      .def_property_readonly("constants", &DeviceMesh::constants)
      .def_property_readonly("axes",
                             [](const DeviceMesh& mesh) {
                               std::vector<AxisCost> axes;
                               for (int axis = 0; axis < mesh.numAxes(); ++axis) {
                                 axes.push_back(mesh.axis(axis));
                               }
                               return axes;
                             })
      .def(
          "coordinate",
          [](const DeviceMesh& mesh, int rank) {
            checkRank(mesh, rank);
            return mesh.coordinate(rank);
          },
          py::arg("rank"), "Position of a rank along each axis.")
      .def(
          "group",
          [](const DeviceMesh& mesh, int rank, int axis) {
            checkRank(mesh, rank);
            checkAxis(mesh, axis);
            return mesh.group(rank, axis);
          },
          py::arg("rank"), py::arg("axis"),
          "Ranks that differ from `rank` only along `axis`, ascending.");
  module.def(
      "candidate_mesh_shapes",
      [](int num_devices) {
        if (num_devices < 1) {
          throw py::value_error("num_devices must be 1 or more");
        }
        return candidateMeshShapes(num_devices);
      },
      py::arg("num_devices"), "The flat mesh shape, then every one of two axes.");
  module.def(
      "place_submeshes",
      [](const std::vector<std::pair<int, int>>& shapes, int devices_per_host) {
        std::vector<SubmeshShape> submeshes;
        for (const auto& [hosts, devices] : shapes) {
          submeshes.push_back({hosts, devices});
        }
        if (!tilesCluster(submeshes, devices_per_host)) {
          throw py::value_error("submeshes are (1, 2^k) or whole hosts");
        }
        return placeSubmeshes(submeshes, devices_per_host);
      },
      py::arg("shapes"), py::arg("devices_per_host"),
      "First device of each submesh (hosts, devices per host); whole hosts come first.");
  module.def(
      "collective_cost_us",
      [](const std::string& kind, const DeviceMesh& mesh, int axis, double bytes) {
        checkAxis(mesh, axis);
        return collectiveCostUs(kindFromName(kind), mesh, axis, bytes);
      },
      py::arg("kind"), py::arg("mesh"), py::arg("axis"), py::arg("bytes"),
      "Microseconds of one collective; `bytes` is the V of its ring formula.");
}

}  // namespace shardwright
