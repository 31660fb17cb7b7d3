"""The planner's instruction table as plain Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright import _core
from shardwright.lowering.table import (
    Arg,
    Atoms,
    Instruction,
    LocalRef,
    LocalTensor,
    Placement,
    ProgramOutput,
    ProgramTable,
    RankInt,
    Reshard,
)


def table_from_core(core: Any, node_names: Sequence[str]) -> ProgramTable:
    """Copies a table out of the planner.

    Args:
        core: `_core.ProgramTable`.
        node_names: fx name of every graph node.
    """
    instructions = tuple(_instruction(ins, node_names) for ins in core.instructions)
    outputs = tuple(ProgramOutput(ref_from_core(out.value), out.updates) for out in core.outputs)
    return ProgramTable(tuple(core.mesh_shape), instructions, outputs)


def core_form(tensor: LocalTensor) -> tuple[_core.TensorAtoms, list[_core.Placement]]:
    """Atoms and spec as the planner has them."""
    placements = []
    for placement in tensor.spec:
        if placement.kind == "S":
            placements.append(_core.Placement.shard(placement.atom, placement.order))
        elif placement.kind == "P":
            placements.append(_core.Placement.partial(placement.reduce))
        else:
            placements.append(_core.Placement.replicate())
    return _core.TensorAtoms(tensor.atoms.sizes, tensor.atoms.dims), placements


def _instruction(core: Any, node_names: Sequence[str]) -> Instruction:
    reshard = None
    if core.kind == "reshard":
        step = core.step
        reduces = step.kind in ("all_reduce", "reduce_scatter")
        widened = reduces and step.reduce_dtype != core.outputs[0].dtype
        reshard = Reshard(
            kind=step.kind,
            axis=step.axis,
            source=ref_from_core(core.source),
            dim=core.dim,
            outer=core.outer,
            to_dim=core.to_dim,
            to_outer=core.to_outer,
            reduce=step.reduce,
            reduce_dtype=step.reduce_dtype if widened else "",
            bytes=step.bytes,
            cost_us=step.cost_us,
        )
    return Instruction(
        kind=core.kind,
        node=node_names[core.node],
        phase=core.phase,
        outputs=tuple(tensor_from_core(tensor) for tensor in core.outputs),
        stage=core.stage,
        op=core.op,
        args=tuple(_arg(value) for value in core.args),
        kwargs=tuple((name, _arg(value)) for name, value in core.kwargs.items()),
        reshard=reshard,
    )


def tensor_from_core(core: Any) -> LocalTensor:
    """One value on one rank: copies a `_core.LocalTensor`."""
    atoms = Atoms(tuple(core.atoms.sizes), tuple(tuple(dim) for dim in core.atoms.dims))
    spec = tuple(
        Placement(
            placement.kind,
            placement.atom if placement.kind == "S" else -1,
            placement.order if placement.kind == "S" else 0,
            placement.reduce if placement.kind == "P" else "sum",
        )
        for placement in core.spec
    )
    return LocalTensor(tuple(core.local_shape), tuple(core.global_shape), core.dtype, atoms, spec)


def ref_from_core(core: Any) -> LocalRef:
    """Copies a `_core.LocalRef`."""
    return LocalRef(core.instruction, core.output)


def _arg(value: Any) -> Arg:
    if isinstance(value, _core.LocalRef):
        return ref_from_core(value)
    if isinstance(value, _core.RankInt):
        return RankInt(value.base, tuple(value.per_axis))
    if isinstance(value, (list, tuple)):
        return tuple(_arg(item) for item in value)
    return value  # type: ignore[no-any-return]
