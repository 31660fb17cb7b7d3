#include "interop/schedule.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"

namespace shardwright {
namespace {

constexpr std::array kScheduleKinds = {ScheduleKind::kGPipe, ScheduleKind::k1F1B,
                                       ScheduleKind::kInterleaved1F1B, ScheduleKind::kZeroBubble};

[[noreturn]] void throwRequest(const std::string& value, const std::string& advice) {
  throw Error(ErrorKind::kConfig, "E551", "a pipeline schedule cannot be made as asked.",
              {.values = {value}, .advice = advice});
}

Action compute(int stage, ActionKind kind, int microbatch) {
  return {StageId(static_cast<std::size_t>(stage)), kind, microbatch, {}};
}

std::vector<Action> gpipe(int stage, int num_microbatches) {
  std::vector<Action> list;
  for (int m = 0; m < num_microbatches; ++m) {
    list.push_back(compute(stage, ActionKind::kForward, m));
  }
  for (int m = 0; m < num_microbatches; ++m) {
    list.push_back(compute(stage, ActionKind::kBackward, m));
  }
  return list;
}

std::vector<Action> oneForwardOneBackward(int stage, int num_stages, int num_microbatches) {
  std::vector<Action> list;
  const int ahead = std::min(num_microbatches, num_stages - stage);
  for (int m = 0; m < ahead; ++m) list.push_back(compute(stage, ActionKind::kForward, m));
  for (int m = 0; m < num_microbatches; ++m) {
    list.push_back(compute(stage, ActionKind::kBackward, m));
    if (m + ahead < num_microbatches) {
      list.push_back(compute(stage, ActionKind::kForward, m + ahead));
    }
  }
  return list;
}

// 1F1B with each weight gradient right after its input gradient, except that stage s keeps back s
// of them when the last S microbatches come: from then on gradients of inputs arrive at the first
// stage without a gap, and the weight gradients kept back fill the end (ZB-H1). The bubble is
// (S - 1)(F + I - W), the weight gradients kept back hold what 1F1B's first stage holds.
std::vector<Action> zeroBubble(int stage, int num_stages, int num_microbatches) {
  std::vector<Action> list;
  const int ahead = std::min(num_microbatches, num_stages - stage);
  const int most_held = std::min(num_microbatches, num_stages);
  for (int m = 0; m < ahead; ++m) list.push_back(compute(stage, ActionKind::kForward, m));
  int next_weight = 0;
  for (int m = 0; m < num_microbatches; ++m) {
    list.push_back(compute(stage, ActionKind::kBackwardInput, m));
    const bool has_forward = m + ahead < num_microbatches;
    const int held_after = std::min(num_microbatches, m + ahead + 1) - next_weight;
    const bool keeps_back =
        has_forward && m >= num_microbatches - num_stages && held_after <= most_held;
    if (!keeps_back) {
      list.push_back(compute(stage, ActionKind::kBackwardWeight, next_weight++));
    }
    if (has_forward) list.push_back(compute(stage, ActionKind::kForward, m + ahead));
  }
  while (next_weight < num_microbatches) {
    list.push_back(compute(stage, ActionKind::kBackwardWeight, next_weight++));
  }
  return list;
}

// Microbatches go through the stages of a rank in groups of about num_ranks, the first groups one
// larger when they do not divide (torch asks for equal groups).
std::vector<Action> interleaved(int rank, int num_ranks, int stages_per_rank,
                                int num_microbatches) {
  const int num_groups = std::max(1, num_microbatches / num_ranks);
  std::vector<Action> forwards;
  std::vector<Action> backwards;
  int first = 0;
  for (int group = 0; group < num_groups; ++group) {
    const int size =
        num_microbatches / num_groups + (group < num_microbatches % num_groups ? 1 : 0);
    for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
      for (int m = first; m < first + size; ++m) {
        forwards.push_back(compute(chunk * num_ranks + rank, ActionKind::kForward, m));
        backwards.push_back(
            compute((stages_per_rank - 1 - chunk) * num_ranks + rank, ActionKind::kBackward, m));
      }
    }
    first += size;
  }
  const int first_group = (num_microbatches + num_groups - 1) / num_groups;
  const auto total = forwards.size();
  const auto ahead = std::min(total, static_cast<std::size_t>((stages_per_rank - 1) * first_group +
                                                              2 * (num_ranks - 1 - rank) + 1));
  std::vector<Action> list(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = 0; i < total; ++i) {
    list.push_back(backwards[i]);
    if (i + ahead < total) list.push_back(forwards[i + ahead]);
  }
  return list;
}

}  // namespace

