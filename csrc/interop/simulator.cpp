#include "interop/simulator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "interop/schedule_check.h"

namespace shardwright {
namespace {

[[noreturn]] void reject(std::vector<std::string> values, const std::string& advice) {
  throw Error(ErrorKind::kConfig, "E554", "a pipeline schedule cannot be simulated.",
              {.values = std::move(values), .advice = advice});
}

void checkTimes(const Schedule& schedule, const std::vector<StageTimes>& stages,
                const std::vector<EdgeTimes>& edges) {
  if (stages.size() != schedule.rank_of_stage.size() || edges.size() != schedule.edges.size()) {
    reject({std::to_string(stages.size()) + " stage times, " + std::to_string(edges.size()) +
            " edge times for " + std::to_string(schedule.rank_of_stage.size()) + " stages, " +
            std::to_string(schedule.edges.size()) + " edges"},
           "give one per stage and one per edge of the schedule");
  }
  const auto bad = [](double time) { return !std::isfinite(time) || time < 0; };
  for (const StageTimes& stage : stages) {
    if (bad(stage.forward_us) || bad(stage.backward_input_us) || bad(stage.backward_weight_us) ||
        bad(stage.once_us) || bad(stage.ready_us)) {
      reject({"a stage's time is negative or not finite"}, "microseconds, 0 or more");
    }
  }
  for (const EdgeTimes& edge : edges) {
    if (bad(edge.forward_us) || bad(edge.backward_us)) {
      reject({"an edge's time is negative or not finite"}, "microseconds, 0 or more");
    }
  }
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const std::vector<StageTimes>& stages,
            const std::vector<EdgeTimes>& edges, TransferTiming timing)
      : schedule_(schedule),
        stages_(stages),
        timing_(timing),
        next_(schedule.actions.size(), 0),
        free_us_(schedule.actions.size(), 0),
        timed_(schedule.actions.size()) {
    for (std::size_t e = 0; e < edges.size(); ++e) {
      const StageEdge& edge = schedule.edges[e];
      edge_times_[{edge.from, edge.to}] = edges[e];
      sources_[edge.to].push_back(edge.from);
      if (edge.has_gradient) gradient_sources_[edge.from].push_back(edge.to);
    }
  }

