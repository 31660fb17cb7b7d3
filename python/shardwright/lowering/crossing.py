"""Which values leave the microbatches of a program: sums, joined results, values for other stages.

A graph's `shardwright.accumulate` runs in the update and gives the sum of what its operand was in
every microbatch. The runtime adds up the value that enters the update for it, which is the same
because everything between, conversions of pending sums and views, is linear.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import InternalError
from shardwright.lowering.table import Instruction, LocalRef, ProgramTable

_ACCUMULATE = "shardwright.accumulate.default"
_COLLECT = "shardwright.collect.default"
# Marks what another stage needs; the marked value is the only operand.
SEND = "shardwright.send.default"
_VIEWS = (
    "aten.reshape.default",
    "aten.permute.default",
    "aten.transpose.int",
    "aten.alias.default",
)


@dataclass(frozen=True)
class Crossing:
    """What leaves the microbatches and the stage.

    Attributes:
        accumulated: values that are added up, each within its microbatch where it is made.
        joined: values of which the parts are concatenated -> along which dim.
        sent: values for other stages, by the name of the node that marks them.
    """

    accumulated: frozenset[LocalRef]
    joined: dict[LocalRef, int]
    sent: dict[str, LocalRef]


def find_crossing(table: ProgramTable) -> Crossing:
    """What leaves the microbatches of a program.

    Raises:
        InternalError: E943 where what lies between a value of the microbatches and its sum is not
            linear, or a value that is added up is also used as it is.
    """
    accumulated = {
        _entering(table, index)
        for index, instruction in enumerate(table.instructions)
        if instruction.op == _ACCUMULATE
    }
    for index, instruction in enumerate(table.instructions):
        if instruction.phase == "update" and not _passes(instruction):
            for ref in instruction.sources():
                if ref in accumulated:
                    _refuse(index, instruction, "reads the sum of a value as the value")
    joined = {}
    sent = {}
    for index, instruction in enumerate(table.instructions):
        if instruction.op == _COLLECT:
            dim = instruction.args[1]
            assert isinstance(dim, int)
            joined[LocalRef(index)] = dim
        elif instruction.op == SEND:
            (sent[instruction.node],) = instruction.sources()
    return Crossing(frozenset(accumulated), joined, sent)


def _entering(table: ProgramTable, index: int) -> LocalRef:
    """The value of the microbatches that an accumulate instruction is about."""
    (ref,) = table.instructions[index].sources()
    while table.instructions[ref.instruction].phase == "update":
        instruction = table.instructions[ref.instruction]
        if instruction.kind == "input" or not _passes(instruction):
            _refuse(index, instruction, "adds up what no microbatch makes")
        (ref,) = instruction.sources()
    if table.instructions[ref.instruction].kind == "input":
        _refuse(index, table.instructions[ref.instruction], "adds up an input")
    return ref


def _passes(instruction: Instruction) -> bool:
    """Whether it gives the sum of its results for the sum of its operands."""
    if instruction.reshard is not None:
        return instruction.reshard.kind != "all_reduce" or instruction.reshard.reduce == "sum"
    return instruction.op in _VIEWS or instruction.op == _ACCUMULATE


def _refuse(index: int, instruction: Instruction, reason: str) -> None:
    raise InternalError(
        f"a program in microbatches cannot run: it {reason}.",
        code="E943",
        values=[f"instruction {index}: {instruction.op or instruction.kind}, {instruction.node}"],
        advice="report this with the plan",
    )
