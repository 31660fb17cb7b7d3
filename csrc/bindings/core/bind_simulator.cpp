// The simulator of schedules.

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "interop/simulator.h"

namespace py = pybind11;

namespace shardwright {

namespace {

using Times = std::vector<double>;

// The time of entry `i`; a list left out stands for zeros.
double timeAt(const Times& times, std::size_t i) { return times.empty() ? 0 : times[i]; }

// Lists of one length; those that may be left out are empty then.
void checkLengths(const std::vector<const Times*>& lists, std::size_t count,
                  const std::string& what) {
  for (const Times* list : lists) {
    if (!list->empty() && list->size() != count) {
      throw Error(ErrorKind::kConfig, "E554", "a pipeline schedule cannot be simulated.",
                  {.values = {std::to_string(list->size()) + " times for " + std::to_string(count) +
                              " " + what},
                   .advice = "give one per " + what + ", or none for zero"});
    }
  }
}

Simulation simulateFromPython(const Schedule& schedule, const Times& forward,
                              const Times& backward_input, const Times& backward_weight,
                              const Times& once, const Times& ready, const Times& edge_forward,
                              const Times& edge_backward, bool blocking) {
  checkLengths({&forward, &backward_input, &backward_weight, &once, &ready},
               schedule.rank_of_stage.size(), "stages");
  checkLengths({&edge_forward, &edge_backward}, schedule.edges.size(), "edges");
  std::vector<StageTimes> stages;
  for (std::size_t s = 0; s < schedule.rank_of_stage.size(); ++s) {
    stages.push_back({timeAt(forward, s), timeAt(backward_input, s), timeAt(backward_weight, s),
                      timeAt(once, s), timeAt(ready, s)});
  }
  std::vector<EdgeTimes> edges;
  for (std::size_t e = 0; e < schedule.edges.size(); ++e) {
    edges.push_back({timeAt(edge_forward, e), timeAt(edge_backward, e)});
  }
  const py::gil_scoped_release release;
  return simulate(schedule, stages, edges,
                  blocking ? TransferTiming::kBlocking : TransferTiming::kOverlapped);
}

}  // namespace

void bindSimulator(py::module_& module) {
  py::class_<TimedAction>(module, "TimedAction")
      .def_readonly("rank", &TimedAction::rank)
      .def_readonly("action", &TimedAction::action)
      .def_readonly("start_us", &TimedAction::start_us)
      .def_readonly("end_us", &TimedAction::end_us);
  py::class_<Simulation>(module, "Simulation")
      .def_readonly("time_us", &Simulation::time_us)
      .def_readonly("pipeline_us", &Simulation::pipeline_us)
      .def_readonly("bubble_share", &Simulation::bubble_share)
      .def_readonly("busy_us", &Simulation::busy_us)
      .def_readonly("end_us", &Simulation::end_us)
      .def_readonly("most_in_flight", &Simulation::most_in_flight)
      .def_readonly("actions", &Simulation::actions);
  module.def("simulate_schedule", &simulateFromPython, py::arg("schedule"), py::kw_only(),
             py::arg("forward_us"), py::arg("backward_input_us"), py::arg("backward_weight_us"),
             py::arg("once_us") = Times(), py::arg("ready_us") = Times(),
             py::arg("edge_forward_us") = Times(), py::arg("edge_backward_us") = Times(),
             py::arg("blocking") = false,
             "When everything of a schedule happens; times by stage and by edge.");
}

}  // namespace shardwright
