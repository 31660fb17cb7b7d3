"""Runs the sections of a program one after the other and drops values nobody reads any more.

The sections before the update run once per microbatch, with values of its own; sums over
microbatches are handed from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardwright.lowering.program import Program
from shardwright.lowering.table import LocalRef

Value = TypeVar("Value")


@dataclass(frozen=True)
class SectionRunner(Generic[Value]):
    """What running a program needs to know of its values.

    Attributes:
        run: runs section number i on the values it takes (a list it may empty), returns the values
            it gives.
        zeros: a sum over microbatches before the first.
        join: concatenates the parts of a result along a dim.
    """

    run: Callable[[int, list[Value]], Sequence[Value]]
    zeros: Callable[[LocalRef], Value]
    join: Callable[[Sequence[Value], int], Value]


def run_sections(
    program: Program, inputs: Sequence[Mapping[LocalRef, Value]], runner: SectionRunner[Value]
) -> list[Value]:
    """One step.

    Args:
        program: what to run.
        inputs: per microbatch the value of every input instruction.
        runner: what a section does.

    Returns:
        The outputs of kind "result", in order.
    """
    results = [output.value for output in program.table.outputs if output.updates < 0]
    kept = set(results)
    last_reader: dict[LocalRef, int] = {}
    for number, section in enumerate(program.sections):
        for ref in section.takes:
            last_reader[ref] = number
    totals: dict[LocalRef, Value] = {}
    parts: dict[LocalRef, list[Value]] = {ref: [] for ref in program.crossing.joined}
    made: dict[LocalRef, Value] = {}

    def run_one(number: int, given: Mapping[LocalRef, Value]) -> None:
        section = program.sections[number]
        values = []
        for ref in section.takes:
            if ref in given:
                values.append(given[ref])
            elif last_reader[ref] == number and ref not in kept:
                values.append(made.pop(ref))
            else:
                values.append(made[ref])
        if number < program.num_repeated:
            values += [
                totals.pop(r) if r in totals else runner.zeros(r) for r in section.accumulates
            ]
        made.update(zip(section.gives, runner.run(number, values), strict=True))
        if number < program.num_repeated:
            totals.update((ref, made.pop(ref)) for ref in section.accumulates)

    for given in inputs:
        made.clear()
        for number in range(program.num_repeated):
            run_one(number, given)
        for ref, found in parts.items():
            found.append(made.pop(ref))
    made.update(totals)
    totals.clear()
    made.update(
        (ref, runner.join(found, program.crossing.joined[ref])) for ref, found in parts.items()
    )
    for number in range(program.num_repeated, len(program.sections)):
        run_one(number, inputs[-1])
    return [inputs[-1][ref] if ref in inputs[-1] else made[ref] for ref in results]
