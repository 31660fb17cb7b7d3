"""The one torch.library fragment that declares every capture op of the `shardwright` namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("shardwright", "FRAGMENT")  # type: ignore[no-untyped-call]


def define_op(
    schema: str, implementation: Callable[..., Any], fake: Callable[..., Any] | None = None
) -> None:
    """Declares `shardwright::<schema>` with one kernel for all real devices and a fake kernel.

    Args:
        schema: schema without the namespace, such as `pick(Tensor x, Tensor target) -> Tensor`.
        implementation: kernel in plain ATen, registered for CPU and CUDA tensors.
        fake: shape function used under FakeTensorMode; None for in-place ops that return nothing.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, implementation, key)  # type: ignore[no-untyped-call]
    if fake is None:
        LIBRARY.impl(name, _no_result, "Meta")  # type: ignore[no-untyped-call]
    else:
        torch.library.register_fake(f"shardwright::{name}", fake, lib=LIBRARY)


def _no_result(*args: Any, **kwargs: Any) -> None:
    """Shape function of an in-place op: nothing to compute."""


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype in which sums over elements of `dtype` are kept: fp64 for fp64, fp32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32
