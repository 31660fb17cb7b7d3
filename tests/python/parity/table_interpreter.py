"""Runs an emitted program on simulated ranks and holds every value against the dense step.

Shares no code with lowering, runtime or the planner: what a spec means is taken from the whole
tensor, cut atom by atom; what a conversion means from what its ranks hold together.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardwright import _core
from shardwright.graph_table import decode_text


def part_of(spec, atom: int, coordinate: Sequence[int], mesh_shape) -> tuple[int, int]:
    """Which part of an atom a rank holds, and of how many."""
    axes = [axis for axis, p in enumerate(spec) if p.kind == "S" and p.atom == atom]
    index, parts = 0, 1
    for axis in sorted(axes, key=lambda a: spec[a].order):
        index = index * mesh_shape[axis] + coordinate[axis]
        parts *= mesh_shape[axis]
    return index, parts


def shard_of(whole: Tensor, tensor: _core.LocalTensor, coordinate, mesh_shape) -> Tensor:
    """One rank's shard of a whole tensor, pending sums left aside."""
    atoms, spec = tensor.atoms, tensor.spec
    order = [atom for dim in atoms.dims for atom in dim]
    grid = whole.reshape([atoms.sizes[atom] for atom in order])
    for position, atom in enumerate(order):
        index, parts = part_of(spec, atom, coordinate, mesh_shape)
        size = atoms.sizes[atom] // parts
        grid = grid.narrow(position, index * size, size)
    return grid.reshape(tensor.local_shape).contiguous()


