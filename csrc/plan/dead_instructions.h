// Leaves out of a program what no output needs.
#pragma once

#include "plan/program_table.h"

namespace shardwright {

// Removes instructions that no output reads, directly or through others, and renumbers the rest.
// Inputs stay, and so does the order.
void dropDeadInstructions(ProgramTable& table);

}  // namespace shardwright
