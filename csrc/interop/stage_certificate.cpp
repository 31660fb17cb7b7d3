#include "interop/stage_certificate.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace shardwright {
namespace {

struct Crossing {
  double time = 0;
  double link_time = 0;
};

// The transfer between two kinds of stages at the boundary in front of `layer`.
Crossing crossingAt(const StageProblem& problem, std::int32_t layer, const StageKind& before,
                    const StageKind& after) {
  if (problem.boundaries.empty()) return {};
  const Boundary& boundary = problem.boundaries[static_cast<std::size_t>(layer)];
  std::size_t entry = 0;
  if (boundary.time.size() > 1) {
    const auto specs = static_cast<std::size_t>(problem.num_specs);
    const auto port = [&](std::int32_t submesh, std::int32_t spec) {
      return static_cast<std::size_t>(submesh) * specs + static_cast<std::size_t>(spec);
    };
    entry = port(before.submesh, before.exit_spec) * problem.submeshes.size() * specs +
            port(after.submesh, after.entry_spec);
  }
  const double time = boundary.time[entry];
  return {time, boundary.link_time.empty() ? time / 2 : boundary.link_time[entry]};
}

std::int64_t inFlight(const StageProblem& problem, std::size_t stage, std::size_t num_stages) {
  const auto all = static_cast<std::int64_t>(problem.num_microbatches);
  const auto last = static_cast<std::int64_t>(num_stages);
  switch (problem.schedule) {
    case ScheduleKind::k1F1B:
      return std::min(all, last - static_cast<std::int64_t>(stage));
    case ScheduleKind::kZeroBubble:
      return std::min(all, last);
    case ScheduleKind::kGPipe:
    case ScheduleKind::kInterleaved1F1B:
      return all;
  }
  return all;
}

std::string violationOf(const StageProblem& problem, std::span<const PlannedStage> stages) {
  if (problem.num_stages && static_cast<std::size_t>(*problem.num_stages) != stages.size()) {
    return "not " + std::to_string(*problem.num_stages) + " stages";
  }
  std::int32_t next = 0;
  int devices = 0;
  for (const PlannedStage& stage : stages) {
    if (stage.begin != next || stage.end <= stage.begin || stage.end > problem.num_layers) {
      return "stages do not follow each other at layer " + std::to_string(next);
    }
    if (stage.kind < 0 || static_cast<std::size_t>(stage.kind) >= problem.kinds.size()) {
      return "a stage has no kind";
    }
    next = stage.end;
    devices += problem
                   .submeshes[static_cast<std::size_t>(
                       problem.kinds[static_cast<std::size_t>(stage.kind)].submesh)]
                   .numDevices();
  }
  if (next != problem.num_layers) return "layer " + std::to_string(next) + " is in no stage";
  if (devices > problem.num_devices || (problem.use_all_devices && devices < problem.num_devices)) {
    return std::to_string(devices) + " devices are used";
  }
  return "";
}

}  // namespace

StageEvaluation evaluateStages(const StageProblem& problem, std::span<const PlannedStage> stages) {
  StageEvaluation result;
  result.violation = violationOf(problem, stages);
  if (!result.valid()) return result;
  double sum = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const PlannedStage& stage = stages[s];
    const auto kind_index = static_cast<std::size_t>(stage.kind);
    const StageKind& kind = problem.kinds[kind_index];
    result.num_devices += problem.submeshes[static_cast<std::size_t>(kind.submesh)].numDevices();
    double time = problem.times[kind_index].at(stage.begin, stage.end);
    if (s > 0) {
      const StageKind& before = problem.kinds[static_cast<std::size_t>(stages[s - 1].kind)];
      const Crossing crossing = crossingAt(problem, stage.begin, before, kind);
      if (problem.charge == TransferCharge::kBothStages) {
        time += crossing.time;
      } else {
        sum += crossing.time;
        result.longest_step = std::max(result.longest_step, crossing.link_time);
      }
    }
    if (s + 1 < stages.size() && problem.charge == TransferCharge::kBothStages) {
      const StageKind& after = problem.kinds[static_cast<std::size_t>(stages[s + 1].kind)];
      time += crossingAt(problem, stage.end, kind, after).time;
    }
    sum += time;
    double waiting = 0;
    if (problem.charge == TransferCharge::kLink && !problem.boundaries.empty()) {
      const auto specs = static_cast<std::size_t>(problem.num_specs);
      const std::size_t base = static_cast<std::size_t>(kind.submesh) * specs;
      const auto add = [&](const std::vector<double>& waits, std::int32_t spec) {
        if (!waits.empty()) waiting += waits[base + static_cast<std::size_t>(spec)];
      };
      if (s > 0) {
        add(problem.boundaries[static_cast<std::size_t>(stage.begin)].entry_wait, kind.entry_spec);
      }
      if (s + 1 < stages.size()) {
        add(problem.boundaries[static_cast<std::size_t>(stage.end)].exit_wait, kind.exit_spec);
      }
    }
    result.longest_step = std::max(result.longest_step, time + waiting);
    result.stage_times.push_back(time);
    if (!problem.memory.empty()) {
      const StageMemory& memory = problem.memory[kind_index];
      const std::int64_t bytes = memory.fixed_bytes.at(stage.begin, stage.end) +
                                 inFlight(problem, s, stages.size()) *
                                     memory.per_microbatch_bytes.at(stage.begin, stage.end);
      result.stage_memory_bytes.push_back(bytes);
      if (problem.memory_limit_bytes && bytes > *problem.memory_limit_bytes) {
        result.violation =
            "stage " + std::to_string(s) + " needs " + std::to_string(bytes) + " bytes per device";
      }
    }
  }
  result.time = sum + (problem.num_microbatches - 1) * result.longest_step;
  if (result.valid() && !std::isfinite(result.time)) result.violation = "a stage is impossible";
  return result;
}

}  // namespace shardwright
