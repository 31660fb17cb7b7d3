// Pipeline schedules and the check that runs them.

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "interop/schedule.h"
#include "interop/schedule_check.h"

namespace py = pybind11;

namespace shardwright {

namespace {

using EdgeTuple = std::pair<int, int>;

StageId stageId(int index) {
  if (index < 0) throw py::index_error("stage " + std::to_string(index) + " is none");
  return StageId(static_cast<std::size_t>(index));
}

std::vector<StageEdge> toEdges(const std::vector<EdgeTuple>& pairs,
                               const std::vector<EdgeTuple>& without_gradient) {
  std::vector<StageEdge> edges;
  for (const auto& [from, to] : pairs) edges.push_back({stageId(from), stageId(to), true});
  for (const auto& [from, to] : without_gradient) {
    edges.push_back({stageId(from), stageId(to), false});
  }
  return edges;
}

std::vector<std::tuple<int, int, bool>> edgesOf(const Schedule& schedule) {
  std::vector<std::tuple<int, int, bool>> edges;
  for (const StageEdge& edge : schedule.edges) {
    edges.emplace_back(edge.from.index(), edge.to.index(), edge.has_gradient);
  }
  return edges;
}

std::vector<std::vector<Action>> parseLists(const std::vector<std::vector<std::string>>& texts) {
  std::vector<std::vector<Action>> lists;
  for (const auto& text : texts) {
    std::vector<Action>& list = lists.emplace_back();
    for (const std::string& word : text) list.push_back(parseAction(word));
  }
  return lists;
}

void bindActions(py::module_& module) {
  py::class_<Action>(module, "Action")
      .def(py::init([](const std::string& text) { return parseAction(text); }), py::arg("text"))
      .def_property_readonly("stage", [](const Action& action) { return action.stage.index(); })
      .def_property_readonly("kind", [](const Action& action) { return toString(action.kind); })
      .def_readonly("microbatch", &Action::microbatch)
      .def_property_readonly(
          "peer",
          [](const Action& action) {
            return action.peer.isValid() ? py::object(py::int_(action.peer.index())) : py::none();
          })
      .def_property_readonly("is_transfer", &Action::isTransfer)
      .def_property_readonly("is_send", &Action::isSend)
      .def("__eq__", [](const Action& a, const Action& b) { return a == b; })
      .def("__hash__", [](const Action& action) { return py::hash(py::str(toText(action))); })
      .def("__str__", [](const Action& action) { return toText(action); })
      .def("__repr__", [](const Action& action) { return toText(action); });
}

TransferModel modelFromName(const std::string& name) {
  if (name == "rendezvous") return TransferModel::kRendezvous;
  if (name == "queued") return TransferModel::kQueued;
  throw py::value_error("no transfer model is called " + name);
}

}  // namespace

void bindSchedule(py::module_& module) {
  bindActions(module);
  py::class_<ScheduleReport>(module, "ScheduleReport")
      .def_property_readonly("ok", &ScheduleReport::ok)
      .def_readonly("errors", &ScheduleReport::errors)
      .def_property_readonly("deadlock",
                             [](const ScheduleReport& report) {
                               std::vector<std::tuple<int, Action, std::string>> waits;
                               for (const Wait& wait : report.deadlock) {
                                 waits.emplace_back(wait.rank, wait.action, wait.cause);
                               }
                               return waits;
                             })
      .def_readonly("most_in_flight", &ScheduleReport::most_in_flight)
      .def("__str__", &ScheduleReport::text);
  py::class_<Schedule>(module, "Schedule")
      .def(py::init([](const std::vector<std::vector<std::string>>& actions,
                       const std::vector<std::int32_t>& rank_of_stage,
                       const std::vector<EdgeTuple>& edges,
                       const std::vector<EdgeTuple>& edges_without_gradient, int num_microbatches) {
             return Schedule{num_microbatches, rank_of_stage,
                             toEdges(edges, edges_without_gradient), parseLists(actions)};
           }),
           py::arg("actions"), py::kw_only(), py::arg("rank_of_stage"), py::arg("edges"),
           py::arg("edges_without_gradient") = std::vector<EdgeTuple>(),
           py::arg("num_microbatches"))
      .def_property_readonly("num_ranks", &Schedule::numRanks)
      .def_property_readonly("num_stages", &Schedule::numStages)
      .def_readonly("num_microbatches", &Schedule::num_microbatches)
      .def_readonly("rank_of_stage", &Schedule::rank_of_stage)
      .def_property_readonly("edges", &edgesOf)
      .def_readonly("actions", &Schedule::actions)
      .def(
          "check",
          [](const Schedule& schedule, const std::string& model, bool one_per_direction) {
            return checkSchedule(schedule, modelFromName(model),
                                 one_per_direction ? CommunicatorScope::kStagePairDirection
                                                   : CommunicatorScope::kStagePair);
          },
          py::kw_only(), py::arg("model") = "rendezvous", py::arg("one_per_direction") = false)
      .def("with_early_receives", &postReceivesEarly)
      .def("__str__", [](const Schedule& schedule) { return toText(schedule); });
  module.def(
      "make_schedule",
      [](const std::string& kind, int num_ranks, int num_microbatches, int stages_per_rank,
         const std::vector<EdgeTuple>& edges,
         const std::vector<EdgeTuple>& edges_without_gradient) {
        return makeSchedule({parseScheduleKind(kind), num_ranks, stages_per_rank, num_microbatches,
                             toEdges(edges, edges_without_gradient)});
      },
      py::arg("kind"), py::kw_only(), py::arg("num_ranks"), py::arg("num_microbatches"),
      py::arg("stages_per_rank") = 1, py::arg("edges") = std::vector<EdgeTuple>(),
      py::arg("edges_without_gradient") = std::vector<EdgeTuple>());
  module.def(
      "add_transfers",
      [](const std::vector<std::vector<std::string>>& computations,
         const std::vector<std::int32_t>& rank_of_stage, const std::vector<EdgeTuple>& edges,
         const std::vector<EdgeTuple>& edges_without_gradient, int num_microbatches) {
        return addTransfers(parseLists(computations), rank_of_stage,
                            toEdges(edges, edges_without_gradient), num_microbatches);
      },
      py::arg("computations"), py::kw_only(), py::arg("rank_of_stage"), py::arg("edges"),
      py::arg("edges_without_gradient") = std::vector<EdgeTuple>(), py::arg("num_microbatches"));
}

}  // namespace shardwright
