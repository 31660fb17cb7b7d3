"""Do all ranks mean the same? Compared before the first step and, for batches, on the first steps.

A mismatch that goes unnoticed makes collectives hang or add the wrong things silently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.errors import RankMismatchError, ShardwrightError
from shardwright.lowering.program import Program
from shardwright.runtime.groups import World
from shardwright.version import __version__


class LostContactError(RuntimeError):
    """The ranks could not talk to each other; the text is torch's."""


def gather_from_all(value: Any, world: World) -> list[Any]:
    """One value per rank, on every rank."""
    if not world.has_group:
        return [value]
    values: list[Any] = [None] * world.size
    try:
        dist.all_gather_object(values, value, group=world.control)
    except RuntimeError as error:
        raise LostContactError(str(error)) from error
    return values


def from_first(value: Any, world: World) -> Any:
    """Rank 0's value, on every rank."""
    if not world.has_group:
        return value
    box = [value if world.rank == 0 else None]
    try:
        dist.broadcast_object_list(box, src=0, group=world.control)
    except RuntimeError as error:
        raise LostContactError(str(error)) from error
    return box[0]


def check_all_succeeded(error: BaseException | None, what: str, world: World) -> None:
    """Raises on every rank when any rank has an error: its own there, E454 on the others."""
    texts = gather_from_all(None if error is None else str(error), world)
    if error is not None:
        raise error
    failed = [rank for rank, text in enumerate(texts) if text is not None]
    if failed:
        raise RankMismatchError(
            f"{what} failed on rank {failed[0]}.",
            code="E454",
            values=[f"rank {rank}: {texts[rank].splitlines()[0]}" for rank in failed[:4]],
            advice=f"see the error of rank {failed[0]}",
        )


def step_facts(
    program_free: Mapping[str, str], inputs: Sequence[Any], graph_hash: str
) -> dict[str, str]:
    """What must be equal before planning, from general to special.

    Args:
        program_free: versions and options by name.
        inputs: labels of the graph inputs.
        graph_hash: of the step graph.
    """
    facts = {"shardwright version": __version__, "torch version": torch.__version__}
    facts.update(program_free)
    for kind in ("parameter", "buffer", "optimizer_state", "batch", "hyper"):
        for spec in inputs:
            if spec.kind == kind:
                shape = list(spec.meta.shape)
                facts[f"{kind} {spec.name}"] = f"{spec.meta.dtype} {shape}".removeprefix("torch.")
    facts["captured graph"] = graph_hash
    return facts


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def program_facts(plan_text: str, program: Program) -> dict[str, str]:
    """What must be equal before the first step."""
    return {
        "plan": digest(plan_text),
        "mesh": str(program.table.mesh_shape),
        "program": program.fingerprint(),
    }


def check_facts(facts: Mapping[str, str], world: World) -> None:
    """Raises RankMismatchError E451 on every rank when facts differ, naming the first difference.

    Only digests travel unless they differ.
    """
    digest = hashlib.sha256(json.dumps(list(facts.items())).encode()).hexdigest()
    if len(set(gather_from_all(digest, world))) == 1:
        return
    everyone = gather_from_all(dict(facts), world)
    names = list(dict.fromkeys(name for theirs in everyone for name in theirs))
    for name in names:
        groups: dict[str, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            groups.setdefault(theirs.get(name, "absent"), []).append(rank)
        if len(groups) > 1:
            raise RankMismatchError(
                f"the ranks disagree on {name}.",
                code="E451",
                values=[f"{_ranks(ranks)}: {value}" for value, ranks in groups.items()],
                advice="start every rank with the same code, arguments and versions",
            )
    raise RankMismatchError(
        "the ranks list the same facts in different orders.",
        code="E451",
        advice="build the model and the arguments in the same order on every rank",
    )


def checksum(tensor: Tensor) -> int:
    """A number that changes when values change or trade places; of the bytes, so NaN counts too."""
    data = tensor.detach().contiguous().flatten().view(torch.uint8)
    if data.numel() % 4 == 0 and data.storage_offset() % 4 == 0:
        data = data.view(torch.int32)
    columns = 251
    rows = data.numel() // columns
    head = data[: rows * columns].view(rows, columns).sum(0, dtype=torch.int64)
    tail = data[rows * columns :].to(torch.int64)
    weights = torch.arange(1, columns + 1, device=data.device)
    return int(((head * weights).sum() + (tail * weights[: tail.numel()]).sum()).item())


def check_equal_tensors(
    tensors: Mapping[str, Tensor], what: str, code: str, advice: str, world: World
) -> None:
    """Raises RankMismatchError when ranks hold different values under one name.

    Args:
        tensors: by name.
        what: "batch" or "parameters", for the message.
        code: of the error.
        advice: what to do.
        world: who takes part.
    """
    if not world.has_group or world.size == 1:
        return
    sums = {name: checksum(tensor) for name, tensor in tensors.items()}
    everyone = gather_from_all(sums, world)
    for name in sums:
        groups: dict[int, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            groups.setdefault(theirs.get(name, -1), []).append(rank)
        if len(groups) > 1:
            raise RankMismatchError(
                f"the ranks hold different {what}: {name}.",
                code=code,
                values=[f"{_ranks(ranks)}: checksum {value}" for value, ranks in groups.items()],
                advice=advice,
            )


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def portable(error: BaseException) -> BaseException:
    """The error if it can travel to other ranks, else one that says the same."""
    if isinstance(error, ShardwrightError):
        return error
    return RankMismatchError(
        f"planning failed on rank 0: {type(error).__name__}: {error}", code="E454"
    )
