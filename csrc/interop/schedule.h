// Pipeline schedules: what each pipeline rank computes, sends and receives, in which order. The
// grammar of the actions is that of torch.distributed.pipelining.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace shardwright {

enum class ScheduleKind : std::uint8_t {
  kGPipe,            // all forwards, then all backwards (Huang et al., 2019)
  k1F1B,             // PipeDream-flush: at most S - s microbatches in flight in stage s
  kInterleaved1F1B,  // several stages per rank (Megatron-LM, Narayanan et al., 2021)
  kZeroBubble,       // backward split into input and weight gradients, ZB-H1 (Qi et al., 2024)
};

enum class ActionKind : std::uint8_t {
  kForward,
  kBackward,        // gradients of inputs and weights
  kBackwardInput,   // gradients of the stage's inputs only
  kBackwardWeight,  // gradients of its weights, after kBackwardInput
  kSendForward,
  kReceiveForward,
  kSendBackward,
  kReceiveBackward,
};

// One entry of a rank's list. Text: stage, kind, microbatch, as in "0F0", "1B3", "0I2", "0W2",
// "0SEND_F1", "1RECV_F1". A transfer that does not join neighbours names the other stage:
// "0SEND_F1>3", "3RECV_F1<0".
struct Action {
  StageId stage;
  ActionKind kind = ActionKind::kForward;
  std::int32_t microbatch = 0;
  StageId peer = {};  // the other stage of a transfer; invalid for computation

  bool isTransfer() const { return kind >= ActionKind::kSendForward; }
  bool isSend() const {
    return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
  }

  friend auto operator<=>(const Action&, const Action&) = default;
};

// Tensors go from one stage to a later one; their gradients come back unless there are none.
struct StageEdge {
  StageId from;
  StageId to;
  bool has_gradient = true;

  friend auto operator<=>(const StageEdge&, const StageEdge&) = default;
};

// 0 -> 1 -> ... -> num_stages - 1.
std::vector<StageEdge> chainEdges(int num_stages);

// The lists of all pipeline ranks. A pipeline rank is one submesh: its devices all run its list.
struct Schedule {
  int num_microbatches = 0;
  std::vector<std::int32_t> rank_of_stage;
  std::vector<StageEdge> edges;
  std::vector<std::vector<Action>> actions;  // by rank

  int numRanks() const { return static_cast<int>(actions.size()); }
  int numStages() const { return static_cast<int>(rank_of_stage.size()); }
};

struct ScheduleRequest {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int num_ranks = 1;
  int stages_per_rank = 1;  // more than one only for kInterleaved1F1B; stage s is on rank s % R
  int num_microbatches = 1;
  // What is sent between stages; empty means chainEdges(). Stages of one rank send nothing.
  std::vector<StageEdge> edges = {};
};

// The schedule with its transfers. Example: 1F1B on 2 ranks with 2 microbatches is
//   0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
//   1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1     (transfers where addTransfers puts
//   them)
// The computations of a kind are those of its paper; zero-bubble keeps at most min(B, S)
// microbatches in flight on any rank, what 1F1B needs on its first one.
// Throws ConfigError [E551] for counts below 1 or edges that do not go to a later stage.
Schedule makeSchedule(const ScheduleRequest& request);

// Puts sends and receives into lists that hold only computations. All transfers and computations
// follow one total order, in which a transfer comes as soon as its tensor exists when every
// forward takes one unit of time and every backward two; each rank's list is what it sees of that
// order. So no list can wait for another in a circle, not even when every send blocks until it is
// received and each pair of stages has one ordered communicator: whatever comes first in the
// order can always run.
// Throws ConfigError [E551] as above, [E552] when the computations wait for each other in a circle
// or one of them is missing.
Schedule addTransfers(std::vector<std::vector<Action>> computations,
                      std::vector<std::int32_t> rank_of_stage, std::vector<StageEdge> edges,
                      int num_microbatches);

// The same lists for a runtime in which a receive only posts and the computation that needs its
// tensor waits. Each receive moves in front of one computation, so that a tensor arrives while the
// one before it is computed on, and no more than one is there too early; never past another
// transfer of the same two ranks, whose common communicator keeps its order. Example, GPipe's last
// stage:
//   1RECV_F0 1F0 1RECV_F1 1F1 becomes 1RECV_F0 1RECV_F1 1F0 1F1
// The lists finish when `schedule`'s do: no computation moves, and whatever comes first in their
// total order has its transfers posted. They are not for communicators where receives block.
Schedule postReceivesEarly(const Schedule& schedule);

// Most microbatches whose activations a stage holds at once, `num_following` stages before the
// end of `num_stages`: GPipe B, 1F1B min(B, num_following + 1), zero-bubble min(B, num_stages).
// Contract: not interleaved, where it depends on the rank (simulate() counts).
int microbatchesInFlight(ScheduleKind kind, int num_following, int num_stages,
                         int num_microbatches);

std::string toText(const Action& action);
// Reads what toText writes. Throws ConfigError [E553].
Action parseAction(std::string_view text);
// One line per rank, actions separated by commas: what torch's schedules load from CSV.
std::string toText(const Schedule& schedule);

// "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble".
const char* toString(ScheduleKind kind);
// Throws ConfigError [E551] for other names.
ScheduleKind parseScheduleKind(std::string_view name);
// "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B".
const char* toString(ActionKind kind);

}  // namespace shardwright
