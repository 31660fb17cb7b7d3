// Runs the lists of a schedule on a model of ordered, blocking communicators and says why they
// cannot finish. Knows only the lists: it shares no code with what makes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/schedule.h"

namespace shardwright {

enum class TransferModel : std::uint8_t {
  // A rank waits in every send and receive until its peer has come to the matching one. The
  // strictest: what finishes here finishes on any real communicator.
  kRendezvous,
  // Sends and receives are put on their communicator and the rank goes on; only a computation that
  // needs a tensor waits. A communicator runs its entries in order, each side has its own order,
  // and both fronts must match (NCCL on a stream).
  kQueued,
};

// What shares one ordered communicator.
enum class CommunicatorScope : std::uint8_t {
  kStagePair,           // both directions between two stages
  kStagePairDirection,  // one direction between two stages
  kRankPair,            // everything between two ranks, whatever their stages
};

// One rank that cannot go on.
struct Wait {
  std::int32_t rank = 0;
  Action action;      // what it wants to do
  std::string cause;  // "for rank 1, which is at 1SEND_B0"
};

struct ScheduleReport {
  // Missing, doubled or misplaced actions, unmet dependencies: one line each, at most 20.
  std::vector<std::string> errors;
  std::vector<Wait> deadlock;  // empty when every list runs to its end
  // Most microbatches begun and not yet fully backward, by stage, in the order of the lists.
  std::vector<std::int32_t> most_in_flight;

  bool ok() const { return errors.empty() && deadlock.empty(); }
  // "rank 0 waits at 0SEND_F1 for rank 1, which is at 1SEND_B0" and so on, one per line.
  std::string text() const;
};

// Checks that every stage computes each microbatch's F and B (or I and W) once, on its rank, after
// what it needs has been computed or received; that every edge is sent and received once per
// microbatch and direction; and that the lists finish under the model.
ScheduleReport checkSchedule(const Schedule& schedule,
                             TransferModel model = TransferModel::kRendezvous,
                             CommunicatorScope scope = CommunicatorScope::kStagePair);

}  // namespace shardwright