std::vector<StageEdge> chainEdges(int num_stages) {
  std::vector<StageEdge> edges;
  for (int s = 0; s + 1 < num_stages; ++s) {
    edges.push_back(
        {StageId(static_cast<std::size_t>(s)), StageId(static_cast<std::size_t>(s + 1))});
  }
  return edges;
}

Schedule makeSchedule(const ScheduleRequest& request) {
  const bool interleaves = request.kind == ScheduleKind::kInterleaved1F1B;
  if (request.num_ranks < 1 || request.stages_per_rank < 1 || request.num_microbatches < 1) {
    throwRequest(std::to_string(request.num_ranks) + " ranks, " +
                     std::to_string(request.stages_per_rank) + " stages per rank, " +
                     std::to_string(request.num_microbatches) + " microbatches",
                 "give at least one of each");
  }
  if (!interleaves && request.stages_per_rank != 1) {
    throwRequest(std::to_string(request.stages_per_rank) + " stages per rank with schedule \"" +
                     toString(request.kind) + "\"",
                 "only \"interleaved_1f1b\" places several stages on a rank");
  }
  const int num_stages = request.num_ranks * request.stages_per_rank;
  std::vector<std::vector<Action>> computations;
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    switch (request.kind) {
      case ScheduleKind::kGPipe:
        computations.push_back(gpipe(rank, request.num_microbatches));
        break;
      case ScheduleKind::k1F1B:
        computations.push_back(oneForwardOneBackward(rank, num_stages, request.num_microbatches));
        break;
      case ScheduleKind::kInterleaved1F1B:
        // One stage per rank leaves nothing to interleave; the warm-up would only cost memory.
        computations.push_back(
            request.stages_per_rank == 1
                ? oneForwardOneBackward(rank, num_stages, request.num_microbatches)
                : interleaved(rank, request.num_ranks, request.stages_per_rank,
                              request.num_microbatches));
        break;
      case ScheduleKind::kZeroBubble:
        computations.push_back(zeroBubble(rank, num_stages, request.num_microbatches));
        break;
    }
  }
  std::vector<std::int32_t> rank_of_stage;
  for (int s = 0; s < num_stages; ++s) rank_of_stage.push_back(s % request.num_ranks);
  return addTransfers(std::move(computations), std::move(rank_of_stage),
                      request.edges.empty() ? chainEdges(num_stages) : request.edges,
                      request.num_microbatches);
}

int microbatchesInFlight(ScheduleKind kind, int num_following, int num_stages,
                         int num_microbatches) {
  switch (kind) {
    case ScheduleKind::kGPipe:
    case ScheduleKind::kInterleaved1F1B:
      return num_microbatches;
    case ScheduleKind::k1F1B:
      return std::min(num_microbatches, num_following + 1);
    case ScheduleKind::kZeroBubble:
      return std::min(num_microbatches, num_stages);
  }
  return num_microbatches;
}

const char* toString(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGPipe:
      return "gpipe";
    case ScheduleKind::k1F1B:
      return "1f1b";
    case ScheduleKind::kInterleaved1F1B:
      return "interleaved_1f1b";
    case ScheduleKind::kZeroBubble:
      return "zero_bubble";
  }
  return "unknown";
}

ScheduleKind parseScheduleKind(std::string_view name) {
  for (const ScheduleKind kind : kScheduleKinds) {
    if (name == toString(kind)) return kind;
  }
  throwRequest("schedule \"" + std::string(name) + "\"",
               R"(one of "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble")");
}

}  // namespace shardwright
