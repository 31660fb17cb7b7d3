// The parts of the Python module `_core`. Each has its own file in this folder and one line in
// module.cpp.

#pragma once

#include <pybind11/pybind11.h>

namespace shardwright {

struct LocalArg;

// None, bool, int, float, str, LocalRef, RankInt or a list of these.
pybind11::object localArgToPython(const LocalArg& arg);

// Build facts (`build_info`) and the error probe used by the tests (`raise_error`).
void bindBase(pybind11::module_& module);
// Clusters, device meshes and the price of collectives.
void bindMesh(pybind11::module_& module);
// Placements, specs and conversions between specs.
void bindReshard(pybind11::module_& module);
// Submeshes, and the way of a value from one stage's mesh to another's.
void bindTransfer(pybind11::module_& module);
// Emitted programs.
void bindProgram(pybind11::module_& module);

// The intra-operator solver on problem files and arrays (`solve_problem_file`, `solve_problem`).
void bindSolve(pybind11::module_& module);
// The op table of a step: ValueRef, Graph.
void bindGraph(pybind11::module_& module);
// RuleRegistry, ShardedGraph with its rules, atoms and strategies as plain tables.
void bindSharding(pybind11::module_& module);
// Steps cut over time into microbatches.
void bindMicrobatches(pybind11::module_& module);
// Plans: the search over a whole step, its result and the certificate.
void bindPlan(pybind11::module_& module);
// Pipeline schedules, their actions and the check that runs them.
void bindSchedule(pybind11::module_& module);
// Layer clustering (`cluster_layers`).
void bindLayers(pybind11::module_& module);
// Graphs and cost tables of layers (`LayerGraphs`, `layer_tables`).
void bindLayerCosts(pybind11::module_& module);
// When everything of a schedule happens (`simulate_schedule`).
void bindSimulator(pybind11::module_& module);
// The stage search on tables (`search_stages`).
void bindStages(pybind11::module_& module);
// The search for pipeline stages of a whole step (`search_pipeline`).
void bindPipeline(pybind11::module_& module);

}  // namespace shardwright
