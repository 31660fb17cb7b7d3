// The emitted program, read only: instructions over local shards as Python lowering reads them.

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "plan/program_table.h"
#include "sharding/conversion_points.h"

namespace py = pybind11;

namespace shardwright {

py::object localArgToPython(const LocalArg& arg) {
  return std::visit(
      [](const auto& value) -> py::object {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::monostate>) {
          return py::none();
        } else if constexpr (std::is_same_v<Value, LocalArgList>) {
          py::list elements;
          for (const LocalArg& element : value) {
            elements.append(localArgToPython(element));
          }
          return elements;
        } else {
          return py::cast(value);
        }
      },
      arg.value);
}

namespace {

const char* kindName(const Instruction& instruction) {
  switch (instruction.kind) {
    case Instruction::Kind::kInput:
      return "input";
    case Instruction::Kind::kCompute:
      return "compute";
    case Instruction::Kind::kReshard:
      return "reshard";
  }
  return "compute";
}

py::list argsToPython(const Instruction& instruction) {
  py::list args;
  for (const LocalArg& arg : instruction.args) {
    args.append(localArgToPython(arg));
  }
  return args;
}

py::dict kwargsToPython(const Instruction& instruction) {
  py::dict kwargs;
  for (const auto& [name, arg] : instruction.kwargs) {
    kwargs[py::str(name)] = localArgToPython(arg);
  }
  return kwargs;
}

void bindValues(py::module_& module) {
  py::class_<LocalRef>(module, "LocalRef", "Output `output` of instruction `instruction`.")
      .def_readonly("instruction", &LocalRef::instruction)
      .def_readonly("output", &LocalRef::output)
      .def("__repr__", [](const LocalRef& ref) {
        return "%" + std::to_string(ref.instruction) +
               (ref.output == 0 ? "" : "." + std::to_string(ref.output));
      });
  py::class_<RankInt>(module, "RankInt",
                      "An integer of the rank: base + sum of per_axis[a] * coordinate[a].")
      .def_readonly("base", &RankInt::base)
      .def_readonly("per_axis", &RankInt::per_axis)
      .def(
          "at",
          [](const RankInt& value, const std::vector<int>& coordinate) {
            std::int64_t result = value.base;
            for (std::size_t axis = 0; axis < coordinate.size() && axis < value.per_axis.size();
                 ++axis) {
              result += value.per_axis[axis] * coordinate[axis];
            }
            return result;
          },
          py::arg("coordinate"), "Value on the rank at this mesh coordinate.");
  py::class_<LocalTensor>(module, "LocalTensor", "One value on one rank.")
      .def_readonly("local_shape", &LocalTensor::local_shape)
      .def_readonly("global_shape", &LocalTensor::global_shape)
      .def_property_readonly("dtype", [](const LocalTensor& t) { return dtypeName(t.dtype); })
      .def_readonly("atoms", &LocalTensor::atoms)
      .def_readonly("spec", &LocalTensor::spec);
}

// (value, group, [(node, operand), ...], [result, ...]) per point.
py::list conversionPointsToPython(const ShardedGraph& graph) {
  py::list points;
  for (const ConversionPoint& point : conversionPoints(graph)) {
    py::list operands;
    py::list results;
    for (const ValueUse& use : point.uses) {
      if (use.isResult()) {
        results.append(use.result);
      } else {
        operands.append(py::make_tuple(use.node.index(), use.operand));
      }
    }
    points.append(py::make_tuple(point.value, point.group, operands, results));
  }
  return points;
}

}  // namespace

void bindProgram(py::module_& module) {
  bindValues(module);
  py::class_<Instruction>(module, "Instruction", "One instruction of a program.")
      .def_property_readonly("kind", &kindName)
      .def_property_readonly("node", [](const Instruction& i) { return i.node.index(); })
      .def_property_readonly("phase", [](const Instruction& i) { return phaseName(i.phase); })
      .def_readonly("stage", &Instruction::stage)
      .def_readonly("op", &Instruction::op)
      .def_property_readonly("args", &argsToPython)
      .def_property_readonly("kwargs", &kwargsToPython)
      .def_property_readonly("step",
                             [](const Instruction& i) -> std::optional<ReshardStep> {
                               return i.kind == Instruction::Kind::kReshard ? std::optional(i.step)
                                                                            : std::nullopt;
                             })
      .def_readonly("source", &Instruction::source)
      .def_readonly("dim", &Instruction::dim)
      .def_readonly("outer", &Instruction::outer)
      .def_readonly("to_dim", &Instruction::to_dim)
      .def_readonly("to_outer", &Instruction::to_outer)
      .def_readonly("outputs", &Instruction::outputs);
  py::class_<ProgramOutput>(module, "ProgramOutput", "A result of the step.")
      .def_readonly("value", &ProgramOutput::value)
      .def_readonly("updates", &ProgramOutput::updates);
  py::class_<ProgramTable>(module, "ProgramTable", "A plan as instructions over local shards.")
      .def_readonly("mesh_shape", &ProgramTable::mesh_shape)
      .def_readonly("instructions", &ProgramTable::instructions)
      .def_readonly("outputs", &ProgramTable::outputs);
  module.def("conversion_points", &conversionPointsToPython, py::arg("graph"),
             "Where values with several uses are held: (value, group, uses by nodes as (node, "
             "operand), uses as results), ordered by value, then group.");
  module.def(
      "emit_program",
      [](const ShardedGraph& graph, const Plan& plan) {
        const py::gil_scoped_release release;
        if (plan.stages.empty()) {
          throw Error(ErrorKind::kPlan, "E311", "the plan has no stage.",
                      {.advice = "plan this step again"});
        }
        return emitProgram(graph, plan, DeviceMesh(plan.stages[0].mesh_shape, plan.cluster));
      },
      py::arg("graph"), py::arg("plan"),
      "The program of a plan, on the mesh and cluster it was made for. Raises PlanError E311.");
}

}  // namespace shardwright
