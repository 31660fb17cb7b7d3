// Sends and receives of a schedule: one total order of everything, each rank sees its part of it.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "interop/schedule.h"

namespace shardwright {
namespace {

using Time = std::int64_t;

Time unitTime(ActionKind kind) { return kind == ActionKind::kBackward ? 2 : 1; }

// Runs the computations as soon as what they need exists, transfers taking no time.
class UnitTimeRun {
 public:
  UnitTimeRun(const std::vector<std::vector<Action>>& computations,
              const std::vector<StageEdge>& edges)
      : computations_(computations), edges_(edges) {}

  // Start of every computation, by rank and position; empty when they wait in a circle.
  std::vector<std::vector<Time>> run() {
    std::vector<std::vector<Time>> starts(computations_.size());
    std::vector<Time> free(computations_.size(), 0);
    bool progress = true;
    std::size_t left = 0;
    for (const auto& list : computations_) left += list.size();
    while (progress && left > 0) {
      progress = false;
      for (std::size_t rank = 0; rank < computations_.size(); ++rank) {
        while (starts[rank].size() < computations_[rank].size()) {
          const Action& action = computations_[rank][starts[rank].size()];
          const Time ready = readyTime(action);
          if (ready < 0) break;
          const Time start = std::max(ready, free[rank]);
          starts[rank].push_back(start);
          free[rank] = start + unitTime(action.kind);
          end_[key(action.stage, action.kind, action.microbatch)] = free[rank];
          progress = true;
          --left;
        }
      }
    }
    if (left > 0) starts.clear();
    return starts;
  }

 private:
  using Key = std::tuple<StageId, ActionKind, std::int32_t>;

  // A full backward yields what the split one's first half yields.
  static Key key(StageId stage, ActionKind kind, std::int32_t microbatch) {
    return {stage, kind == ActionKind::kBackward ? ActionKind::kBackwardInput : kind, microbatch};
  }

  Time endOf(StageId stage, ActionKind kind, std::int32_t microbatch) const {
    const auto found = end_.find(key(stage, kind, microbatch));
    return found == end_.end() ? -1 : found->second;
  }

  // When everything the action needs exists; -1 while something is missing.
  Time readyTime(const Action& action) const {
    Time ready = 0;
    const auto need = [&](StageId stage, ActionKind kind) {
      const Time end = endOf(stage, kind, action.microbatch);
      ready = end < 0 || ready < 0 ? -1 : std::max(ready, end);
    };
    if (action.kind == ActionKind::kBackwardWeight) {
      need(action.stage, ActionKind::kBackwardInput);
      return ready;
    }
    const bool is_forward = action.kind == ActionKind::kForward;
    if (!is_forward) need(action.stage, ActionKind::kForward);
    for (const StageEdge& edge : edges_) {
      if (is_forward && edge.to == action.stage) need(edge.from, ActionKind::kForward);
      if (!is_forward && edge.from == action.stage && edge.has_gradient) {
        need(edge.to, ActionKind::kBackwardInput);
      }
    }
    return ready;
  }

  const std::vector<std::vector<Action>>& computations_;
  const std::vector<StageEdge>& edges_;
  std::map<Key, Time> end_;
};

// One entry of the total order: a computation, or a transfer seen from its sender.
struct Entry {
  Time time = 0;  // a computation's start; the moment a transfer's tensor exists
  bool is_computation = false;
  std::int32_t rank = 0;
  std::size_t position = 0;  // in the rank's list; keeps equal times in order
  Action action;

