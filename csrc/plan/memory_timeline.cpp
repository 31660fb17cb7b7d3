#include "plan/memory_timeline.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace shardwright {
namespace {

void add(MemoryAtPeak& memory, BufferKind kind, std::int64_t bytes) {
  switch (kind) {
    case BufferKind::kParameter:
      memory.parameters += bytes;
      return;
    case BufferKind::kGradient:
      memory.gradients += bytes;
      return;
    case BufferKind::kOptimizer:
      memory.optimizer += bytes;
      return;
    case BufferKind::kActivation:
      memory.activations += bytes;
      return;
    case BufferKind::kOther:
      memory.other += bytes;
      return;
  }
}

}  // namespace

std::vector<MemorySample> memoryTimeline(const Graph& graph, const Replay& replay,
                                         int max_samples) {
  const std::size_t num_moments = replay.moments.size();
  std::vector<std::vector<std::size_t>> made(num_moments + 1);
  std::vector<std::vector<std::size_t>> freed(num_moments + 1);
  for (std::size_t index = 0; index < replay.buffers.size(); ++index) {
    made[static_cast<std::size_t>(replay.buffers[index].made)].push_back(index);
    freed[static_cast<std::size_t>(replay.buffers[index].last_read) + 1].push_back(index);
  }
  const std::size_t wanted = std::max<std::size_t>(1, static_cast<std::size_t>(max_samples));
  const std::size_t num_stretches = std::min(num_moments, wanted);
  std::vector<MemorySample> samples;
  MemoryAtPeak alive;
  std::size_t moment = 0;
  for (std::size_t stretch = 0; stretch < num_stretches; ++stretch) {
    const std::size_t end = num_moments * (stretch + 1) / num_stretches;
    MemorySample highest;
    for (bool first = true; moment < end; ++moment, first = false) {
      for (const std::size_t index : freed[moment]) {
        add(alive, replay.buffers[index].kind, -replay.buffers[index].bytes);
      }
      for (const std::size_t index : made[moment]) {
        add(alive, replay.buffers[index].kind, replay.buffers[index].bytes);
      }
      if (first || alive.total() > highest.memory.total()) {
        const NodeId node = replay.moments[moment];
        highest.moment = static_cast<std::int64_t>(moment);
        highest.phase = node.isValid() ? graph.node(node).phase : Phase::kForward;
        highest.memory = alive;
      }
    }
    samples.push_back(highest);
  }
  return samples;
}

}  // namespace shardwright
