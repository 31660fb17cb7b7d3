"""Shards as DTensors: what users, optimizers and checkpoints see of a sharded tensor.

A shard of an inner atom (heads of a fused weight) is strided. Inside the model it is a DTensor with
torch's strided placement; for state dicts it is converted to plain `Shard` placements along the
same mesh axes, which every consumer understands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from shardwright.lowering.layout import DimPlacement, dim_placements, local_part
from shardwright.lowering.table import LocalTensor
from shardwright.runtime.groups import MeshGroups


@dataclass(frozen=True)
class ShardForm:
    """How one stored tensor lies on the mesh.

    Attributes:
        tensor: local and global shape, atoms and spec.
        mesh_shape: sizes of the mesh axes.
        coordinate: of this rank.
        groups: process groups of the axes.
    """

    tensor: LocalTensor
    mesh_shape: tuple[int, ...]
    coordinate: tuple[int, ...]
    groups: MeshGroups

    @property
    def placements(self) -> list[DimPlacement]:
        """Per axis, in terms of dims."""
        return dim_placements(self.tensor.atoms, self.tensor.spec, self.mesh_shape)

    @property
    def is_plain(self) -> bool:
        """Whether plain `Shard` placements say it all."""
        return all(p.blocks == 1 for p in self.placements)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the whole tensor."""
        return all(p.kind == "R" for p in self.placements)

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's shard of a whole tensor, in memory of its own."""
        return local_part(whole, self.tensor, self.mesh_shape, self.coordinate)

    def join(self, local: Tensor) -> Tensor:
        """The whole tensor; every rank of the mesh must call it."""
        whole = local.detach()
        for axis, placement in reversed(list(enumerate(self.placements))):
            if placement.kind == "S":
                whole = torch.ops.shardwright.all_gather(
                    whole, placement.dim, placement.blocks, self.mesh_shape[axis],
                    self.groups.names[axis],
                )  # fmt: skip
        return whole

    def wrap(self, local: Tensor) -> Tensor:
        """The shard as the model holds it: a DTensor sharing its memory; alone: the shard."""
        return self._dtensor(local, self.placements)

    def state_dict_form(self, local: Tensor) -> Tensor:
        """The tensor as state dicts show it; collective unless `is_plain`."""
        if self.is_plain:
            return self.wrap(local.detach())
        plain = [DimPlacement(p.kind, p.dim) for p in self.placements]
        part = self.join(local)
        for axis, placement in enumerate(plain):
            if placement.kind == "S":
                part = part.chunk(self.mesh_shape[axis], placement.dim)[self.coordinate[axis]]
        return self._dtensor(part.contiguous(), plain)

    def _dtensor(self, local: Tensor, placements: Sequence[DimPlacement]) -> Tensor:
        if self.groups.device_mesh is None:
            return local
        shape = torch.Size(self.tensor.global_shape)
        return DTensor.from_local(
            local,
            self.groups.device_mesh,
            [_torch_placement(p) for p in placements],
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )


def _torch_placement(placement: DimPlacement) -> Placement:
    if placement.kind == "R":
        return Replicate()
    if placement.blocks == 1:
        return Shard(placement.dim)
    return _StridedShard(placement.dim, split_factor=placement.blocks)


def whole_of(value: Tensor) -> Tensor:
    """A tensor from a loaded state dict, whole: DTensors are gathered (by every rank)."""
    return value.full_tensor() if isinstance(value, DTensor) else value
