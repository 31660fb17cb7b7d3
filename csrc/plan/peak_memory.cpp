#include "plan/peak_memory.h"

#include <cstddef>
#include <vector>

#include "base/checked.h"

namespace shardwright {

Phase phaseAt(const Graph& graph, const Replay& replay, std::size_t moment) {
  const NodeId node = replay.moments[moment];
  return node.isValid() ? graph.node(node).phase : Phase::kForward;
}

WaitingMicrobatches waitingMicrobatches(const Graph& graph, const Replay& replay,
                                        int microbatches_in_flight) {
  WaitingMicrobatches waiting;
  std::int64_t begin = 0;  // of backward, for good
  std::int64_t after_forward = 0;
  std::int64_t late = 0;  // begin of backward's late part
  for (std::size_t moment = 0; moment < static_cast<std::size_t>(replay.end_of_ops); ++moment) {
    const Phase phase = phaseAt(graph, replay, moment);
    const std::int64_t next = static_cast<std::int64_t>(moment) + 1;
    if (phase == Phase::kForward) {
      after_forward = next;
    } else if (phase == Phase::kBackward) {
      begin = after_forward;
      waiting.end = next;
      const NodeId node = replay.moments[moment];
      if (late == 0 && node.isValid() && graph.node(node).is_late) {
        late = static_cast<std::int64_t>(moment);
      }
    }
  }
  for (const Buffer& buffer : replay.buffers) {
    const auto lasts = [&](std::int64_t moment) {
      return buffer.made < moment && moment <= buffer.last_read;
    };
    if (buffer.per_microbatch && (lasts(begin) || lasts(late))) {
      waiting.bytes = checkedAdd(waiting.bytes, buffer.bytes);
    }
  }
  waiting.bytes = checkedMul(waiting.bytes, std::int64_t{microbatches_in_flight} - 1);
  return waiting;
}

void addBytes(MemoryAtPeak& memory, BufferKind kind, std::int64_t bytes) {
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

PeakMemory peakMemory(const Replay& replay, const WaitingMicrobatches& waiting) {
  std::vector<std::int64_t> change(replay.moments.size() + 1, 0);
  for (const Buffer& buffer : replay.buffers) {
    change[static_cast<std::size_t>(buffer.made)] += buffer.bytes;
    change[static_cast<std::size_t>(buffer.last_read) + 1] -= buffer.bytes;
  }
  change[0] += waiting.bytes;
  change[static_cast<std::size_t>(waiting.end)] -= waiting.bytes;
  PeakMemory peak;
  std::int64_t alive = 0;
  for (std::size_t moment = 0; moment < replay.moments.size(); ++moment) {
    alive += change[moment];
    if (alive > peak.bytes) {
      peak.bytes = alive;
      peak.moment = static_cast<std::int64_t>(moment);
    }
  }
  if (peak.moment < waiting.end) {
    peak.by_kind.activations = waiting.bytes;
  }
  for (std::size_t index = 0; index < replay.buffers.size(); ++index) {
    const Buffer& buffer = replay.buffers[index];
    if (buffer.made <= peak.moment && peak.moment <= buffer.last_read) {
      addBytes(peak.by_kind, buffer.kind, buffer.bytes);
      if (peak.largest < 0 ||
          buffer.bytes > replay.buffers[static_cast<std::size_t>(peak.largest)].bytes) {
        peak.largest = static_cast<int>(index);
      }
    }
  }
  return peak;
}

}  // namespace shardwright
