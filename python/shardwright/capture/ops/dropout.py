"""Dropout whose mask is a pure function of (seed, stream, position in the unsharded tensor).

So the same elements are dropped on every mesh, and the backward pass draws the mask again
instead of keeping it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shardwright.capture.ops.library import define_op

_MASK32 = 0xFFFFFFFF


def _mix(h: Tensor) -> Tensor:
    """Avalanche of 32-bit values held in int64 (finalizer of MurmurHash3, public domain)."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _MASK32
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _MASK32
    return h ^ (h >> 16)


def _global_index(
    shape: Sequence[int], global_shape: Sequence[int], offset: Sequence[int], device: torch.device
) -> Tensor:
    """Row-major position of each local element within the unsharded tensor, int64."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    stride = 1
    for dim in range(len(shape) - 1, -1, -1):
        position = torch.arange(shape[dim], device=device) + offset[dim]
        index = index + (position * stride).view([-1] + [1] * (len(shape) - 1 - dim))
        stride *= global_shape[dim]
    return index.expand(shape)


def _random_bits(
    shape: Sequence[int],
    seed: Tensor,
    stream: int,
    global_shape: Sequence[int] | None,
    offset: Sequence[int] | None,
    device: torch.device,
) -> Tensor:
    """Uniform integers in [0, 2^32), int64, one per element."""
    index = _global_index(
        shape,
        shape if global_shape is None else global_shape,
        [0] * len(shape) if offset is None else offset,
        device,
    )
    seed = seed.to(device=device, dtype=torch.int64)
    low = _mix((seed & _MASK32) ^ _mix(torch.full_like(seed, (stream * 0x9E3779B9) & _MASK32)))
    high = _mix(((seed >> 32) & _MASK32) ^ low)
    mixed = _mix((index & _MASK32) ^ low)
    return _mix((mixed + ((index >> 32) & _MASK32) * 0x27D4EB2F + high) & _MASK32)


def _dropout(
    x: Tensor,
    seed: Tensor,
    stream: int,
    p: float,
    global_shape: Sequence[int] | None = None,
    offset: Sequence[int] | None = None,
) -> Tensor:
    if p >= 1.0:
        return torch.zeros_like(x)
    bits = _random_bits(x.shape, seed, stream, global_shape, offset, x.device)
    keep = bits >= round(p * 2**32)
    return torch.where(keep, x * (1.0 / (1.0 - p)), torch.zeros_like(x))


def _like(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return x.new_empty(x.shape)


define_op(
    "dropout(Tensor x, Tensor seed, int stream, float p, SymInt[]? global_shape=None, "
    "SymInt[]? offset=None) -> Tensor",
    _dropout,
    _like,
)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed, stream, p):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(seed)
        ctx.options = (stream, p)
        return torch.ops.shardwright.dropout(x, seed, stream, p)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (seed,) = ctx.saved_tensors
        again = _Dropout.apply(grad, seed, *ctx.options)  # type: ignore[no-untyped-call]
        return again, None, None, None


def dropout(x: Tensor, seed: Tensor, stream: int, p: float) -> Tensor:
    """Zeroes each element with probability p and scales the rest by 1 / (1 - p).

    Args:
        x: any shape.
        seed: 0-d int64, new for every step.
        stream: number of this call within the step; different calls draw independent masks.
        p: probability in [0, 1].
    """
    result: Tensor = _Dropout.apply(x, seed, stream, p)  # type: ignore[no-untyped-call]
    return result
