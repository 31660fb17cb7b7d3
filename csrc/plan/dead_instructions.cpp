#include "plan/dead_instructions.h"

#include <utility>
#include <vector>

namespace shardwright {

namespace {

template <typename Visit>
void visitRefs(LocalArg& arg, const Visit& visit) {
  if (auto* ref = std::get_if<LocalRef>(&arg.value)) {
    visit(*ref);
  } else if (auto* list = std::get_if<LocalArgList>(&arg.value)) {
    for (LocalArg& element : *list) {
      visitRefs(element, visit);
    }
  }
}

template <typename Visit>
void visitSources(Instruction& instruction, const Visit& visit) {
  if (instruction.kind == Instruction::Kind::kReshard) {
    visit(instruction.source);
  }
  for (LocalArg& arg : instruction.args) {
    visitRefs(arg, visit);
  }
  for (auto& [name, arg] : instruction.kwargs) {
    visitRefs(arg, visit);
  }
}

}  // namespace

void dropDeadInstructions(ProgramTable& table) {
  const std::size_t count = table.instructions.size();
  std::vector<bool> alive(count, false);
  for (const ProgramOutput& output : table.outputs) {
    alive[static_cast<std::size_t>(output.value.instruction)] = true;
  }
  for (std::size_t index = count; index-- > 0;) {
    if (table.instructions[index].kind == Instruction::Kind::kInput) {
      alive[index] = true;
    } else if (alive[index]) {
      visitSources(table.instructions[index], [&](const LocalRef& ref) {
        alive[static_cast<std::size_t>(ref.instruction)] = true;
      });
    }
  }
  std::vector<int> number(count, -1);
  std::vector<Instruction> kept;
  const auto renumber = [&](LocalRef& ref) {
    ref.instruction = number[static_cast<std::size_t>(ref.instruction)];
  };
  for (std::size_t index = 0; index < count; ++index) {
    if (alive[index]) {
      number[index] = static_cast<int>(kept.size());
      visitSources(table.instructions[index], renumber);
      kept.push_back(std::move(table.instructions[index]));
    }
  }
  table.instructions = std::move(kept);
  for (ProgramOutput& output : table.outputs) {
    renumber(output.value);
    if (output.updates >= 0) {
      output.updates = number[static_cast<std::size_t>(output.updates)];
    }
  }
}

}  // namespace shardwright
