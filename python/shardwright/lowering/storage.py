"""Which values share memory with an input, and which may therefore be overwritten.

Parameters, buffers and optimizer state keep their storage from step to step. An update op may
write into it as soon as nobody reads the old value any more; everything else is copied in, as
early as that holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.lowering.table import Instruction, LocalRef, ProgramTable
from shardwright.lowering.targets import Target, in_place_target

# Per output of the update ops the operand whose new value it is; None: it has its own memory.
_WRITTEN_OPERANDS: dict[str, tuple[int | None, ...]] = {
    "shardwright.adam_update.default": (0, 2, 3, 4),
    "shardwright.adam_amsgrad_update.default": (0, 2, 3, 4, 5),
    "shardwright.adam_master_update.default": (None, 0, 2, 3),
    "shardwright.sgd_update.default": (0,),
    "shardwright.sgd_momentum_update.default": (0, 2),
}


@dataclass(frozen=True)
class CopyBack:
    """`value` is copied into the storage of input instruction `target`.

    Attributes:
        after: instruction after which nobody reads the old value any more.
        through_clone: the new value lives in another input's storage, which may be written at the
            same time: it is cloned first.
    """

    target: int
    value: LocalRef
    after: int
    through_clone: bool


@dataclass(frozen=True)
class StoragePlan:
    """What is written in place and what is copied back.

    Attributes:
        in_place: compute instructions run by their in-place form -> the operand (position in the
            arguments) that each output lives in, None for its own memory.
        copies: in the order of their inputs.
        cloned_results: returned values that live in the storage of an updated input.
    """

    in_place: dict[int, tuple[int | None, ...]]
    copies: tuple[CopyBack, ...]
    cloned_results: frozenset[LocalRef]


def plan_storage(table: ProgramTable, targets: Mapping[int, Target]) -> StoragePlan:
    """Decides for every updated input how its new value gets into its storage.

    Args:
        table: the program.
        targets: op of each compute instruction.
    """
    updated = {o.updates: o.value for o in table.outputs if o.updates >= 0}
    owner = _owners(table, targets)
    last_use = _last_uses(table, owner)

    def is_free(ref: object, index: int, output: int) -> bool:
        """Whether instruction `index` may overwrite the value with its output `output`."""
        if not isinstance(ref, LocalRef) or owner[ref] != ref or last_use[ref] > index:
            return False
        is_input = table.instructions[ref.instruction].kind == "input"
        return not is_input or updated.get(ref.instruction) == LocalRef(index, output)

    in_place: dict[int, tuple[int | None, ...]] = {}
    for index, instruction in enumerate(table.instructions):
        operands = _WRITTEN_OPERANDS.get(instruction.op)
        if operands is None or in_place_target(instruction.op) is None:
            continue
        refs = {o: instruction.args[i] for o, i in enumerate(operands) if i is not None}
        sources = instruction.sources()
        distinct = all(sources.count(r) == 1 for r in refs.values() if isinstance(r, LocalRef))
        if distinct and all(is_free(ref, index, output) for output, ref in refs.items()):
            in_place[index] = operands
    copies = []
    for target, value in sorted(updated.items()):
        if value == LocalRef(target) or _written(table, in_place, value) == LocalRef(target):
            continue
        source = owner[value]
        copies.append(
            CopyBack(
                target,
                value,
                after=max(value.instruction, last_use[LocalRef(target)]),
                through_clone=table.instructions[source.instruction].kind == "input",
            )
        )
    shared = {
        output.value
        for output in table.outputs
        if output.updates < 0 and owner[output.value].instruction in updated
    }
    return StoragePlan(in_place, tuple(copies), frozenset(shared))


def _written(
    table: ProgramTable, in_place: Mapping[int, tuple[int | None, ...]], value: LocalRef
) -> object:
    """Operand that holds `value` when its instruction runs in place, else None."""
    operands = in_place.get(value.instruction)
    operand = None if operands is None else operands[value.output]
    return None if operand is None else table.instructions[value.instruction].args[operand]


def _owners(table: ProgramTable, targets: Mapping[int, Target]) -> dict[LocalRef, LocalRef]:
    """Every value -> the value whose memory it may share; itself when it has its own."""
    owner: dict[LocalRef, LocalRef] = {}
    for index, instruction in enumerate(table.instructions):
        source = None
        if instruction.kind == "compute":
            source = _aliased_operand(instruction, targets[index])
        for output in range(len(instruction.outputs)):
            ref = LocalRef(index, output)
            owner[ref] = ref if source is None else owner[source]
    return owner


def _aliased_operand(instruction: Instruction, target: Target) -> LocalRef | None:
    schema = target._schema
    if not any(result.alias_info is not None for result in schema.returns):
        return None
    for argument, value in zip(schema.arguments, instruction.args, strict=False):
        if argument.alias_info is not None and isinstance(value, LocalRef):
            return value
    return None


def _last_uses(table: ProgramTable, owner: Mapping[LocalRef, LocalRef]) -> dict[LocalRef, int]:
    """Owner of memory -> last instruction that reads it or a view of it, -1 for none.

    Returned values count as read at the very end, and so does a new value of another input.
    """
    last = dict.fromkeys(owner.values(), -1)
    for index, instruction in enumerate(table.instructions):
        for ref in instruction.sources():
            last[owner[ref]] = index
    for output in table.outputs:
        root = owner[output.value]
        if root != LocalRef(output.updates):
            last[root] = len(table.instructions)
    return last
