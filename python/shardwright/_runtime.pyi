"""Types of the compiled runtime. Each part is bound by a file in csrc/bindings/runtime."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

def build_info() -> dict[str, str | bool]: ...
def begin_step(step: int) -> None: ...
def ledger_entries(limit: int = ...) -> list[dict[str, Any]]: ...
def last_ledger_entry() -> dict[str, Any] | None: ...
def take_failure() -> dict[str, Any] | None: ...

_Region: TypeAlias = Sequence[tuple[int, int]]
_Step: TypeAlias = tuple[str, int, int, int, Sequence[tuple[_Region, _Region]]]

class PendingTransfer:
    def wait(self) -> torch.Tensor | None: ...

class StageTransfer:
    """See shardwright.runtime.stage_transfer, which makes it from a plan."""

    def __init__(
        self,
        *,
        rank: int,
        steps: Sequence[_Step],
        has_source: bool,
        has_target: bool,
        source_sizes: Sequence[int],
        target_shape: Sequence[int],
        target_sizes: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        sends: tuple[str, Sequence[int]],
        gathers: tuple[str, Sequence[int]],
    ) -> None: ...
    def start(self, shard: torch.Tensor | None, tag: int, context: str) -> PendingTransfer: ...
