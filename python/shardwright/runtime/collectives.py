"""Loads the C++ operators torch.ops.shardwright.{all_gather, ...} and the step ledger."""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401  (its libraries must be loaded before the extension)

from shardwright import _runtime

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shard_slice", "mask_partial")


def begin_step(step: int) -> None:
    """Starts a step of the ledger; its next collective has ordinal 0."""
    _runtime.begin_step(step)


def ledger_entries(limit: int = 64) -> list[dict[str, Any]]:
    """The newest collectives of this process, oldest first."""
    entries: list[dict[str, Any]] = _runtime.ledger_entries(limit)
    return entries


def last_ledger_entry() -> dict[str, Any] | None:
    """The newest collective, or None before the first."""
    entry: dict[str, Any] | None = _runtime.last_ledger_entry()
    return entry


def take_failure() -> dict[str, Any] | None:
    """The collective that failed since the last call, with its reason, or None."""
    failure: dict[str, Any] | None = _runtime.take_failure()
    return failure
