// Placements, atoms and conversions. A spec is a list of Placement, one per mesh axis.

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/core/bind.h"
#include "sharding/reshard.h"

namespace py = pybind11;

namespace shardwright {

namespace {

ReduceOp reduceFromName(const std::string& name) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    if (name == reduceOpName(op)) {
      return op;
    }
  }
  throw py::value_error("no pending reduction is called " + name);
}

const char* kindLetter(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      return "R";
    case Placement::Kind::kShard:
      return "S";
    case Placement::Kind::kPartial:
      return "P";
  }
  return "R";
}

std::string placementText(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      return "Placement.replicate()";
    case Placement::Kind::kShard:
      return "Placement.shard(" + std::to_string(placement.atom) + ", " +
             std::to_string(placement.order) + ")";
    case Placement::Kind::kPartial:
      return "Placement.partial('" + std::string(reduceOpName(placement.reduce)) + "')";
  }
  return "";
}

void bindPlacements(py::module_& module) {
  py::class_<Placement>(module, "Placement", "What one mesh axis does to a tensor.")
      .def_static("replicate", &Placement::replicate)
      .def_static("shard", &Placement::shard, py::arg("atom"), py::arg("order") = 0)
      .def_static(
          "partial", [](const std::string& op) { return Placement::partial(reduceFromName(op)); },
          py::arg("reduce") = "sum")
      .def_property_readonly("kind", &kindLetter)
      .def_property_readonly("atom", [](const Placement& p) { return static_cast<int>(p.atom); })
      .def_property_readonly("order", [](const Placement& p) { return static_cast<int>(p.order); })
      .def_property_readonly("reduce", [](const Placement& p) { return reduceOpName(p.reduce); })
      .def(py::self == py::self)
      .def("__hash__",
           [](const Placement& p) {
             return py::hash(py::make_tuple(static_cast<int>(p.kind), static_cast<int>(p.atom),
                                            static_cast<int>(p.order), static_cast<int>(p.reduce)));
           })
      .def("__repr__", &placementText);
  py::class_<TensorAtoms>(module, "TensorAtoms", "Atom sizes, and the atoms of each dim.")
      .def(py::init([](std::vector<std::int64_t> sizes, std::vector<std::vector<int>> dims) {
             for (const std::vector<int>& dim : dims) {
               for (const int atom : dim) {
                 if (atom < 0 || static_cast<std::size_t>(atom) >= sizes.size()) {
                   throw py::value_error("dims name an atom that has no size");
                 }
               }
             }
             return TensorAtoms{std::move(sizes), std::move(dims)};
           }),
           py::arg("sizes"), py::arg("dims"))
      .def_readonly("sizes", &TensorAtoms::sizes)
      .def_readonly("dims", &TensorAtoms::dims)
      .def(py::self == py::self);
  module.def("print_spec", &printSpec, py::arg("atoms"), py::arg("spec"),
             "Text of a spec, such as \"S0 R\".");
  module.def("parse_spec", &parseSpec, py::arg("atoms"), py::arg("text"), py::arg("num_axes"),
             "The spec that print_spec writes as `text`. Raises PlanError E310.");
  module.def("is_valid_spec", &isValid, py::arg("atoms"), py::arg("spec"), py::arg("mesh_shape"),
             "Whether the spec has even shards and one kind of pending reduction.");
  module.def(
      "local_shape",
      [](const TensorAtoms& atoms, const ShardingSpec& spec, const std::vector<int>& mesh_shape) {
        if (!isValid(atoms, spec, mesh_shape)) {
          throw py::value_error("the spec is not valid for these atoms on this mesh");
        }
        return localShape(atoms, spec, mesh_shape);
      },
      py::arg("atoms"), py::arg("spec"), py::arg("mesh_shape"),
      "Shape of one rank's shard under a valid spec.");
}

}  // namespace

void bindReshard(py::module_& module) {
  bindPlacements(module);
  py::class_<ReshardStep>(module, "ReshardStep", "One collective, slice or mask of a conversion.")
      .def_property_readonly("kind", [](const ReshardStep& s) { return stepKindName(s.kind); })
      .def_readonly("axis", &ReshardStep::axis)
      .def_readonly("atom", &ReshardStep::atom)
      .def_readonly("to_atom", &ReshardStep::to_atom)
      .def_property_readonly("reduce", [](const ReshardStep& s) { return reduceOpName(s.reduce); })
      .def_property_readonly("reduce_dtype",
                             [](const ReshardStep& s) { return dtypeName(s.reduce_dtype); })
      .def_readonly("bytes", &ReshardStep::bytes)
      .def_readonly("cost_us", &ReshardStep::cost_us)
      .def_readonly("after", &ReshardStep::after)
      .def("__repr__", [](const ReshardStep& s) {
        return "<" + std::string(stepKindName(s.kind)) + " axis " + std::to_string(s.axis) + ", " +
               std::to_string(s.bytes) + " bytes>";
      });
  module.def(
      "plan_reshard",
      [](const TensorAtoms& atoms, const std::string& dtype, const ShardingSpec& from,
         const ShardingSpec& to,
         const DeviceMesh& mesh) { return planReshard(atoms, parseDType(dtype), from, to, mesh); },
      py::arg("atoms"), py::arg("dtype"), py::arg("source"), py::arg("target"), py::arg("mesh"),
      "Cheapest steps from one spec to another; None if there is no way.");
}

}  // namespace shardwright
