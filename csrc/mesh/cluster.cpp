#include "mesh/cluster.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace shardwright {

namespace {

std::string shapeText(const std::vector<int>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

void checkShape(const std::vector<int>& shape) {
  const bool positive = std::all_of(shape.begin(), shape.end(), [](int n) { return n >= 1; });
  if (shape.empty() || shape.size() > static_cast<std::size_t>(kMaxAxes) || !positive) {
    throw Error(ErrorKind::kCluster, "E355", "a mesh has 1 to 4 axes of size 1 or more.",
                {.values = {"mesh shape: " + shapeText(shape)},
                 .advice = "a shape such as (8,) or (2, 4)"});
  }
}

// How one mesh axis lies on the hosts, worst host and group first.
struct AxisLayout {
  bool spans_hosts = false;
  int rings_per_nic = 0;  // most ring edges of the axis that leave one host
  // Most ordered pairs (sender in the host, receiver outside it) of one host, over all groups.
  std::int64_t pairs_per_nic = 0;
};

AxisLayout layoutOfAxis(const DeviceMesh& mesh, int axis, int devices_per_host) {
  AxisLayout layout;
  const int num_hosts = (mesh.numDevices() + devices_per_host - 1) / devices_per_host;
  std::vector<int> rings(static_cast<std::size_t>(num_hosts), 0);
  std::vector<std::int64_t> pairs(static_cast<std::size_t>(num_hosts), 0);
  for (int rank = 0; rank < mesh.numDevices(); ++rank) {
    if (mesh.coordinate(rank)[static_cast<std::size_t>(axis)] != 0) {
      continue;  // each group once, from its first rank
    }
    const std::vector<int> group = mesh.group(rank, axis);
    for (std::size_t i = 0; i < group.size(); ++i) {
      const int host = group[i] / devices_per_host;
      if (group[(i + 1) % group.size()] / devices_per_host != host) {
        ++rings[static_cast<std::size_t>(host)];
      }
      pairs[static_cast<std::size_t>(host)] += std::count_if(
          group.begin(), group.end(), [&](int other) { return other / devices_per_host != host; });
    }
  }
  layout.rings_per_nic = *std::max_element(rings.begin(), rings.end());
  layout.pairs_per_nic = *std::max_element(pairs.begin(), pairs.end());
  layout.spans_hosts = layout.rings_per_nic > 0;
  return layout;
}

AxisCost costOfAxis(const DeviceMesh& mesh, int axis, const Cluster& cluster) {
  const int n = mesh.size(axis);
  const AxisLayout layout = layoutOfAxis(mesh, axis, cluster.devices_per_host);
  const Link& link = layout.spans_hosts ? cluster.inter_host : cluster.intra_host;
  AxisCost cost;
  cost.alpha_us = link.latency_us + link.hop_latency_us * std::max(0, n - 2);
  const double intra_us_per_byte = 1 / cluster.intra_host.bandwidth_bytes_per_us;
  if (!layout.spans_hosts) {
    cost.beta_us_per_byte = n > 1 ? intra_us_per_byte : 0;
    return cost;
  }
  const double nic_us_per_byte = 1 / cluster.inter_host.bandwidth_bytes_per_us;
  cost.beta_us_per_byte = std::max(intra_us_per_byte, layout.rings_per_nic * nic_us_per_byte);
  // An all-to-all of b local bytes sends b / n per ordered pair; the formula charges
  // beta * (n - 1) / n * b.
  const double all_to_all_us_per_byte = std::max(
      intra_us_per_byte, static_cast<double>(layout.pairs_per_nic) / (n - 1) * nic_us_per_byte);
  cost.all_to_all_scale = all_to_all_us_per_byte / cost.beta_us_per_byte;
  return cost;
}

}  // namespace

DeviceMesh::DeviceMesh(std::vector<int> shape, const Cluster& cluster)
    : shape_(std::move(shape)), constants_(cluster.constants) {
  checkShape(shape_);
  if (!cluster.abstract_axes.empty()) {
    if (shape_.size() > cluster.abstract_axes.size()) {
      throw Error(
          ErrorKind::kCluster, "E355", "the mesh has more axes than the abstract cluster.",
          {.values = {"mesh shape: " + shapeText(shape_),
                      "axes of the cluster: " + std::to_string(cluster.abstract_axes.size())},
           .advice = "give alpha and beta for every axis"});
    }
    axes_.assign(cluster.abstract_axes.begin(),
                 cluster.abstract_axes.begin() + static_cast<std::ptrdiff_t>(shape_.size()));
    return;
  }
  if (numDevices() != cluster.numDevices()) {
    throw Error(ErrorKind::kCluster, "E351", "the mesh does not cover the cluster.",
                {.values = {"mesh shape: " + shapeText(shape_) + ", " +
                                std::to_string(numDevices()) + " devices",
                            "cluster: " + cluster.name + ", " + std::to_string(cluster.num_hosts) +
                                " x " + std::to_string(cluster.devices_per_host) + " devices"},
                 .advice = "a mesh of " + std::to_string(cluster.numDevices()) +
                           " devices, or a cluster of " + std::to_string(numDevices())});
  }
  for (int axis = 0; axis < numAxes(); ++axis) {
    axes_.push_back(costOfAxis(*this, axis, cluster));
  }
}

DeviceMesh::DeviceMesh(std::vector<int> shape, std::vector<AxisCost> axes,
                       const CollectiveConstants& constants)
    : shape_(std::move(shape)), axes_(std::move(axes)), constants_(constants) {
  checkShape(shape_);
  if (shape_.size() != axes_.size()) {
    throw Error(ErrorKind::kCluster, "E355", "each mesh axis needs one alpha and one beta.",
                {.values = {"mesh shape: " + shapeText(shape_),
                            "constants: " + std::to_string(axes_.size())},
                 .advice = "give alpha and beta for every axis"});
  }
}

int DeviceMesh::numDevices() const {
  int product = 1;
  for (const int n : shape_) {
    product *= n;
  }
  return product;
}

std::vector<int> DeviceMesh::coordinate(int rank) const {
  std::vector<int> result(shape_.size());
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    result[axis] = rank % shape_[axis];
    rank /= shape_[axis];
  }
  return result;
}

std::vector<int> DeviceMesh::group(int rank, int axis) const {
  int stride = 1;
  for (int inner = axis + 1; inner < numAxes(); ++inner) {
    stride *= size(inner);
  }
  const int first = rank - coordinate(rank)[static_cast<std::size_t>(axis)] * stride;
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(size(axis)));
  for (int i = 0; i < size(axis); ++i) {
    ranks.push_back(first + i * stride);
  }
  return ranks;
}

std::vector<std::vector<int>> candidateMeshShapes(int num_devices) {
  std::vector<std::vector<int>> shapes = {{num_devices}};
  for (int outer = 2; outer < num_devices; ++outer) {
    if (num_devices % outer == 0) {
      shapes.push_back({outer, num_devices / outer});
    }
  }
  return shapes;
}

}  // namespace shardwright
