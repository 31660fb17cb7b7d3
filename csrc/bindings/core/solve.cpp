#include "intraop/solve.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "intraop/contest_reader.h"

namespace py = pybind11;

namespace shardwright {
namespace {

using Integers = py::array_t<int64_t, py::array::c_style>;

std::vector<int64_t> toCosts(const Integers& values) {
  std::vector<int64_t> costs(values.data(), values.data() + values.size());
  for (int64_t& cost : costs) {
    if (cost >= kContestForbidden) cost = kForbidden;
  }
  return costs;
}

Problem buildProblem(const std::string& name, const Integers& intervals,
                     const std::vector<Integers>& node_costs, const std::vector<Integers>& usages,
                     const Integers& edge_nodes, const std::vector<Integers>& edge_costs,
                     std::optional<int64_t> usage_limit) {
  const auto num_nodes = static_cast<py::ssize_t>(node_costs.size());
  const auto num_edges = static_cast<py::ssize_t>(edge_costs.size());
  if (intervals.size() != 2 * num_nodes || usages.size() != node_costs.size() ||
      edge_nodes.size() != 2 * num_edges) {
    throw Error(ErrorKind::kProblem, "E211", "the lists of a problem differ in length.",
                {.values = {std::to_string(intervals.size() / 2) + " intervals, " +
                            std::to_string(node_costs.size()) + " node costs, " +
                            std::to_string(usages.size()) + " usages, " +
                            std::to_string(edge_nodes.size() / 2) + " edges, " +
                            std::to_string(edge_costs.size()) + " edge costs"},
                 .advice = "give one entry per node, and one per edge"});
  }
  ProblemBuilder builder(name);
  std::vector<int32_t> sizes;
  for (size_t n = 0; n < node_costs.size(); ++n) {
    std::vector<int64_t> bytes(usages[n].data(), usages[n].data() + usages[n].size());
    const int64_t* interval = intervals.data() + 2 * n;
    sizes.push_back(static_cast<int32_t>(node_costs[n].size()));
    builder.addNode(toCosts(node_costs[n]), {{{interval[0], interval[1]}, std::move(bytes)}});
  }
  for (size_t e = 0; e < edge_costs.size(); ++e) {
    const int64_t u = edge_nodes.data()[2 * e];
    const int64_t v = edge_nodes.data()[2 * e + 1];
    if (u < 0 || v < 0 || u >= num_nodes || v >= num_nodes) {
      throw Error(ErrorKind::kProblem, "E211", "an edge names a node that does not exist.",
                  {.values = {"edge " + std::to_string(e) + ": [" + std::to_string(u) + ", " +
                              std::to_string(v) + "] of " + std::to_string(num_nodes) + " nodes"},
                   .advice = "node indices start at 0"});
    }
    const CostTableId table = builder.addTable(
        sizes[static_cast<size_t>(u)], sizes[static_cast<size_t>(v)], toCosts(edge_costs[e]));
    builder.addEdge(ChoiceNodeId(static_cast<size_t>(u)), ChoiceNodeId(static_cast<size_t>(v)),
                    table);
  }
  if (usage_limit) builder.setMemoryLimit(*usage_limit);
  return std::move(builder).build();
}

const char* toString(StopCause stop) {
  switch (stop) {
    case StopCause::kFinished:
      return "finished";
    case StopCause::kTimeLimit:
      return "time_limit";
    case StopCause::kInterrupted:
      return "interrupted";
    case StopCause::kGapReached:
      return "gap_reached";
  }
  return "unknown";
}

py::dict toDict(const Problem& problem, const Answer& answer) {
  py::dict result;
  const bool has_choice = !answer.choice.empty() || answer.status == SolveStatus::kOptimal;
  result["nodes"] = problem.numNodes();
  result["edges"] = problem.edges().size();
  result["cost"] = has_choice ? py::object(py::int_(answer.cost)) : py::none();
  result["lower_bound"] =
      answer.lower_bound ? py::object(py::int_(*answer.lower_bound)) : py::none();
  result["gap"] =
      has_choice && answer.lower_bound ? py::object(py::float_(answer.gap)) : py::none();
  result["status"] = shardwright::toString(answer.status);
  result["proof"] = shardwright::toString(answer.proof);
  result["stop"] = toString(answer.stop);
  result["peak_bytes"] = has_choice ? py::object(py::int_(answer.peak_bytes)) : py::none();
  result["smallest_peak_bytes"] = answer.smallest_peak_bytes;
  result["smallest_peak_bound_bytes"] = answer.smallest_peak_bound_bytes;
  py::dict phases;
  for (const PhaseTime& phase : answer.phases) phases[phase.phase.c_str()] = phase.seconds;
  result["phases"] = phases;
  result["seconds"] = answer.seconds;
  result["choice"] = answer.choice;
  return result;
}

// Solves on another thread so that Ctrl-C can be noticed; it then returns the best verified choice.
py::dict solveInterruptibly(const Problem& problem, SolveOptions options,
                            const std::optional<py::function>& on_progress) {
  std::atomic<bool> interrupt{false};
  options.interrupt = &interrupt;
  std::exception_ptr callback_error;
  if (on_progress) {
    options.on_progress = [&](const SolveProgress& progress) {
      const py::gil_scoped_acquire gil;
      try {
        (*on_progress)(progress.phase, progress.cost, progress.lower_bound, progress.seconds);
      } catch (...) {
        callback_error = std::current_exception();
        interrupt = true;
      }
    };
  }
  Answer answer;
  {
    const py::gil_scoped_release no_gil;
    auto pending = std::async(std::launch::async, [&] { return solve(problem, options); });
    while (pending.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) {
        PyErr_Clear();
        interrupt = true;
      }
    }
    answer = pending.get();
  }
  if (callback_error) std::rethrow_exception(callback_error);
  return toDict(problem, answer);
}

SolveOptions makeOptions(double time_limit_s, double relative_gap) {
  SolveOptions options;
  options.time_limit_s = time_limit_s;
  options.relative_gap = relative_gap;
  return options;
}

}  // namespace

