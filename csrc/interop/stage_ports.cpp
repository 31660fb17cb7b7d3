#include "interop/stage_ports.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "interop/boundary_specs.h"
#include "mesh/submesh.h"
#include "sharding/transfer.h"

namespace shardwright {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

Submesh submeshAt(const std::vector<int>& mesh_shape, int first, const Cluster& cluster) {
  int size = 1;
  for (const int axis : mesh_shape) size *= axis;
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), first);
  return makeSubmesh(mesh_shape, std::move(ranks), cluster);
}

// First device of the second of two neighbouring stages, the first of which begins at device 0.
int firstOfNext(const SubmeshShape& source, const SubmeshShape& target, const Cluster& cluster) {
  const int per_host = cluster.devices_per_host;
  const int next_host = (source.numDevices() + per_host - 1) / per_host * per_host;
  const bool fits = next_host + target.numDevices() <= cluster.numDevices();
  return fits ? next_host : source.numDevices();
}

double oneWayUs(const BoundaryTensors& tensors, DType dtype, const StagePorts::Port& from,
                const Submesh& source, const StagePorts::Port& to, const Submesh& target,
                const Cluster& cluster) {
  const TensorAtoms atoms = wholeDims(tensors.shape);
  if (!isValid(atoms, from.spec, from.mesh_shape) || !isValid(atoms, to.spec, to.mesh_shape)) {
    return kImpossible;
  }
  return transferCostUs(atoms, dtype, from.spec, source, to.spec, target, cluster);
}

// Of a boundary without a main value whose second stage begins at device `first`.
PortPrice pricedByBytes(const BoundaryTensors& tensors, int first, const Cluster& cluster) {
  const bool leaves_host = first / cluster.devices_per_host > 0;
  const Link& link = leaves_host ? cluster.inter_host : cluster.intra_host;
  if (tensors.other_bytes == 0) return {};
  const int num_ways = tensors.has_gradient ? 2 : 1;
  const double bytes_us = static_cast<double>(tensors.other_bytes) / link.bandwidth_bytes_per_us;
  const int there = tensors.other_messages_there;
  const int back = tensors.other_messages_back;
  const int messages = std::max(num_ways, there + back);
  const int messages_one_way = std::max({1, there, back});
  return {bytes_us + messages * link.latency_us,
          bytes_us / num_ways + messages_one_way * link.latency_us};
}

// Of one with a main value.
PortPrice pricedByLayout(const BoundaryTensors& tensors, const StagePorts::Port& from,
                         const StagePorts::Port& to, int first, const Cluster& cluster) {
  const Submesh source_mesh = submeshAt(from.mesh_shape, 0, cluster);
  const Submesh target_mesh = submeshAt(to.mesh_shape, first, cluster);
  const double there =
      oneWayUs(tensors, tensors.dtype, from, source_mesh, to, target_mesh, cluster);
  // The gradient lies as the value it belongs to on either side.
  const TensorMeta main{tensors.shape, tensors.dtype};
  const double back = tensors.has_gradient ? oneWayUs(tensors, tensors.gradient_dtype, to,
                                                      target_mesh, from, source_mesh, cluster)
                                           : 0;
  const double bytes = static_cast<double>(main.bytes()) * (tensors.has_gradient ? 2 : 1);
  const double factor = bytes > 0 ? 1 + static_cast<double>(tensors.other_bytes) / bytes : 1;
  const bool leaves_host = first / cluster.devices_per_host > 0;
  const Link& link = leaves_host ? cluster.inter_host : cluster.intra_host;
  const auto withOthers = [&](double main_us, int messages, bool has_main) {
    const double known = has_main ? factor - 1 : 0;
    return main_us * factor + std::max(0.0, messages - known) * link.latency_us;
  };
  const double all_there = withOthers(there, tensors.other_messages_there, true);
  const double all_back = withOthers(back, tensors.other_messages_back, tensors.has_gradient);
  return {all_there + all_back, std::max(all_there, all_back)};
}

}  // namespace

PortLayout portLayout(const std::vector<int>& mesh_shape, const ShardingSpec& spec,
                      std::size_t num_dims) {
  int size = 1;
  for (const int axis : mesh_shape) size *= axis;
  PortLayout layout;
  for (int position = 0; position < size; ++position) {
    std::vector<int> coordinate(mesh_shape.size());
    int rest = position;
    for (std::size_t axis = mesh_shape.size(); axis-- > 0;) {
      coordinate[axis] = rest % mesh_shape[axis];
      rest /= mesh_shape[axis];
    }
    for (std::size_t dim = 0; dim < num_dims; ++dim) {
      int index = 0;
      int count = 1;
      for (const int axis : axesOfAtom(spec, static_cast<int>(dim))) {
        const auto a = static_cast<std::size_t>(axis);
        index = index * mesh_shape[a] + coordinate[a];
        count *= mesh_shape[a];
      }
      layout.push_back(index);
      layout.push_back(count);
    }
  }
  return layout;
}

StagePorts::StagePorts(std::size_t num_submeshes) : ports_(num_submeshes), known_(num_submeshes) {
  for (std::size_t submesh = 0; submesh < num_submeshes; ++submesh) {
    ports_[submesh].emplace_back();
    known_[submesh].emplace(PortLayout{}, 0);
  }
}

int StagePorts::portOf(int submesh, const std::vector<int>& mesh_shape, const ShardingSpec& spec,
                       std::size_t num_dims) {
  const auto index = static_cast<std::size_t>(submesh);
  std::vector<Port>& ports = ports_[index];
  const auto [found, is_new] = known_[index].try_emplace(portLayout(mesh_shape, spec, num_dims),
                                                         static_cast<int>(ports.size()));
  if (is_new) ports.push_back({mesh_shape, spec, num_dims});
  return found->second;
}

int StagePorts::numPorts() const {
  std::size_t most = 0;
  for (const std::vector<Port>& ports : ports_) most = std::max(most, ports.size());
  return static_cast<int>(most);
}

PortPrice portPrice(const BoundaryTensors& tensors, const StagePorts::Port& from,
                    const SubmeshShape& source, const StagePorts::Port& to,
                    const SubmeshShape& target, const Cluster& cluster) {
  if (source.numDevices() + target.numDevices() > cluster.numDevices()) {
    return {kImpossible, kImpossible};
  }
  const bool has_main = !tensors.shape.empty();
  const std::size_t num_dims = tensors.shape.size();
  if (from.num_dims != num_dims || to.num_dims != num_dims) return {kImpossible, kImpossible};
  const auto price_at = [&](int first) {
    return has_main ? pricedByLayout(tensors, from, to, first, cluster)
                    : pricedByBytes(tensors, first, cluster);
  };
  const PortPrice apart = price_at(firstOfNext(source, target, cluster));
  const int size = source.numDevices();
  if (source != target || size >= cluster.devices_per_host) return apart;
  const PortPrice together = price_at(size);
  const double share = static_cast<double>(size) / cluster.devices_per_host;
  return {share * apart.time_us + (1 - share) * together.time_us, apart.link_us};
}

}  // namespace shardwright