  auto key() const { return std::tie(time, is_computation, rank, position, action); }
};

void checkEdges(const std::vector<StageEdge>& edges, std::size_t num_stages) {
  for (const StageEdge& edge : edges) {
    if (!edge.from.isValid() || !(edge.from < edge.to) || edge.to.index() >= num_stages) {
      throw Error(ErrorKind::kConfig, "E551", "a pipeline schedule cannot be made as asked.",
                  {.values = {"an edge between stages that does not go to a later one of " +
                              std::to_string(num_stages) + " stages"},
                   .advice = "number the stages in the order in which data goes through them"});
    }
  }
}

void checkComputations(const std::vector<std::vector<Action>>& computations,
                       const std::vector<std::int32_t>& rank_of_stage, int num_microbatches) {
  const auto reject = [](const std::string& value) {
    throw Error(ErrorKind::kConfig, "E552", "the computations of a pipeline schedule cannot run.",
                {.values = {value},
                 .advice = "every stage needs each microbatch's F and B (or I and W) once, on its "
                           "own rank"});
  };
  std::map<std::tuple<StageId, std::int32_t>, std::vector<ActionKind>> kinds;
  for (std::size_t rank = 0; rank < computations.size(); ++rank) {
    for (const Action& action : computations[rank]) {
      const bool known = action.stage.isValid() && action.stage.index() < rank_of_stage.size() &&
                         action.microbatch >= 0 && action.microbatch < num_microbatches;
      if (!known || action.isTransfer() ||
          rank_of_stage[action.stage.index()] != static_cast<std::int32_t>(rank)) {
        reject(toText(action) + " in the list of rank " + std::to_string(rank));
      }
      kinds[{action.stage, action.microbatch}].push_back(action.kind);
    }
  }
  for (std::size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    for (int m = 0; m < num_microbatches; ++m) {
      std::vector<ActionKind>& found = kinds[{StageId(stage), m}];
      std::ranges::sort(found);
      using enum ActionKind;
      if (found != std::vector{kForward, kBackward} &&
          found != std::vector{kForward, kBackwardInput, kBackwardWeight}) {
        reject("stage " + std::to_string(stage) + ", microbatch " + std::to_string(m) + ": " +
               std::to_string(found.size()) + " computations");
      }
    }
  }
}

// One edge per pair of stages, with a gradient if any of them has one.
std::vector<StageEdge> merged(const std::vector<StageEdge>& edges) {
  std::map<std::pair<StageId, StageId>, bool> has_gradient;
  for (const StageEdge& edge : edges) has_gradient[{edge.from, edge.to}] |= edge.has_gradient;
  std::vector<StageEdge> result;
  for (const auto& [pair, gradient] : has_gradient) {
    result.push_back({pair.first, pair.second, gradient});
  }
  return result;
}

// What the computation at `entry` sends on.
void addSends(const Entry& entry, const std::vector<StageEdge>& edges,
              const std::vector<std::int32_t>& rank_of_stage, std::vector<Entry>& entries) {
  const Action& action = entry.action;
  if (action.kind == ActionKind::kBackwardWeight) return;
  const bool is_forward = action.kind == ActionKind::kForward;
  for (const StageEdge& edge : edges) {
    if ((is_forward ? edge.from : edge.to) != action.stage) continue;
    if (!is_forward && !edge.has_gradient) continue;
    const StageId peer = is_forward ? edge.to : edge.from;
    if (rank_of_stage[peer.index()] == entry.rank) continue;
    Entry send = entry;
    send.time = entry.time + unitTime(action.kind);
    send.is_computation = false;
    send.action.kind = is_forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
    send.action.peer = peer;
    entries.push_back(send);
  }
}

Action receiveOf(const Action& send) {
  return {send.peer,
          send.kind == ActionKind::kSendForward ? ActionKind::kReceiveForward
                                                : ActionKind::kReceiveBackward,
          send.microbatch, send.stage};
}

}  // namespace

Schedule addTransfers(std::vector<std::vector<Action>> computations,
                      std::vector<std::int32_t> rank_of_stage, std::vector<StageEdge> edges,
                      int num_microbatches) {
  checkEdges(edges, rank_of_stage.size());
  checkComputations(computations, rank_of_stage, num_microbatches);
  edges = merged(edges);
  const auto starts = UnitTimeRun(computations, edges).run();
  if (starts.empty()) {
    throw Error(ErrorKind::kConfig, "E552", "the computations of a pipeline schedule cannot run.",
                {.values = {"they wait for each other in a circle"},
                 .advice = "order each rank's list so that what a computation needs comes first"});
  }
  std::vector<Entry> entries;
  for (std::size_t rank = 0; rank < computations.size(); ++rank) {
    for (std::size_t i = 0; i < computations[rank].size(); ++i) {
      const Entry entry{starts[rank][i], true, static_cast<std::int32_t>(rank), i,
                        computations[rank][i]};
      entries.push_back(entry);
      addSends(entry, edges, rank_of_stage, entries);
    }
  }
  // At equal times transfers come first: a computation that starts then may need them, and what
  // they carry was made by one that started earlier.
  std::ranges::sort(entries, {}, [](const Entry& entry) { return entry.key(); });
  Schedule schedule{num_microbatches, std::move(rank_of_stage), std::move(edges), {}};
  schedule.actions.resize(computations.size());
  for (const Entry& entry : entries) {
    schedule.actions[static_cast<std::size_t>(entry.rank)].push_back(entry.action);
    if (entry.is_computation) continue;
    const Action receive = receiveOf(entry.action);
    const std::int32_t receiver = schedule.rank_of_stage[receive.stage.index()];
    schedule.actions[static_cast<std::size_t>(receiver)].push_back(receive);
  }
  return schedule;
}

}  // namespace shardwright
