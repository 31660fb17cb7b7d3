#include <string>
#include <vector>

#include "bindings/runtime/bind.h"
#include "runtime/ledger.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::dict entryDict(const LedgerEntry& entry) {
  py::dict result;
  result["step"] = entry.step;
  result["ordinal"] = entry.ordinal;
  result["op"] = entry.op;
  result["group"] = entry.group;
  result["bytes"] = entry.bytes;
  result["context"] = entry.context;
  result["done"] = entry.done;
  return result;
}

py::object takeFailure() {
  const std::optional<CollectiveFailure> failure = Ledger::process().takeFailure();
  if (!failure) {
    return py::none();
  }
  py::dict result = entryDict(failure->entry);
  result["reason"] = failure->reason;
  result["peer"] = failure->peer;
  return result;
}

py::list ledgerEntries(std::size_t limit) {
  py::list result;
  for (const LedgerEntry& entry : Ledger::process().entries(limit)) {
    result.append(entryDict(entry));
  }
  return result;
}

py::object lastEntry() {
  const std::optional<LedgerEntry> entry = Ledger::process().last();
  return entry ? py::object(entryDict(*entry)) : py::none();
}

}  // namespace

void bindLedger(py::module_& module) {
  module.def(
      "begin_step", [](std::int64_t step) { Ledger::process().beginStep(step); }, py::arg("step"),
      "Start a step of the ledger; its next collective has ordinal 0.");
  module.def("ledger_entries", &ledgerEntries, py::arg("limit") = 64,
             "The newest collectives of this process, oldest first.");
  module.def("last_ledger_entry", &lastEntry, "The newest collective, or None.");
  module.def("take_failure", &takeFailure,
             "The collective that failed since the last call, with the reason, or None.");
}

}  // namespace shardwright
