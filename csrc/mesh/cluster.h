// The machines: hosts, devices, links, and how a logical mesh lies on them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

// Most axes of a mesh.
inline constexpr int kMaxAxes = 4;

// Point-to-point figures of one kind of link as one device sees it.
struct Link {
  double bandwidth_bytes_per_us = 0;  // what a ring of collectives reaches per direction
  double latency_us = 0;              // start-up of a collective of two ranks
  double hop_latency_us = 0;          // added for each rank beyond two
};

// Alpha-beta constants of one mesh axis: a ring collective of n ranks moving V bytes costs
// alpha + beta * f(n) * V (Alpa, section 4.2, mesh cost model).
struct AxisCost {
  double alpha_us = 0;
  double beta_us_per_byte = 0;
  // An all-to-all is no ring: where ranks of one group share a NIC, every one of them sends through
  // it. Multiplies beta in the all-to-all's cost only.
  double all_to_all_scale = 1;

  bool operator==(const AxisCost&) const = default;
};

// What one kind of collective costs beyond the ring formula, and which may be used. All of it is
// part of the cluster, so that price and emission of a conversion see the same.
struct CollectiveConstants {
  // Added per collective: break ties and model libraries (Alpa: 0.1, 0.01, 0.001, 0.001).
  double all_gather_us = 0;
  double all_reduce_us = 0;
  double reduce_scatter_us = 0;
  double all_to_all_us = 0;
  // Multiply the byte term. All-to-all: 0 means n / 2 (Alpa's figure for V100). Reduce-scatter: 2
  // where it moves the bytes of an all-reduce (Gloo).
  double all_to_all_penalty = 1;
  double reduce_scatter_penalty = 1;
  // Steps that no conversion may use, by name ("all_gather", ...), for oracles.
  std::set<std::string> forbidden = {};
  // Sums of float16 and bfloat16 tensors travel and add as float32, at twice the bytes. Off:
  // reductions run in the tensor's own dtype.
  bool reduce_in_fp32 = false;

  bool operator==(const CollectiveConstants&) const = default;
};

// A homogeneous cluster. Devices of one host share its NICs, inter_host.bandwidth together:
// parallel rings that leave a host divide it.
struct Cluster {
  std::string name;
  int num_hosts = 1;
  int devices_per_host = 1;
  std::map<DType, double> peak_flops_per_us;  // by compute dtype; absent: the float32 figure;
                                              // empty: compute is free
  double memory_bandwidth_bytes_per_us = 0;
  std::int64_t memory_bytes = 0;  // of one device; 0: no limit
  double kernel_overhead_us = 0;  // fixed cost of one op
  double compute_efficiency = 1;  // share of the peak that large products reach
  Link intra_host;
  Link inter_host;
  std::string device_type = "cuda";  // "cuda" or "cpu"
  CollectiveConstants constants;
  // Not empty: an abstract cluster for the oracles of the literature. Axis i of any mesh on it has
  // these constants, whatever its size, and the links above are not read.
  std::vector<AxisCost> abstract_axes;

  int numDevices() const { return num_hosts * devices_per_host; }
};

// A logical N-D grid of devices with numbered axes. Rank of coordinate c is row major over `shape`,
// ranks go over the devices in host order: inner axes stay inside a host as far as they fit.
class DeviceMesh {
 public:
  // An axis whose groups stay inside hosts gets the intra-host link. One whose groups span hosts
  // gets the slower of that link and its share of the NIC: inter-host bandwidth divided by the most
  // ring edges of its groups that leave one host. Worked example, 2 hosts x 4 devices: axis 0 of
  // (2, 4) has 4 rings through each NIC, the one axis of (8) has one.
  // Throws ClusterError [E351] if the product of `shape` is not the number of devices of the
  // cluster (abstract clusters take any shape), [E355] for a shape without axes, with more than
  // kMaxAxes, with a size below 1, or with more axes than an abstract cluster has.
  DeviceMesh(std::vector<int> shape, const Cluster& cluster);
  // Abstract mesh with given constants, for the oracles of the literature.
  DeviceMesh(std::vector<int> shape, std::vector<AxisCost> axes,
             const CollectiveConstants& constants);

  int numAxes() const { return static_cast<int>(shape_.size()); }
  int numDevices() const;
  const std::vector<int>& shape() const { return shape_; }
  int size(int axis) const { return shape_[static_cast<std::size_t>(axis)]; }
  const AxisCost& axis(int index) const { return axes_[static_cast<std::size_t>(index)]; }
  const CollectiveConstants& constants() const { return constants_; }
  // Position of `rank` along each axis: 5 on (2, 4) is {1, 1}.
  std::vector<int> coordinate(int rank) const;
  // Ranks that differ from `rank` only along `axis`, ascending: the process group of a collective.
  // On (2, 4): group(5, 0) is {1, 5}, group(5, 1) is {4, 5, 6, 7}.
  std::vector<int> group(int rank, int axis) const;

 private:
  std::vector<int> shape_;
  std::vector<AxisCost> axes_;
  CollectiveConstants constants_;
};

// Logical shapes worth planning on: the flat one, then every (a, b) with a * b = num_devices and
// a, b > 1, a ascending. 8 gives (8), (2, 4), (4, 2). Contract: num_devices >= 1.
std::vector<std::vector<int>> candidateMeshShapes(int num_devices);

}  // namespace shardwright
