#include <Cbc_C_Interface.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::dict buildInfo() {
  py::dict info;
  info["cbc_version"] = std::string(Cbc_getVersion());
#ifdef SHARDWRIGHT_CBC_FROM_CBCBOX
  info["cbc_source"] = "cbcbox";
#else
  info["cbc_source"] = "system";
#endif
#ifdef SHARDWRIGHT_HAVE_ZLIB
  info["zlib"] = true;
#else
  info["zlib"] = false;
#endif
  info["compiler"] = __VERSION__;
  return info;
}

ErrorKind kindFromName(const std::string& name) {
  for (auto kind = ErrorKind::kCapture; kind < ErrorKind::kInternal;
       kind = static_cast<ErrorKind>(static_cast<int>(kind) + 1)) {
    if (errorKindName(kind) == name) {
      return kind;
    }
  }
  return ErrorKind::kInternal;
}

[[noreturn]] void raiseError(const std::string& kind_name, std::string code, std::string summary,
                             std::vector<std::string> values, std::string where,
                             std::string advice) {
  throw Error(
      kindFromName(kind_name), std::move(code), std::move(summary),
      {.values = std::move(values), .where = std::move(where), .advice = std::move(advice)});
}

}  // namespace

void bindBase(py::module_& module) {
  module.def("build_info", &buildInfo, "What this module was built with: CBC, zlib, compiler.");
  module.def("raise_error", &raiseError, py::arg("kind"), py::arg("code"), py::arg("summary"),
             py::arg("values"), py::arg("where"), py::arg("advice"),
             "Throw a C++ error of this kind; shows that C++ errors reach Python whole.");
}

}  // namespace shardwright
