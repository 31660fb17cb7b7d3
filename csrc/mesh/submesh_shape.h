// Submeshes: the shapes into which a cluster is cut for the stages of a pipeline.
#pragma once

#include <compare>
#include <vector>

namespace shardwright {

// `num_hosts` x `devices_per_host` devices. Within one host a power of two of its devices; over
// several hosts all devices of each (Alpa, section 5.2).
struct SubmeshShape {
  int num_hosts = 1;
  int devices_per_host = 1;

  int numDevices() const { return num_hosts * devices_per_host; }
  friend auto operator<=>(const SubmeshShape&, const SubmeshShape&) = default;
};

// Whether any choice of these shapes whose devices add up to those of a cluster of hosts with
// `devices_per_host` devices can be placed on it without overlap: every shape is (1, 2^k) or
// (k, devices_per_host), and devices_per_host is a power of two if a shape is smaller than a host
// (Alpa, appendix A).
bool tilesCluster(const std::vector<SubmeshShape>& shapes, int devices_per_host);

// (1, 1), (1, 2), (1, 4) .. (1, M), then (k, M) for every k from 2 to num_hosts, or only for powers
// of two and num_hosts itself. M that is no power of two: only whole hosts.
// Contract: num_hosts, devices_per_host >= 1.
std::vector<SubmeshShape> candidateSubmeshes(int num_hosts, int devices_per_host,
                                             bool powers_of_two = false);

// First device of each submesh, devices counted host by host: whole hosts first, then ever smaller
// shapes, so that each one starts at a multiple of its size. Example: (1, 2), (2, 4), (1, 2) on
// hosts of 4 start at 8, 0, 10.
// Contract: tilesCluster(shapes, devices_per_host).
std::vector<int> placeSubmeshes(const std::vector<SubmeshShape>& shapes, int devices_per_host);

}  // namespace shardwright