class Simulation:
    """All ranks of a program in lock-step.

    Args:
        table: what was emitted.
        mesh: the mesh it was emitted for.
        dense: name of a graph node -> its values on one device.
        names: names of the graph nodes, by index.
    """

    def __init__(
        self,
        table: _core.ProgramTable,
        mesh: _core.DeviceMesh,
        dense: dict[str, tuple[Tensor, ...]],
        names: Sequence[str],
    ):
        self.table, self.mesh, self.dense, self.names = table, mesh, dense, names
        self.shape = tuple(table.mesh_shape)
        self.ranks = [mesh.coordinate(rank) for rank in range(mesh.num_devices)]
        # Per instruction and rank: its outputs.
        self.values: list[list[tuple[Tensor, ...]]] = []
        # Which whole tensor each value stands for.
        self.wholes: list[tuple[Tensor, ...]] = []

    def run(self) -> None:
        for index, instruction in enumerate(self.table.instructions):
            if instruction.kind == "input":
                outputs = self._input(instruction)
            elif instruction.kind == "compute":
                outputs = self._compute(instruction)
            else:
                outputs = self._reshard(instruction)
            self.values.append(outputs)
            self._check(index, instruction)

    def at(self, ref: _core.LocalRef) -> list[Tensor]:
        """A value on all ranks."""
        return [outputs[ref.output] for outputs in self.values[ref.instruction]]

    def whole(self, ref: _core.LocalRef) -> Tensor:
        """The whole tensor that a value is a form of."""
        return self.wholes[ref.instruction][ref.output]

    def _input(self, instruction) -> list[tuple[Tensor, ...]]:
        (whole,) = self.dense[self.names[instruction.node]]
        self.wholes.append((whole,))
        tensor = instruction.outputs[0]
        return [(shard_of(whole, tensor, rank, self.shape),) for rank in self.ranks]

    def _compute(self, instruction) -> list[tuple[Tensor, ...]]:
        namespace, name, overload = instruction.op.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        self.wholes.append(self.dense[self.names[instruction.node]])
        args, kwargs = instruction.args, instruction.kwargs
        results = []
        for rank, coordinate in enumerate(self.ranks):
            local = [self._local(arg, rank, coordinate) for arg in args]
            named = {key: self._local(arg, rank, coordinate) for key, arg in kwargs.items()}
            result = op(*local, **named)
            results.append(tuple(result) if isinstance(result, (list, tuple)) else (result,))
        return results

    def _local(self, arg: Any, rank: int, coordinate: Sequence[int]) -> Any:
        if isinstance(arg, _core.LocalRef):
            return self.values[arg.instruction][rank][arg.output]
        if isinstance(arg, _core.RankInt):
            return arg.at(coordinate)
        if isinstance(arg, list):
            return [self._local(element, rank, coordinate) for element in arg]
        return decode_text(arg) if isinstance(arg, str) else arg

    def _reshard(self, instruction) -> list[tuple[Tensor, ...]]:
        step = instruction.step
        held = self.at(instruction.source)
        self.wholes.append((self.whole(instruction.source),))
        results = []
        for rank in range(len(self.ranks)):
            group = self.mesh.group(rank, step.axis)
            result = self._step(instruction, [held[peer] for peer in group], group.index(rank))
            results.append((result.contiguous(),))  # as a collective leaves it
        return results

    def _step(self, instruction, held: list[Tensor], me: int) -> Tensor:
        step, size = instruction.step, len(held)
        reduce = {
            "sum": lambda x: x.sum(0),
            "max": lambda x: x.amax(0),
            "min": lambda x: x.amin(0),
        }
        dim, outer = instruction.dim, instruction.outer

        def cut(tensor: Tensor, dim: int, outer: int) -> Tensor:
            parts = tensor.unflatten(dim, (outer, size, -1)).select(dim + 1, me)
            return parts.flatten(dim, dim + 1)

        def join(tensors: list[Tensor], dim: int, outer: int) -> Tensor:
            pieces = torch.stack([t.unflatten(dim, (outer, -1)) for t in tensors], dim + 1)
            return pieces.flatten(dim, dim + 2)

        if step.kind == "all_gather":
            return join(held, dim, outer)
        if step.kind == "reduce_scatter":
            return cut(reduce[step.reduce](torch.stack(held)), dim, outer)
        if step.kind == "all_reduce":
            return reduce[step.reduce](torch.stack(held))
        if step.kind == "all_to_all":
            sent = [cut(t, instruction.to_dim, instruction.to_outer) for t in held]
            inside = instruction.to_dim != dim or outer <= instruction.to_outer
            return join(sent, dim, outer if inside else outer // size)
        if step.kind == "slice":
            return cut(held[me], dim, outer)
        assert step.kind == "mask"
        return held[me] if me == 0 else torch.zeros_like(held[me])

    def _check(self, index: int, instruction) -> None:
        for output, tensor in enumerate(instruction.outputs):
            whole = self.wholes[index][output]
            if tuple(tensor.global_shape) == (0,):
                continue
            where = f"%{index} {instruction.kind} {self.names[instruction.node]} {instruction.op}"
            locals_ = [outputs[output] for outputs in self.values[index]]
            for local in locals_:
                assert list(local.shape) == list(tensor.local_shape), where
                assert str(local.dtype) == f"torch.{tensor.dtype}", where
            self.compare(locals_, tensor, whole, where)

    def compare(
        self, locals_: list[Tensor], tensor: _core.LocalTensor, whole: Tensor, where: str
    ) -> None:
        """Asserts that what the ranks hold is the whole tensor under the value's spec."""
        for axis, placement in enumerate(tensor.spec):
            if placement.kind == "P":
                stacks = [
                    torch.stack([locals_[peer] for peer in self.mesh.group(rank, axis)])
                    for rank in range(len(self.ranks))
                ]
                reduce = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[placement.reduce]
                locals_ = [reduce(stack, 0) for stack in stacks]
        for local, coordinate in zip(locals_, self.ranks, strict=True):
            wanted = shard_of(whole, tensor, coordinate, self.shape)
            torch.testing.assert_close(
                local.to(wanted.dtype),
                wanted,
                rtol=1e-9,
                atol=1e-9 * max(1.0, float(whole.abs().max())) if whole.is_floating_point() else 0,
                equal_nan=True,
                msg=lambda text: f"{where}\n{_core.print_spec(tensor.atoms, tensor.spec)}\n{text}",
            )
