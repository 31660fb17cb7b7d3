#include <torch/version.h>

#include "bindings/runtime/bind.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::dict buildInfo() {
  py::dict info;
  info["torch_version"] = TORCH_VERSION;
#ifdef SHARDWRIGHT_WITH_CUDA
  info["cuda"] = true;
#else
  info["cuda"] = false;
#endif
  return info;
}

}  // namespace

void bindBuildInfo(py::module_& module) {
  module.def("build_info", &buildInfo, "What this module was built with: torch, CUDA.");
}

}  // namespace shardwright
