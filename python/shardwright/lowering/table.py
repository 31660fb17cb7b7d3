"""The program as a table: instructions over local shards, the same for every rank.

Mirrors csrc/plan/program_table.h value by value. Rank-dependent integers stay symbolic
(`RankInt`) until a rank's program is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias

Phase = Literal["forward", "backward", "update"]
StepKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "mask"]
ReduceOp = Literal["sum", "max", "min"]


@dataclass(frozen=True)
class RankInt:
    """An integer that depends on the rank: base + sum of per_axis[a] * coordinate[a]."""

    base: int
    per_axis: tuple[int, ...]

    def at(self, coordinate: Sequence[int]) -> int:
        """Value on the rank at this mesh coordinate."""
        pairs = zip(self.per_axis, coordinate, strict=False)
        return self.base + sum(factor * position for factor, position in pairs)


@dataclass(frozen=True, order=True)
class LocalRef:
    """Output `output` of instruction `instruction`."""

    instruction: int
    output: int = 0


Arg: TypeAlias = "bool | int | float | str | LocalRef | RankInt | tuple[Arg, ...] | None"


@dataclass(frozen=True)
class Placement:
    """What one mesh axis does to a tensor.

    Attributes:
        kind: "R", "S" or "P".
        atom: of "S": index into the root's atom sizes.
        order: of "S": position among the axes that shard this atom, 0 = outermost.
        reduce: of "P": the pending reduction.
    """

    kind: Literal["R", "S", "P"]
    atom: int = -1
    order: int = 0
    reduce: ReduceOp = "sum"


@dataclass(frozen=True)
class Atoms:
    """Dims of a tensor cut into atoms.

    Attributes:
        sizes: size of each atom of the storage root.
        dims: per dim of this value its atoms, outer to inner; none for size-1 dims.
    """

    sizes: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]


Spec: TypeAlias = "tuple[Placement, ...]"


@dataclass(frozen=True)
class LocalTensor:
    """One value on one rank.

    Attributes:
        local_shape: shape of the shard; global_shape: of the whole tensor.
        dtype: torch's name without prefix.
        atoms, spec: how the shard lies in the whole.
    """

    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    dtype: str
    atoms: Atoms
    spec: Spec


@dataclass(frozen=True)
class Reshard:
    """One conversion step along one mesh axis.

    Attributes:
        kind: which collective, or "slice" or "mask" (no communication).
        axis: mesh axis it runs along.
        source: value converted.
        dim, outer: where the atom lies: dim of the value, and local elements of that dim outside
            the atom. For all-to-all: of the atom that gets gathered.
        to_dim, to_outer: all-to-all: of the atom that gets sharded.
        reduce: reduction of "reduce_scatter" and "all_reduce".
        reduce_dtype: dtype in which these two travel and add, "" for the value's own.
        bytes: V of the cost formula; cost_us: its price.
    """

    kind: StepKind
    axis: int
    source: LocalRef
    dim: int = -1
    outer: int = 1
    to_dim: int = -1
    to_outer: int = 1
    reduce: ReduceOp = "sum"
    reduce_dtype: str = ""
    bytes: int = 0
    cost_us: float = 0.0


@dataclass(frozen=True)
class Instruction:
    """One step of the program.

    Attributes:
        kind: "input", "compute" or "reshard".
        node: fx name of the graph node it belongs to.
        phase, stage: part of the step, pipeline stage.
        op: of "compute": torch's qualified overload name.
        args, kwargs: of "compute": local arguments.
        reshard: of "reshard".
        outputs: one per output.
    """

    kind: Literal["input", "compute", "reshard"]
    node: str
    phase: Phase
    outputs: tuple[LocalTensor, ...]
    stage: int = 0
    op: str = ""
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    reshard: Reshard | None = None

    def sources(self) -> list[LocalRef]:
        """Values it reads, in the order of its arguments; one used twice appears twice."""
        if self.reshard is not None:
            return [self.reshard.source]
        return list(_refs((self.args, tuple(value for _, value in self.kwargs))))


@dataclass(frozen=True)
class ProgramOutput:
    """A result of the step: `updates` is the input instruction that takes it, -1 = returned."""

    value: LocalRef
    updates: int = -1


@dataclass(frozen=True)
class ProgramTable:
    """The whole program.

    Attributes:
        mesh_shape: sizes of the mesh axes; ranks are row-major over it.
        instructions: in execution order.
        outputs: in the order of the step graph's outputs.
    """

    mesh_shape: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[ProgramOutput, ...]

    def tensor(self, ref: LocalRef) -> LocalTensor:
        """Shape and spec of a value."""
        return self.instructions[ref.instruction].outputs[ref.output]

    @property
    def num_ranks(self) -> int:
        """Ranks of the mesh."""
        count = 1
        for size in self.mesh_shape:
            count *= size
        return count

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Mesh coordinate of a rank, row-major."""
        result: list[int] = []
        for size in reversed(self.mesh_shape):
            rank, position = divmod(rank, size)
            result.append(position)
        return tuple(reversed(result))

    def axis_group(self, rank: int, axis: int) -> list[int]:
        """Ranks that differ from `rank` only along `axis`, ascending."""
        stride = 1
        for size in self.mesh_shape[axis + 1 :]:
            stride *= size
        first = rank - self.coordinate(rank)[axis] * stride
        return [first + i * stride for i in range(self.mesh_shape[axis])]

    def fingerprint(self) -> str:
        """SHA-256 of everything in the table."""
        text = json.dumps(_plain(self), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _refs(value: object) -> Iterator[LocalRef]:
    if isinstance(value, LocalRef):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _refs(item)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return {"": type(value).__name__, **plain}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
