"""Runs the sections of a program one after the other and drops values nobody reads any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from shardwright.lowering.program import Program
from shardwright.lowering.table import LocalRef

Value = TypeVar("Value")


def run_sections(
    program: Program,
    inputs: Mapping[LocalRef, Value],
    run_one: Callable[[int, list[Value]], Sequence[Value]],
) -> list[Value]:
    """One step.

    Args:
        program: what to run.
        inputs: value of every input instruction.
        run_one: runs section number i on the values it takes (a list it may empty), returns the
            values it gives.

    Returns:
        The outputs of kind "result", in order.
    """
    results = [output.value for output in program.table.outputs if output.updates < 0]
    kept = set(results)
    last_reader: dict[LocalRef, int] = {}
    for number, section in enumerate(program.sections):
        for ref in section.takes:
            last_reader[ref] = number
    made: dict[LocalRef, Value] = {}
    for number, section in enumerate(program.sections):
        values = []
        for ref in section.takes:
            if ref in inputs:
                values.append(inputs[ref])
            elif last_reader[ref] == number and ref not in kept:
                values.append(made.pop(ref))
            else:
                values.append(made[ref])
        made.update(zip(section.gives, run_one(number, values), strict=True))
    return [inputs[ref] if ref in inputs else made[ref] for ref in results]
