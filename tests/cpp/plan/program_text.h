// A program as text, one line per instruction, for tests that compare whole programs.
#pragma once

#include <string>

#include "plan/program_table.h"

namespace shardwright {

inline std::string argText(const LocalArg& arg) {
  return std::visit(
      [](const auto& value) -> std::string {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::monostate>) {
          return "None";
        } else if constexpr (std::is_same_v<Value, bool>) {
          return value ? "True" : "False";
        } else if constexpr (std::is_same_v<Value, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<Value, LocalRef>) {
          return "%" + std::to_string(value.instruction) +
                 (value.output == 0 ? "" : "." + std::to_string(value.output));
        } else if constexpr (std::is_same_v<Value, RankInt>) {
          std::string text = std::to_string(value.base);
          for (std::size_t axis = 0; axis < value.per_axis.size(); ++axis) {
            if (value.per_axis[axis] != 0) {
              text += "+" + std::to_string(value.per_axis[axis]) + "*c" + std::to_string(axis);
            }
          }
          return text;
        } else if constexpr (std::is_same_v<Value, LocalArgList>) {
          std::string text;
          for (const LocalArg& element : value) {
            text += (text.empty() ? "" : ", ") + argText(element);
          }
          return "[" + text + "]";
        } else {
          return std::to_string(value);
        }
      },
      arg.value);
}

// "%3 = aten.mm.default(%0, %2) : R S0 P1" and "%4 = all_reduce@1(%3) : R S0"; "<3> = %7" tells
// that input instruction 3 takes the value, "return %5" that the user gets it.
inline std::string programText(const ProgramTable& table) {
  std::string text;
  for (std::size_t index = 0; index < table.instructions.size(); ++index) {
    const Instruction& instruction = table.instructions[index];
    text += "%" + std::to_string(index) + " = ";
    if (instruction.kind == Instruction::Kind::kInput) {
      text += "input";
    } else if (instruction.kind == Instruction::Kind::kReshard) {
      text += std::string(stepKindName(instruction.step.kind)) + "@" +
              std::to_string(instruction.step.axis) + "(" + argText({instruction.source});
      if (instruction.dim >= 0) {
        text += ", dim " + std::to_string(instruction.dim) + " outer " +
                std::to_string(instruction.outer);
      }
      if (instruction.to_dim >= 0) {
        text += ", to dim " + std::to_string(instruction.to_dim) + " outer " +
                std::to_string(instruction.to_outer);
      }
      text += ")";
    } else {
      std::string args;
      for (const LocalArg& arg : instruction.args) {
        args += (args.empty() ? "" : ", ") + argText(arg);
      }
      for (const auto& [name, arg] : instruction.kwargs) {
        args += (args.empty() ? "" : ", ") + name + "=" + argText(arg);
      }
      text += instruction.op + "(" + args + ")";
    }
    for (std::size_t output = 0; output < instruction.outputs.size(); ++output) {
      const LocalTensor& tensor = instruction.outputs[output];
      text += (output == 0 ? " : " : ", ") + printSpec(tensor.atoms, tensor.spec);
    }
    text += "\n";
  }
  for (const ProgramOutput& output : table.outputs) {
    text += output.updates < 0 ? "return " : "<" + std::to_string(output.updates) + "> = ";
    text += argText({output.value}) + "\n";
  }
  return text;
}

}  // namespace shardwright
