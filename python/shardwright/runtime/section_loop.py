"""Runs the sections of a program and drops values nobody reads any more.

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


class StepRun(Generic[Value]):
    """One step of a program in the making: microbatches in any order, then the update.

    Args:
        program: what to run.
        inputs: per microbatch the value of every input instruction; those that arrive later are
            added with `receive`.
        runner: what a section does.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Mapping[LocalRef, Value]],
        runner: SectionRunner[Value],
    ) -> None:
        self._program = program
        self._runner = runner
        self._inputs = [dict(given) for given in inputs]
        self._made: list[dict[LocalRef, Value]] = [{} for _ in inputs]
        self._update: dict[LocalRef, Value] = {}
        self._totals: dict[LocalRef, Value] = {}
        self._parts: dict[LocalRef, dict[int, Value]] = {r: {} for r in program.crossing.joined}
        self._results = [output.value for output in program.table.outputs if output.updates < 0]
        sent = program.crossing.sent.items()
        self._kept = {
            *self._results,
            *(ref for name, ref in sent if program.graph_node(name).meta["phase"] == "update"),
        }
        self._last_reader: dict[LocalRef, int] = {}
        for number, section in enumerate(program.sections):
            for ref in section.takes:
                self._last_reader[ref] = number

    def receive(self, ref: LocalRef, value: Value, microbatch: int | None) -> None:
        """Gives an input its value, for one microbatch or for the rest of the step (None)."""
        for given in self._inputs if microbatch is None else [self._inputs[microbatch]]:
            given[ref] = value

    def value(self, ref: LocalRef) -> Value:
        """A stored input or a value of the update, for another stage."""
        given = self._inputs[-1]
        return given[ref] if ref in given else self._update[ref]

    def hand_over(self, ref: LocalRef, microbatch: int) -> Value:
        """A microbatch's value for another stage; kept here only if a later section reads it."""
        given, made = self._inputs[microbatch], self._made[microbatch]
        if ref in given:
            return given[ref]
        return made[ref] if ref in self._last_reader or ref in self._kept else made.pop(ref)

    def _held(self, microbatch: int | None) -> dict[LocalRef, Value]:
        return self._update if microbatch is None else self._made[microbatch]

    def run(self, number: int, microbatch: int | None) -> None:
        """Section `number`, in a microbatch or, where it runs once per step, None."""
        section = self._program.sections[number]
        made = self._held(microbatch)
        given = self._inputs[-1 if microbatch is None else microbatch]
        values = []
        for ref in section.takes:
            if ref in given:
                values.append(given[ref])
            elif self._last_reader[ref] == number and ref not in self._kept:
                values.append(made.pop(ref))
            else:
                values.append(made[ref])
        sums = section.accumulates if microbatch is not None else ()
        for ref in sums:
            total = self._totals.pop(ref) if ref in self._totals else self._runner.zeros(ref)
            values.append(total)
        made.update(zip(section.gives, self._runner.run(number, values), strict=True))
        for ref in sums:
            self._totals[ref] = made.pop(ref)

    def leave(self, microbatch: int) -> None:
        """Forward and backward of a microbatch are done: drops what only they read."""
        made, given = self._made[microbatch], self._inputs[microbatch]
        for ref, parts in self._parts.items():
            parts[microbatch] = made.pop(ref)
        first = self._program.num_repeated
        self._update = {
            ref: value
            for ref, value in made.items()
            if self._last_reader.get(ref, -1) >= first or ref in self._kept
        }
        made.clear()
        if given is not self._inputs[-1]:
            given.clear()

    def finish_microbatches(self) -> None:
        """All microbatches are done: what the update reads of them is there."""
        self._update.update(self._totals)
        self._totals.clear()
        for ref, parts in self._parts.items():
            dim = self._program.crossing.joined[ref]
            self._update[ref] = self._runner.join([parts[n] for n in sorted(parts)], dim)
        self._parts.clear()

    def results(self) -> list[Value]:
        """The outputs of kind "result", in order."""
        given = self._inputs[-1]
        return [given[ref] if ref in given else self._update[ref] for ref in self._results]


def run_sections(
    program: Program, inputs: Sequence[Mapping[LocalRef, Value]], runner: SectionRunner[Value]
) -> list[Value]:
    """One step, microbatch after microbatch.

    Args:
        program: what to run.
        inputs: per microbatch the value of every input instruction.
        runner: what a section does.

    Returns:
        The outputs of kind "result", in order.
    """
    step = StepRun(program, inputs, runner)
    if program.num_repeated:
        for microbatch in range(len(inputs)):
            for number in range(program.num_repeated):
                step.run(number, microbatch)
            step.leave(microbatch)
        step.finish_microbatches()
    for number in range(program.num_repeated, len(program.sections)):
        step.run(number, None)
    return step.results()
