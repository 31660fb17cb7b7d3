"""Instruction tables made by hand: everything replicated, with optional round trips."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from shardwright.lowering.table import (
    Atoms,
    Instruction,
    LocalRef,
    LocalTensor,
    Placement,
    ProgramOutput,
    ProgramTable,
    Reshard,
)  # fmt: skip


def whole_tensor(value: torch.Tensor, mesh_shape: tuple[int, ...]) -> LocalTensor:
    shape = tuple(value.shape)
    sizes = tuple(size for size in shape if size != 1)
    numbers = iter(range(len(sizes)))
    dims = tuple((next(numbers),) if size != 1 else () for size in shape)
    spec = (Placement("R"),) * len(mesh_shape)
    return LocalTensor(shape, shape, str(value.dtype)[6:], Atoms(sizes, dims), spec)


def _tensors(value: Any, mesh_shape: tuple[int, ...]) -> tuple[LocalTensor, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(whole_tensor(v, mesh_shape) for v in values)


class TableWriter:
    def __init__(self, graph: Any, mesh_shape: tuple[int, ...]) -> None:
        self.graph = graph
        self.mesh_shape = mesh_shape
        self.instructions: list[Instruction] = []
        self.refs: dict[fx.Node, LocalRef] = {}

    def add(self, instruction: Instruction) -> LocalRef:
        self.instructions.append(instruction)
        return LocalRef(len(self.instructions) - 1)

    def arg(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.refs[value]
        if isinstance(value, (list, tuple)):
            return tuple(self.arg(item) for item in value)
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return str(value).removeprefix("torch.")
        return value

    def write(self, round_trips: random.Random | None = None) -> ProgramTable:
        for node in self.graph.graph_module.graph.nodes:
            if node.op == "output":
                break
            if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
                self.refs[node] = LocalRef(self.refs[node.args[0]].instruction, node.args[1])
                continue
            outputs = _tensors(node.meta["val"], self.mesh_shape)
            phase = node.meta["phase"]
            if node.op == "placeholder":
                ref = self.add(Instruction("input", node.name, phase, outputs))
            else:
                ref = self.add(
                    Instruction(
                        "compute", node.name, phase, outputs, op=str(node.target),
                        args=self.arg(node.args),
                        kwargs=tuple((k, self.arg(v)) for k, v in node.kwargs.items()),
                    )
                )  # fmt: skip
            self.refs[node] = ref
            if round_trips is not None and len(outputs) == 1 and round_trips.random() < 0.3:
                self.refs[node] = self.round_trip(node, ref, outputs[0], round_trips)
        placeholders = [i for i, ins in enumerate(self.instructions) if ins.kind == "input"]
        outputs = tuple(
            ProgramOutput(
                self.refs[node], -1 if spec.updates is None else placeholders[spec.updates]
            )
            for node, spec in zip(self.graph.output_nodes, self.graph.outputs, strict=True)
        )
        return ProgramTable(self.mesh_shape, tuple(self.instructions), outputs)

    def round_trip(
        self, node: fx.Node, ref: LocalRef, whole: LocalTensor, rng: random.Random
    ) -> LocalRef:
        """Conversions that lead back to the same replicated value."""
        axis = rng.randrange(len(self.mesh_shape))
        size = self.mesh_shape[axis]
        phase = node.meta["phase"]

        def step(source: LocalRef, kind: str, tensor: LocalTensor, **fields: Any) -> LocalRef:
            reshard = Reshard(kind, axis, source, **fields)  # type: ignore[arg-type]
            return self.add(Instruction("reshard", node.name, phase, (tensor,), reshard=reshard))

        def placed(placement: Placement, dim: int | None) -> LocalTensor:
            spec = list(whole.spec)
            spec[axis] = placement
            shape = list(whole.global_shape)
            if dim is not None:
                shape[dim] //= size
            return LocalTensor(
                tuple(shape), whole.global_shape, whole.dtype, whole.atoms, tuple(spec)
            )

        usable = [d for d, n in enumerate(whole.global_shape) if n > 1 and n % size == 0]
        is_sum = whole.dtype.startswith(("float", "int", "bfloat"))
        partial = placed(Placement("P"), None)
        if not usable or rng.random() < 0.3:
            if not is_sum:
                return ref
            return step(step(ref, "mask", partial), "all_reduce", whole)
        dim = rng.choice(usable)
        sharded = placed(Placement("S", whole.atoms.dims[dim][0]), dim)
        if is_sum and rng.random() < 0.5:
            part = step(step(ref, "mask", partial), "reduce_scatter", sharded, dim=dim)
        else:
            part = step(ref, "slice", sharded, dim=dim)
        other = rng.choice(usable)
        if other != dim:
            exchanged = placed(Placement("S", whole.atoms.dims[other][0]), other)
            part = step(part, "all_to_all", exchanged, dim=dim, to_dim=other)
            dim = other
        return step(part, "all_gather", whole, dim=dim)


def replicated_table(graph: Any, mesh_shape: tuple[int, ...]) -> ProgramTable:
    return TableWriter(graph, mesh_shape).write()


def round_trip_table(graph: Any, mesh_shape: tuple[int, ...], seed: int) -> ProgramTable:
    return TableWriter(graph, mesh_shape).write(random.Random(seed))


def instructions_of(table: ProgramTable, kind: str) -> Iterator[int]:
    return (i for i, ins in enumerate(table.instructions) if ins.kind == kind)
