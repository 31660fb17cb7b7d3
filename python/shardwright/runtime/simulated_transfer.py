"""A stage-to-stage transfer on the list of all ranks' shards, in plain torch.

Independent of the C++ class that does it on process groups, which must give the same results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from shardwright import _core


def simulate_transfer(plan: _core.TransferPlan, shards: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Performs the steps of a plan one after the other.

    Args:
        plan: of `_core.plan_transfer`.
        shards: by global rank the source shard of every rank of the source mesh.

    Returns:
        By global rank the target shard of every rank of the target mesh, contiguous.
    """
    like = next(iter(shards.values()))
    sources = {rank: shard.reshape(plan.source_sizes) for rank, shard in shards.items()}
    targets: dict[int, Tensor] = {}
    for rank in plan.target_ranks:
        targets[rank] = torch.empty(plan.target_sizes, dtype=like.dtype, device=like.device)
    for step in plan.steps:
        given = sources if step.kind in ("copy", "send") else targets
        for taken, put in step.copies:
            box = _box(given[step.source_rank], taken)
            _box(targets[step.target_rank], put).copy_(box)
    return {rank: target.reshape(plan.target_shape) for rank, target in targets.items()}


def _box(shard: Tensor, region: Sequence[tuple[int, int]]) -> Tensor:
    """View of a region of a shard that is given in its atoms' sizes."""
    for position, (begin, size) in enumerate(region):
        shard = shard.narrow(position, begin, size)
    return shard