  Simulation run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) {
        while (next_[rank] < schedule_.actions[rank].size() && advance(rank)) progress = true;
      }
    }
    return conclude();
  }

 private:
  // A tensor of a microbatch, made by one stage for another (or for itself).
  using Tensor = std::tuple<StageId, StageId, bool, std::int32_t>;

  double computationTime(const Action& action) const {
    const StageTimes& times = stages_[action.stage.index()];
    switch (action.kind) {
      case ActionKind::kForward:
        return times.forward_us;
      case ActionKind::kBackward:
        return times.backward_input_us + times.backward_weight_us;
      case ActionKind::kBackwardInput:
        return times.backward_input_us;
      case ActionKind::kBackwardWeight:
        return times.backward_weight_us;
      default:
        return 0;
    }
  }

  double transferTime(const Action& send) const {
    const bool is_forward = send.kind == ActionKind::kSendForward;
    const auto key =
        is_forward ? std::pair{send.stage, send.peer} : std::pair{send.peer, send.stage};
    const EdgeTimes& times = edge_times_.at(key);
    return is_forward ? times.forward_us : times.backward_us;
  }

  const std::vector<StageId>& sourcesOf(const Action& action) const {
    static const std::vector<StageId> kNone;
    if (action.kind == ActionKind::kBackwardWeight) return kNone;
    const auto& sources = action.kind == ActionKind::kForward ? sources_ : gradient_sources_;
    const auto found = sources.find(action.stage);
    return found == sources.end() ? kNone : found->second;
  }

  // When everything a computation needs is on its rank; nothing while that is unknown.
  std::optional<double> readyTime(const Action& action) const {
    double ready = 0;
    const bool is_forward = action.kind == ActionKind::kForward;
    for (const StageId source : sourcesOf(action)) {
      const auto found = arrival_us_.find({source, action.stage, is_forward, action.microbatch});
      if (found == arrival_us_.end()) return std::nullopt;
      ready = std::max(ready, found->second);
    }
    return ready;
  }

  void record(std::size_t rank, const Action& action, double start, double end) {
    timed_[rank].push_back({static_cast<std::int32_t>(rank), action, start, end});
    last_us_ = std::max(last_us_, end);
  }

  bool advance(std::size_t rank) {
    const Action& action = schedule_.actions[rank][next_[rank]];
    if (!action.isTransfer()) return compute(rank, action);
    if (timing_ == TransferTiming::kBlocking) return meet(rank, action);
    if (action.isSend()) sendOn(rank, action);
    ++next_[rank];
    return true;
  }

  bool compute(std::size_t rank, const Action& action) {
    const std::optional<double> ready = readyTime(action);
    if (!ready) return false;
    const double start = std::max({*ready, free_us_[rank], stages_[action.stage.index()].ready_us});
    const double end = start + computationTime(action);
    record(rank, action, start, end);
    free_us_[rank] = end;
    made_us_[{action.stage, action.kind == ActionKind::kForward, action.microbatch}] = end;
    // What goes to a stage of the same rank is there at once.
    const bool is_forward = action.kind == ActionKind::kForward;
    if (action.kind != ActionKind::kBackwardWeight) {
      for (const StageEdge& edge : schedule_.edges) {
        if ((is_forward ? edge.from : edge.to) != action.stage) continue;
        const StageId target = is_forward ? edge.to : edge.from;
        if (schedule_.rank_of_stage[target.index()] != static_cast<std::int32_t>(rank)) continue;
        arrival_us_[{action.stage, target, is_forward, action.microbatch}] = end;
      }
    }
    ++next_[rank];
    return true;
  }

  void sendOn(std::size_t rank, const Action& send) {
    const bool is_forward = send.kind == ActionKind::kSendForward;
    double& link_free = link_free_us_[{send.stage, send.peer}];
    const double start =
        std::max(link_free, made_us_.at({send.stage, is_forward, send.microbatch}));
    link_free = start + transferTime(send);
    record(rank, send, start, link_free);
    arrival_us_[{send.stage, send.peer, is_forward, send.microbatch}] = link_free;
  }

  bool meet(std::size_t rank, const Action& action) {
    const auto peer_rank = static_cast<std::size_t>(schedule_.rank_of_stage[action.peer.index()]);
    if (next_[peer_rank] >= schedule_.actions[peer_rank].size()) return false;
    const Action& other = schedule_.actions[peer_rank][next_[peer_rank]];
    const bool matches = other.isTransfer() && other.isSend() != action.isSend() &&
                         other.stage == action.peer && other.peer == action.stage &&
                         other.microbatch == action.microbatch &&
                         isForwardTransfer(other) == isForwardTransfer(action);
    if (!matches) return false;
    const Action& send = action.isSend() ? action : other;
    const double start = std::max(free_us_[rank], free_us_[peer_rank]);
    const double end = start + transferTime(send);
    record(action.isSend() ? rank : peer_rank, send, start, end);
    arrival_us_[{send.stage, send.peer, isForwardTransfer(send), send.microbatch}] = end;
    free_us_[rank] = end;
    free_us_[peer_rank] = end;
    ++next_[rank];
    ++next_[peer_rank];
    return true;
  }

  static bool isForwardTransfer(const Action& action) {
    return action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
  }

  Simulation conclude() {
    Simulation result;
    result.pipeline_us = last_us_;
    for (std::size_t rank = 0; rank < timed_.size(); ++rank) {
      double busy = 0;
      double last = 0;
      for (const TimedAction& timed : timed_[rank]) {
        if (timed.action.isTransfer()) continue;
        busy += timed.end_us - timed.start_us;
        last = std::max(last, timed.end_us);
      }
      result.busy_us.push_back(busy);
      result.end_us.push_back(last);
      double once = 0;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        if (schedule_.rank_of_stage[s] == static_cast<std::int32_t>(rank))
          once += stages_[s].once_us;
      }
      result.time_us = std::max(result.time_us, last + once);
      result.actions.insert(result.actions.end(), timed_[rank].begin(), timed_[rank].end());
    }
    result.time_us = std::max(result.time_us, result.pipeline_us);
    const double busy = std::accumulate(result.busy_us.begin(), result.busy_us.end(), 0.0);
    const double all = result.pipeline_us * static_cast<double>(timed_.size());
    result.bubble_share = all > 0 ? 1 - busy / all : 0;
    return result;
  }

  const Schedule& schedule_;
  const std::vector<StageTimes>& stages_;
  TransferTiming timing_;
  std::map<std::pair<StageId, StageId>, EdgeTimes> edge_times_;
  std::map<StageId, std::vector<StageId>> sources_;           // forward tensors of a stage
  std::map<StageId, std::vector<StageId>> gradient_sources_;  // gradients of a stage
  std::vector<std::size_t> next_;
  std::vector<double> free_us_;
  std::map<std::tuple<StageId, bool, std::int32_t>, double> made_us_;
  std::map<Tensor, double> arrival_us_;
  std::map<std::pair<StageId, StageId>, double> link_free_us_;  // by sender and receiver
  std::vector<std::vector<TimedAction>> timed_;
  double last_us_ = 0;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const std::vector<StageTimes>& stages,
                    const std::vector<EdgeTimes>& edges, TransferTiming timing) {
  checkTimes(schedule, stages, edges);
  const ScheduleReport report =
      timing == TransferTiming::kBlocking
          ? checkSchedule(schedule)
          : checkSchedule(schedule, TransferModel::kQueued, CommunicatorScope::kStagePairDirection);
  if (!report.ok()) {
    std::vector<std::string> lines = report.errors;
    const std::string waits = ScheduleReport{{}, report.deadlock, {}}.text();
    if (!waits.empty()) lines.push_back(waits.substr(0, waits.find('\n')));
    reject(std::move(lines), "make the lists with make_schedule or add_transfers");
  }
  Simulation result = Simulator(schedule, stages, edges, timing).run();
  result.most_in_flight = report.most_in_flight;
  return result;
}

}  // namespace shardwright
