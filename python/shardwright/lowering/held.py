"""What the static checker knows of a value: which part every rank holds, and what is pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from shardwright.lowering.lattice import Lattice
from shardwright.lowering.table import Atoms, LocalTensor, ProgramTable

# One lattice per rank.
PerRank = tuple[Lattice, ...]

_MAX_ENUMERATED = 1 << 22


class CheckError(Exception):
    """A value is not what it must be; the text says why."""


class UnknownOpError(Exception):
    """The checker has no rule for an op; the text names it."""


@dataclass(frozen=True)
class Mesh:
    """Ranks on a grid, row-major."""

    shape: tuple[int, ...]

    @property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Of every rank."""
        return _coordinates(self.shape)

    def varying(self, values: PerRank) -> list[int]:
        """Axes along which ranks hold different lattices."""
        return list(_varying(self.shape, values))


@cache
def _coordinates(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in index) for index in np.ndindex(*shape))


@cache
def _varying(shape: tuple[int, ...], values: PerRank) -> tuple[int, ...]:
    numbers = {value: i for i, value in enumerate(dict.fromkeys(values))}
    grid = np.array([numbers[value] for value in values]).reshape(shape)
    return tuple(axis for axis in range(len(shape)) if (grid != grid.take([0], axis=axis)).any())


@dataclass(frozen=True)
class Held:
    """One value on all ranks.

    Attributes:
        shape: global.
        dims: per dim and rank the global indices held.
        partial: per mesh axis the pending reduction, "" for none.
        is_zero: every element is zero, so that it counts as partial and as complete.
    """

    shape: tuple[int, ...]
    dims: tuple[PerRank, ...]
    partial: tuple[str, ...]
    is_zero: bool = False

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of the shard of a rank."""
        return tuple(lattices[rank].size for lattices in self.dims)


def declared(tensor: LocalTensor, mesh: Mesh) -> Held:
    """What a table says a value is."""
    dims = tuple(
        _declared_dim(tensor.atoms, dim, tensor.spec, mesh) for dim in range(len(tensor.atoms.dims))
    )
    partial = tuple(p.reduce if p.kind == "P" else "" for p in tensor.spec)
    return Held(tensor.global_shape, dims, partial)


@cache
def _declared_dim(atoms: Atoms, dim: int, spec: tuple[object, ...], mesh: Mesh) -> PerRank:
    found = []
    for coordinate in mesh.coordinates:
        parts, sizes = [], []
        for atom in atoms.dims[dim]:
            lattice = Lattice.whole(atoms.sizes[atom])
            axes = [a for a, p in enumerate(spec) if p.kind == "S" and p.atom == atom]  # type: ignore[attr-defined]
            for axis in sorted(axes, key=lambda a: spec[a].order):  # type: ignore[attr-defined]
                lattice = lattice.cut(1, mesh.shape[axis], coordinate[axis])
            parts.append(lattice)
            sizes.append(atoms.sizes[atom])
        found.append(Lattice.product(parts, sizes))
    return tuple(found)


def whole_dim(size: int, mesh: Mesh) -> PerRank:
    """All indices on every rank."""
    return (Lattice.whole(size),) * len(mesh.coordinates)


def split_axes(values: PerRank, size: int, mesh: Mesh) -> list[int]:
    """Mesh axes over which a dim of `size` is divided without gap or overlap.

    Raises:
        CheckError: when the parts do not make up the whole.
    """
    axes = mesh.varying(values)
    if not _is_partition(values, size, mesh, tuple(axes)):
        raise CheckError(f"its parts do not make up a dim of {size}")
    return axes


@cache
def _is_partition(values: PerRank, size: int, mesh: Mesh, axes: tuple[int, ...]) -> bool:
    grid = np.arange(len(values)).reshape(mesh.shape)
    rest = [axis for axis in range(len(mesh.shape)) if axis not in axes]
    lines = grid.transpose([*rest, *axes]).reshape(-1, int(np.prod([mesh.shape[a] for a in axes])))
    for line in {tuple(values[int(rank)] for rank in line) for line in lines}:
        if sum(lattice.size for lattice in line) != size or len(set(line)) != len(line):
            return False
        if size <= _MAX_ENUMERATED:
            seen = np.zeros(size, dtype=bool)
            for lattice in line:
                indices = _indices(lattice)
                if indices.size and (indices.min() < 0 or indices.max() >= size):
                    return False
                seen[indices] = True
            if not seen.all():
                return False
    return True


def _indices(lattice: Lattice) -> np.ndarray:
    found = np.array([lattice.offset])
    for extent, stride in lattice.digits:
        found = (found[:, None] + np.arange(extent) * stride).reshape(-1)
    return found


def same_partial(operands: Sequence[Held], axis: int) -> set[str]:
    """Pending reductions of some operands on an axis; zeros take any."""
    return {held.partial[axis] for held in operands if not held.is_zero}


def mesh_of(table: ProgramTable) -> Mesh:
    """Mesh of a program."""
    return Mesh(table.mesh_shape)
