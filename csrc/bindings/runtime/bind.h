// The parts of the Python module `_runtime`. Each has its own file in this folder and one line in
// module.cpp. Operators are not bound here: they are registered with TORCH_LIBRARY(shardwright,
// ...) in csrc/runtime.

#pragma once

#include <torch/extension.h>

namespace shardwright {

// Build facts: `build_info`.
void bindBuildInfo(pybind11::module_& module);
// The step ledger: `begin_step`, `ledger_entries`, `last_ledger_entry`, `take_failure`.
void bindLedger(pybind11::module_& module);
// Transfers between stages: `StageTransfer`, `PendingTransfer`.
void bindStageTransfer(pybind11::module_& module);

}  // namespace shardwright
