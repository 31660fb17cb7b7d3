#include "mesh/submesh_shape.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace shardwright {
namespace {

bool isPowerOfTwo(int value) { return value > 0 && std::has_single_bit(unsigned(value)); }

}  // namespace

bool tilesCluster(const std::vector<SubmeshShape>& shapes, int devices_per_host) {
  return std::ranges::all_of(shapes, [&](const SubmeshShape& shape) {
    if (shape.num_hosts < 1 || shape.devices_per_host < 1) return false;
    if (shape.devices_per_host == devices_per_host) return true;
    return shape.num_hosts == 1 && shape.devices_per_host < devices_per_host &&
           isPowerOfTwo(shape.devices_per_host) && isPowerOfTwo(devices_per_host);
  });
}

std::vector<SubmeshShape> candidateSubmeshes(int num_hosts, int devices_per_host,
                                             bool powers_of_two) {
  std::vector<SubmeshShape> shapes;
  if (isPowerOfTwo(devices_per_host)) {
    for (int size = 1; size < devices_per_host; size *= 2) shapes.push_back({1, size});
  }
  for (int hosts = 1; hosts <= num_hosts; ++hosts) {
    if (powers_of_two && !isPowerOfTwo(hosts) && hosts != num_hosts) continue;
    shapes.push_back({hosts, devices_per_host});
  }
  return shapes;
}

std::vector<int> placeSubmeshes(const std::vector<SubmeshShape>& shapes, int devices_per_host) {
  std::vector<std::size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto is_whole = [&](std::size_t i) {
    return shapes[i].devices_per_host == devices_per_host;
  };
  // Whole hosts keep their order among themselves: neighbouring stages lie on neighbouring hosts.
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    if (is_whole(a) != is_whole(b)) return is_whole(a);
    return !is_whole(a) && shapes[a].devices_per_host > shapes[b].devices_per_host;
  });
  std::vector<int> first(shapes.size());
  int next = 0;
  for (const std::size_t i : order) {
    first[i] = next;
    next += shapes[i].numDevices();
  }
  return first;
}

}  // namespace shardwright
