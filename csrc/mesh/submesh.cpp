#include "mesh/submesh.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace shardwright {

namespace {

std::string listText(const std::vector<int>& numbers) {
  std::string text = "(";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  }
  return text + ")";
}

[[noreturn]] void fail(const Submesh& submesh, const std::string& reason) {
  throw Error(ErrorKind::kCluster, "E358", "a submesh is not one: " + reason + ".",
              {.values = {"shape: " + listText(submesh.shape), "ranks: " + listText(submesh.ranks)},
               .advice = "one rank of the cluster per position of the shape, each rank once"});
}

}  // namespace

void checkSubmesh(const Submesh& submesh) {
  std::size_t positions = 1;
  for (const int size : submesh.shape) {
    if (size < 1) {
      fail(submesh, "a size is below 1");
    }
    positions *= static_cast<std::size_t>(size);
  }
  if (submesh.shape.empty() || submesh.ranks.size() != positions ||
      submesh.hosts.size() != positions) {
    fail(submesh, "shape, ranks and hosts do not have as many positions");
  }
  std::vector<int> sorted = submesh.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    fail(submesh, "a rank is negative or there twice");
  }
}

Submesh makeSubmesh(std::vector<int> shape, std::vector<int> ranks, const Cluster& cluster) {
  Submesh submesh{.shape = std::move(shape), .ranks = std::move(ranks), .hosts = {}};
  submesh.hosts.reserve(submesh.ranks.size());
  for (const int rank : submesh.ranks) {
    if (rank >= cluster.numDevices()) {
      fail(submesh, "the cluster has " + std::to_string(cluster.numDevices()) + " devices");
    }
    submesh.hosts.push_back(rank / cluster.devices_per_host);
  }
  checkSubmesh(submesh);
  return submesh;
}

}  // namespace shardwright
