// Python module shardwright._core: the planner.

#include <pybind11/pybind11.h>

#include "bindings/core/bind.h"
#include "bindings/error_translation.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Planner of shardwright: rules, costs, search, plans.";
  shardwright::registerErrorTranslation();
  shardwright::bindBase(module);
  shardwright::bindMesh(module);
  shardwright::bindReshard(module);
  shardwright::bindTransfer(module);
  shardwright::bindSolve(module);
  shardwright::bindGraph(module);
  shardwright::bindSharding(module);
  shardwright::bindProgram(module);
  shardwright::bindMicrobatches(module);
  shardwright::bindPlan(module);
  shardwright::bindSchedule(module);
  shardwright::bindLayers(module);
  shardwright::bindLayerCosts(module);
  shardwright::bindSimulator(module);
  shardwright::bindStages(module);
  shardwright::bindPipeline(module);
}
