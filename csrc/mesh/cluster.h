// The machines: hosts, devices, links, and how a logical mesh lies on them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

// Point-to-point figures of one kind of link as one device sees it.
struct Link {
  double bandwidth_bytes_per_us = 0;  // what a ring of collectives reaches per direction
  double latency_us = 0;              // start-up of one collective
};

// A homogeneous cluster. Devices of one host share one NIC: parallel rings between two hosts
// divide inter_host.bandwidth.
struct Cluster {
  std::string name;
  int num_hosts = 1;
  int devices_per_host = 1;
  std::map<DType, double> peak_flops_per_us;  // by compute dtype; absent: the float32 figure
  double memory_bandwidth_bytes_per_us = 0;
  std::int64_t memory_bytes = 0;  // of one device
  double kernel_overhead_us = 0;  // fixed cost of one op
  double compute_efficiency = 1;  // share of the peak that large products reach
  Link intra_host;
  Link inter_host;
  std::string device_type = "cuda";  // "cuda" or "cpu"

  int numDevices() const { return num_hosts * devices_per_host; }
};

// Alpha-beta constants of one mesh axis: a ring collective of n ranks moving V bytes costs
// alpha + beta * f(n) * V (Alpa, section 4.2, mesh cost model).
struct AxisCost {
  double alpha_us = 0;
  double beta_us_per_byte = 0;
};

// Per-collective constants that break ties and model libraries; zero for real clusters.
struct CollectiveConstants {
  double all_gather_us = 0;
  double all_reduce_us = 0;
  double reduce_scatter_us = 0;
  double all_to_all_us = 0;
  double all_to_all_penalty = 1;  // multiplies the all-to-all's byte term; 0 means n / 2 (Alpa)
};

// A logical N-D grid of devices with named axes. Rank of coordinate c is row major over `shape`.
class DeviceMesh {
 public:
  // Axes laid out row major over the cluster's devices in host order: inner axes stay inside a
  // host as far as they fit. Throws ConfigError [E401] if the product is not num_devices.
  DeviceMesh(std::vector<int> shape, const Cluster& cluster);
  // Abstract mesh with given constants and no compute cost, for the oracles of the literature.
  DeviceMesh(std::vector<int> shape, std::vector<AxisCost> axes, CollectiveConstants constants);

  int numAxes() const { return static_cast<int>(shape_.size()); }
  int numDevices() const;
  const std::vector<int>& shape() const { return shape_; }
  const AxisCost& axis(int index) const { return axes_[static_cast<std::size_t>(index)]; }
  const CollectiveConstants& constants() const { return constants_; }
  std::vector<int> coordinate(int rank) const;
  // Ranks that differ from `rank` only along `axis`, ascending: the process group of a collective.
  std::vector<int> group(int rank, int axis) const;

 private:
  std::vector<int> shape_;
  std::vector<AxisCost> axes_;
  CollectiveConstants constants_;
};

}  // namespace shardwright
