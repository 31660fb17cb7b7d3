"""Ways to break a program, as changes of its table."""

import dataclasses
from collections.abc import Callable
from typing import Any

from shardwright.lowering.table import (
    Instruction,
    LocalRef,
    ProgramOutput,
    ProgramTable,
    RankInt,
    Reshard,
)  # fmt: skip


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` on every leaf of nested tuples."""
    if isinstance(value, tuple):
        return tuple(mapped(item, change) for item in value)
    return change(value)


def rewired(table: ProgramTable, old: LocalRef, new: LocalRef) -> ProgramTable:
    """Every reader of `old` reads `new`."""

    def swap(value: Any) -> Any:
        return new if value == old else value

    instructions = []
    for instruction in table.instructions:
        reshard = instruction.reshard
        if reshard is not None:
            reshard = dataclasses.replace(reshard, source=swap(reshard.source))
        instructions.append(
            dataclasses.replace(instruction, args=mapped(instruction.args, swap), reshard=reshard)
        )
    outputs = tuple(ProgramOutput(swap(o.value), o.updates) for o in table.outputs)
    return ProgramTable(table.mesh_shape, tuple(instructions), outputs)


def replaced(table: ProgramTable, index: int, **fields: Any) -> ProgramTable:
    instructions = list(table.instructions)
    instructions[index] = dataclasses.replace(instructions[index], **fields)
    return dataclasses.replace(table, instructions=tuple(instructions))


def converted(table: ProgramTable, index: int, **fields: Any) -> ProgramTable:
    """Fields of a conversion changed."""
    reshard = dataclasses.replace(table.instructions[index].reshard, **fields)
    return replaced(table, index, reshard=reshard)


def with_args(table: ProgramTable, index: int, **changes: Any) -> ProgramTable:
    """Arguments of a call changed, `a1=...` is argument 1."""
    args = list(table.instructions[index].args)
    for name, value in changes.items():
        args[int(name[1:])] = value
    return replaced(table, index, args=tuple(args))


def inserted(table: ProgramTable, after: int, instruction: Instruction) -> ProgramTable:
    """One more conversion, which later readers of instruction `after` read instead."""

    def moved(value: Any) -> Any:
        if isinstance(value, LocalRef) and value.instruction >= after and value.output == 0:
            return LocalRef(value.instruction + 1, 0)
        if isinstance(value, LocalRef) and value.instruction > after:
            return LocalRef(value.instruction + 1, value.output)
        return value

    later = []
    for ins in table.instructions[after + 1 :]:
        reshard = ins.reshard
        if reshard is not None:
            reshard = dataclasses.replace(reshard, source=moved(reshard.source))
        later.append(dataclasses.replace(ins, args=mapped(ins.args, moved), reshard=reshard))
    outputs = tuple(ProgramOutput(moved(o.value), o.updates) for o in table.outputs)
    instructions = (*table.instructions[: after + 1], instruction, *later)
    return ProgramTable(table.mesh_shape, instructions, outputs)


def find(
    table: ProgramTable, kind: str, *, phase: str | None = None, rank: int | None = None,
    nth: int = 0, **fields: Any,
) -> int:  # fmt: skip
    """The nth conversion of a kind (an op's name finds calls), `rank` counts its dims."""
    hits = []
    for index, ins in enumerate(table.instructions):
        name = ins.reshard.kind if ins.reshard is not None else ins.op
        good = name == kind and (phase is None or ins.phase == phase)
        good = good and (rank is None or len(ins.outputs[0].global_shape) == rank)
        if good and all(getattr(ins.reshard, k) == v for k, v in fields.items()):
            hits.append(index)
    return hits[nth]


def dropped(table: ProgramTable, index: int) -> ProgramTable:
    """Readers of a conversion read its source."""
    return rewired(table, LocalRef(index), table.instructions[index].reshard.source)


def twice_reduced(table: ProgramTable) -> ProgramTable:
    """A complete gradient is summed over its copies: scaled by the size of the group."""
    index = find(table, "all_reduce", phase="backward", rank=1)
    before = table.instructions[index]
    again = Reshard("all_reduce", before.reshard.axis, LocalRef(index))
    return inserted(table, index, dataclasses.replace(before, reshard=again))


def order_of_axes(table: ProgramTable) -> ProgramTable:
    """Tokens are cut first along the other axis: two shards change places."""
    first = find(table, "slice", phase="forward", rank=2, axis=0)
    second = find(table, "slice", phase="forward", rank=2, axis=1, source=LocalRef(first))
    return converted(converted(table, first, axis=1), second, axis=0)


def untied(table: ProgramTable) -> ProgramTable:
    """The embedding's gradient is that of the output layer alone."""
    index = find(table, "shardwright.adam_update.default")
    grad = table.instructions[table.instructions[index].args[1].instruction].args[0]
    total = table.instructions[grad.instruction]
    assert total.op == "aten.add.Tensor"
    return rewired(table, grad, total.args[0])


def stale_state(table: ProgramTable) -> ProgramTable:
    """A second moment keeps its old value."""
    update = find(table, "shardwright.adam_update.default")
    outputs = tuple(
        ProgramOutput(LocalRef(o.updates), o.updates) if o.value == LocalRef(update, 2) else o
        for o in table.outputs
    )
    return dataclasses.replace(table, outputs=outputs)


def swapped_moments(table: ProgramTable) -> ProgramTable:
    """First and second moment change places."""
    update = find(table, "shardwright.adam_update.default")
    swap = {LocalRef(update, 1): LocalRef(update, 2), LocalRef(update, 2): LocalRef(update, 1)}
    outputs = tuple(ProgramOutput(swap.get(o.value, o.value), o.updates) for o in table.outputs)
    return dataclasses.replace(table, outputs=outputs)


def moments_of_another(table: ProgramTable) -> ProgramTable:
    """Two parameters of one shape use each other's first moment."""
    updates = [
        i for i, ins in enumerate(table.instructions)
        if ins.op == "shardwright.adam_update.default" and ins.outputs[0].global_shape == (16,)
    ]  # fmt: skip
    first, second = updates[:2]
    a, b = (table.instructions[i].args[2] for i in (first, second))
    return with_args(with_args(table, first, a2=b), second, a2=a)


def gradient_of_another(table: ProgramTable) -> ProgramTable:
    """A parameter is updated with the gradient of another of its shape."""
    updates = [
        i for i, ins in enumerate(table.instructions)
        if ins.op == "shardwright.adam_update.default" and ins.outputs[0].global_shape == (16,)
    ]  # fmt: skip
    return with_args(table, updates[0], a1=table.instructions[updates[1]].args[1])


def unclipped(table: ProgramTable) -> ProgramTable:
    """One gradient is not clipped."""
    update = find(table, "shardwright.adam_update.default", nth=1)
    clip = table.instructions[update].args[1].instruction
    return with_args(table, update, a1=table.instructions[clip].args[0])


def swapped_hyper(table: ProgramTable) -> ProgramTable:
    """Learning rate and weight decay change places in one update."""
    update = find(table, "shardwright.adam_update.default")
    args = table.instructions[update].args
    return with_args(table, update, a5=args[8], a8=args[5])


def ignored_targets_count(table: ProgramTable) -> ProgramTable:
    """Rows with ignore_index count in the loss."""
    where = find(table, "aten.where.self")
    return rewired(table, LocalRef(where), table.instructions[where].args[1])


def sign(table: ProgramTable) -> ProgramTable:
    """The loss is subtracted the wrong way round."""
    index = find(table, "aten.sub.Tensor")
    a, b = table.instructions[index].args[:2]
    return with_args(table, index, a0=b, a1=a)


def doubled_term(table: ProgramTable) -> ProgramTable:
    """A sum takes its first term twice."""
    index = find(table, "aten.add.Tensor", phase="backward")
    return with_args(table, index, a1=table.instructions[index].args[0])


def wrong_offset(table: ProgramTable) -> ProgramTable:
    """Every rank believes to hold the first rows of a divided table."""
    for index, ins in enumerate(table.instructions):
        for position, value in enumerate(ins.args):
            if isinstance(value, RankInt) and any(value.per_axis):
                return with_args(table, index, **{f"a{position}": RankInt(0, ())})
    raise AssertionError("no rank-dependent argument")


def wrong_mask(table: ProgramTable) -> ProgramTable:
    """What only one rank adds is added by all."""
    return dropped(table, find(table, "mask"))


BUGS: dict[str, Callable[[ProgramTable], ProgramTable]] = {
    "drop the all-reduce of a gradient": lambda t: dropped(
        t, find(t, "all_reduce", phase="backward", rank=2)
    ),
    "drop the all-reduce of the loss": lambda t: dropped(
        t, find(t, "all_reduce", phase="forward", rank=0, nth=2)
    ),
    "drop the all-reduce of the token count": lambda t: dropped(
        t, find(t, "all_reduce", phase="forward", rank=0)
    ),
    "clip by the local norm": lambda t: dropped(t, find(t, "all_reduce", phase="update")),
    "clip by the norm of one axis": lambda t: dropped(
        t, find(t, "all_reduce", phase="update", nth=1)
    ),
    "take the maximum for the sum": lambda t: converted(
        t, find(t, "all_reduce", phase="backward", rank=2), reduce="max"
    ),
    "keep a part without summing": lambda t: converted(
        t, find(t, "reduce_scatter", phase="forward"), kind="slice"
    ),
    "sum over the wrong axis": lambda t: converted(
        t, find(t, "reduce_scatter", phase="backward", axis=0, rank=3), axis=1
    ),
    "gather along the wrong axis": lambda t: converted(
        t, find(t, "all_gather", phase="forward", axis=0), axis=1
    ),
    "forget that heads are strided when gathering": lambda t: converted(
        t, find(t, "all_gather", phase="forward", outer=3), outer=1
    ),
    "forget that heads are strided when slicing": lambda t: converted(
        t, find(t, "slice", phase="update", outer=3, nth=2), outer=1
    ),
    "slice another part of the sequence": lambda t: converted(
        t, find(t, "slice", phase="forward", rank=3), outer=2
    ),
    "exchange along the wrong stride": lambda t: converted(
        t, find(t, "all_to_all", phase="backward", to_outer=8), to_outer=1
    ),
    "exchange the other way": lambda t: converted(
        t, find(t, "all_to_all", phase="forward", rank=3), dim=2, to_dim=0
    ),
    "slice along the wrong axis": lambda t: converted(
        t, find(t, "slice", phase="forward", axis=0), axis=1
    ),
    "swap two shards of the batch": order_of_axes,
    "scale a gradient by the group size": twice_reduced,
    "untie a weight": untied,
    "keep a stale second moment": stale_state,
    "swap the moments": swapped_moments,
    "use the moments of another parameter": moments_of_another,
    "use the gradient of another parameter": gradient_of_another,
    "skip clipping": unclipped,
    "swap hyper-parameters": swapped_hyper,
    "count ignored targets": ignored_targets_count,
    "flip a sign": sign,
    "double a term": doubled_term,
}

# Need a program that divides a vocabulary and one that masks.
SPECIAL_BUGS: dict[str, tuple[str, Callable[[ProgramTable], ProgramTable]]] = {
    "use a wrong offset": ("offset", wrong_offset),
    "skip a mask": ("mask", wrong_mask),
}
