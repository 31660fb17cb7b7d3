"""One rank's part of moving a value from one stage's mesh to another's, on process groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright import _core, _runtime
from shardwright.lowering.arguments import parse_dtype

# Microbatches and transfers that a message's tag can tell apart.
_MICROBATCHES = 1 << 16
_TRANSFERS = 1 << 14


class PendingTransfer:
    """A transfer under way; `StageTransfer.start` makes it."""

    def __init__(self, pending: _runtime.PendingTransfer) -> None:
        self._pending = pending

    def wait(self) -> Tensor | None:
        """Waits for this rank's messages, and exchanges with other ranks of the target mesh.

        Every rank of the target mesh must come to its own `wait`, those of several transfers in one
        order. Call it once.

        Returns:
            The target shard, contiguous, on ranks of the target mesh; None elsewhere.

        Raises:
            RuntimeError: of torch, when a message fails; `collectives.take_failure` then has
                operation, peer and context, and `attribution.judge` the error to raise.
        """
        return self._pending.wait()


class StageTransfer:
    """A value's transfer between two stages, for any number of microbatches.

    Attributes:
        plan: what all ranks do.
        rank: global rank of this process.
        stages: the stage it comes from and the one it goes to.
    """

    def __init__(
        self,
        plan: _core.TransferPlan,
        rank: int,
        device: torch.device,
        *,
        stages: tuple[int, int],
        index: int,
        group: dist.ProcessGroup,
        gather_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Prepares the transfer; every rank of both meshes does so with the same plan.

        Args:
            plan: of `_core.plan_transfer`.
            rank: global rank of this process.
            device: where the shards live.
            stages: the stage the value comes from and the one it goes to, for messages.
            index: number of this transfer among those that share `group`, from 0.
            group: has every rank of both meshes. On NCCL it must have run a collective before, and
                every rank must start the transfers of one group in the same order.
            gather_group: the ranks of the target mesh; needed on ranks of the target mesh where
                `group` is NCCL (exchanges between them must not wait behind receives that were
                posted early); without it they use `group`.

        Raises:
            InternalError: E902 when the plan does not fit the groups.
        """
        self.plan = plan
        self.rank = rank
        self.stages = stages
        self._index = index % _TRANSFERS
        steps = [
            (step.kind, step.source_rank, step.target_rank, step.bytes, step.copies)
            for step in plan.steps
            if rank in (step.source_rank, step.target_rank)
        ]
        self._transfer = _runtime.StageTransfer(
            rank=rank,
            steps=steps,
            has_source=rank in plan.source_ranks,
            has_target=rank in plan.target_ranks,
            source_sizes=plan.source_sizes,
            target_shape=plan.target_shape,
            target_sizes=plan.target_sizes,
            dtype=parse_dtype(plan.dtype),
            device=device,
            sends=_channel(group),
            gathers=_channel(group if gather_group is None else gather_group),
        )

    def start(self, shard: Tensor | None, microbatch: int) -> PendingTransfer:
        """Posts this rank's sends and receives and returns at once.

        Args:
            shard: the source shard on ranks of the source mesh, not to be changed before `wait`;
                None elsewhere.
            microbatch: which one it belongs to.

        Raises:
            InternalError: E902 for a shard of another size or dtype than the plan's.
            RuntimeError: of torch, as `PendingTransfer.wait`.
        """
        tag = self._index * _MICROBATCHES + microbatch % _MICROBATCHES
        context = f"stage {self.stages[0]} -> {self.stages[1]}, microbatch {microbatch}"
        return PendingTransfer(self._transfer.start(shard, tag, context))


def _channel(group: dist.ProcessGroup) -> tuple[str, list[int]]:
    """Name of a process group for the C++ side, and the global ranks of its members."""
    ranks: list[Any] = dist.get_process_group_ranks(group)
    return group.group_name, [int(rank) for rank in ranks]
