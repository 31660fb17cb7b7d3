// Python module shardwright._runtime: collectives and transfers on torch's process groups.

#include <torch/extension.h>

#include "bindings/error_translation.h"
#include "bindings/runtime/bind.h"

PYBIND11_MODULE(_runtime, module) {
  module.doc() = "Runtime of shardwright: collectives, reshards, stage transfers.";
  shardwright::registerErrorTranslation();
  shardwright::bindBuildInfo(module);
  shardwright::bindLedger(module);
  shardwright::bindStageTransfer(module);
}
