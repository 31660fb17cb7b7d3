"""Where a shard lies in its tensor: cutting whole tensors into shards and joining them again.

Shards of an atom that is not the outermost of its dim are strided: with dim 0 made of atoms
(3, heads, e) and heads sharded over two ranks, rank 0 holds rows of all three thirds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shardwright.lowering.table import Atoms, LocalTensor, Spec


def atom_axes(atoms: Atoms, spec: Spec) -> list[list[int]]:
    """Per atom of the root the mesh axes that shard it, outermost first."""
    axes: list[list[int]] = [[] for _ in atoms.sizes]
    for axis, placement in enumerate(spec):
        if placement.kind == "S":
            axes[placement.atom].append(axis)
    for sharding in axes:
        sharding.sort(key=lambda axis: spec[axis].order)
    return axes


def is_partial(spec: Spec) -> bool:
    """Whether any axis holds a pending reduction."""
    return any(placement.kind == "P" for placement in spec)


def local_part(
    whole: Tensor, tensor: LocalTensor, mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> Tensor:
    """Shard of a whole tensor on the rank at `coordinate`, contiguous, never a view of `whole`.

    Args:
        whole: of shape `tensor.global_shape`.
        tensor: spec without pending reductions.
        mesh_shape: sizes of the mesh axes.
        coordinate: position of the rank.
    """
    axes = atom_axes(tensor.atoms, tensor.spec)
    part = whole.detach().reshape(_atom_shape(tensor.atoms))
    position = 0
    for dim in tensor.atoms.dims:
        for atom in dim:
            shards, index = _shard_index(axes[atom], mesh_shape, coordinate)
            size = part.shape[position] // shards
            part = part.narrow(position, index * size, size)
            position += 1
    return part.reshape(tensor.local_shape).clone(memory_format=torch.contiguous_format)


def join_parts(parts: Sequence[Tensor], tensor: LocalTensor, mesh_shape: Sequence[int]) -> Tensor:
    """The whole tensor from the shards of all ranks, ranks row-major.

    Pending reductions are completed in ascending order of ranks. Of replicas the first is taken.

    Args:
        parts: one shard per rank.
        tensor: their common spec.
        mesh_shape: sizes of the mesh axes.
    """
    axes = atom_axes(tensor.atoms, tensor.spec)
    whole = parts[0].new_empty(_atom_shape(tensor.atoms))
    filled: dict[tuple[int, ...], Tensor] = {}
    for rank, part in enumerate(parts):
        coordinate = _coordinate(rank, mesh_shape)
        if any(p.kind == "R" and c > 0 for p, c in zip(tensor.spec, coordinate, strict=True)):
            continue
        window, shape, place = whole, [], []
        position = 0
        for dim in tensor.atoms.dims:
            for atom in dim:
                shards, index = _shard_index(axes[atom], mesh_shape, coordinate)
                size = whole.shape[position] // shards
                window = window.narrow(position, index * size, size)
                shape.append(size)
                place.append(index)
                position += 1
        value = part.detach().reshape(shape)
        key = tuple(place)
        window.copy_(_combined(filled[key], value, tensor.spec) if key in filled else value)
        filled[key] = window
    return whole.reshape(tensor.global_shape)


def _combined(left: Tensor, right: Tensor, spec: Spec) -> Tensor:
    reduce = next(p.reduce for p in spec if p.kind == "P")
    if reduce == "sum":
        return left + right
    return torch.maximum(left, right) if reduce == "max" else torch.minimum(left, right)


def _atom_shape(atoms: Atoms) -> list[int]:
    return [atoms.sizes[atom] for dim in atoms.dims for atom in dim]


def _shard_index(
    axes: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> tuple[int, int]:
    """Number of shards of an atom and which one the rank holds."""
    shards, index = 1, 0
    for axis in axes:
        shards *= mesh_shape[axis]
        index = index * mesh_shape[axis] + coordinate[axis]
    return shards, index


def _coordinate(rank: int, mesh_shape: Sequence[int]) -> tuple[int, ...]:
    result: list[int] = []
    for size in reversed(mesh_shape):
        rank, position = divmod(rank, size)
        result.append(position)
    return tuple(reversed(result))


@dataclass(frozen=True)
class DimPlacement:
    """A placement in terms of whole dims, applied axis by axis in mesh order.

    Attributes:
        kind: "R", "S" or "P".
        dim: of "S": the dim that is cut.
        blocks: of "S": the local dim is first cut into this many blocks and the shard is a part of
            each; 1 for a plain shard.
    """

    kind: Literal["R", "S", "P"]
    dim: int = -1
    blocks: int = 1


def dim_placements(atoms: Atoms, spec: Spec, mesh_shape: Sequence[int]) -> list[DimPlacement]:
    """The spec as torch.distributed.tensor states it, one placement per mesh axis.

    Example: heads of a fused weight whose dim 0 has atoms (3, heads, e), sharded by axis 0, give
    `DimPlacement("S", 0, blocks=3)`.
    """
    result: list[DimPlacement] = []
    for axis, placement in enumerate(spec):
        if placement.kind != "S":
            result.append(DimPlacement(placement.kind))
            continue
        dim = next(i for i, parts in enumerate(atoms.dims) if placement.atom in parts)
        blocks = 1
        for atom in atoms.dims[dim]:
            if atom == placement.atom:
                break
            earlier = [a for a in range(axis) if spec[a].kind == "S" and spec[a].atom == atom]
            blocks *= atoms.sizes[atom] // math.prod(mesh_shape[a] for a in earlier)
        for later in range(axis + 1, len(spec)):
            same = spec[later].kind == "S" and spec[later].atom == placement.atom
            if same and spec[later].order < placement.order:
                blocks *= mesh_shape[later]
        result.append(DimPlacement("S", dim, blocks))
    return result