void bindSolve(py::module_& module) {
  module.def(
      "solve_problem_file",
      [](const std::string& path, double time_limit_s, double relative_gap,
         const std::optional<py::function>& on_progress) {
        std::optional<Problem> problem;
        {
          const py::gil_scoped_release no_gil;
          problem = readContestProblem(path);
        }
        return solveInterruptibly(*problem, makeOptions(time_limit_s, relative_gap), on_progress);
      },
      py::arg("path"), py::kw_only(), py::arg("time_limit_s"), py::arg("relative_gap") = 0.0,
      py::arg("on_progress") = py::none(),
      "Solve a problem file in the contest format (.json or .json.gz).");
  module.def(
      "solve_problem",
      [](const std::string& name, const Integers& intervals,
         const std::vector<Integers>& node_costs, const std::vector<Integers>& usages,
         const Integers& edge_nodes, const std::vector<Integers>& edge_costs,
         std::optional<int64_t> usage_limit, double time_limit_s, double relative_gap,
         const std::optional<py::function>& on_progress) {
        const Problem problem =
            buildProblem(name, intervals, node_costs, usages, edge_nodes, edge_costs, usage_limit);
        return solveInterruptibly(problem, makeOptions(time_limit_s, relative_gap), on_progress);
      },
      py::kw_only(), py::arg("name"), py::arg("intervals"), py::arg("node_costs"),
      py::arg("usages"), py::arg("edge_nodes"), py::arg("edge_costs"), py::arg("usage_limit"),
      py::arg("time_limit_s"), py::arg("relative_gap") = 0.0, py::arg("on_progress") = py::none(),
      "Solve a problem given as int64 arrays in the layout of the contest format.");
}

}  // namespace shardwright
