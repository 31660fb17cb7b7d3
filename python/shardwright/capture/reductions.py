"""Means, variances and norms as plain sums, so that shards of a reduced dim add up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shardwright.capture.ops.library import accumulate_dtype


def dims_of(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    """Dims as a sorted list of non-negative numbers; none given means all."""
    if isinstance(dim, int):
        dim = [dim]
    if dim is None or (len(dim) == 0):
        return list(range(x.dim()))
    return sorted(d % max(x.dim(), 1) for d in dim)


def count_of(x: Tensor, dims: Sequence[int]) -> int:
    """Number of elements that a reduction over the dims adds up."""
    return math.prod(x.shape[d] for d in dims) if x.dim() else 1


def mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """aten.mean.default."""
    return mean_dim(x, None, dtype=dtype)


def mean_dim(
    x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """aten.mean.dim: the sum over the number of elements, added in the accumulation dtype."""
    dims = dims_of(x, dim)
    dtype = x.dtype if dtype is None else dtype
    total = x.to(accumulate_dtype(dtype)).sum(dims, keepdim)
    return (total / count_of(x, dims)).to(dtype)


def centered_on_mean(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """X minus its mean, and the mean with kept dims, in the accumulation dtype."""
    wide = x.to(accumulate_dtype(x.dtype))
    mean = wide.sum(dims, True) / count_of(x, dims)
    return wide - mean, mean


def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """aten.var_mean.correction: variance and mean from two sums."""
    dims = dims_of(x, dim)
    centered, mean = centered_on_mean(x, dims)
    divisor = max(count_of(x, dims) - (1 if correction is None else correction), 0)
    total = (centered * centered).sum(dims, keepdim)
    var = total / divisor if divisor else total / 0.0
    if not keepdim:
        mean = mean.reshape(var.shape)
    return var.to(x.dtype), mean.to(x.dtype)


def var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    """aten.var.correction."""
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def vector_norm(
    x: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """aten.linalg_vector_norm: for order 2 the root of the sum of squares."""
    dims = dims_of(x, dim)
    dtype = x.dtype if dtype is None else dtype
    wide = x.to(accumulate_dtype(dtype))
    if ord == 2:
        result = (wide * wide).sum(dims, keepdim).sqrt()
    elif ord == 1:
        result = wide.abs().sum(dims, keepdim)
    elif ord == math.inf:
        result = wide.abs().amax(dims, keepdim)
    elif ord == -math.inf:
        result = wide.abs().amin(dims, keepdim)
    elif ord == 0:
        result = (wide != 0).to(wide.dtype).sum(dims, keepdim)
    else:
        result = wide.abs().pow(ord).sum(dims, keepdim).pow(1.0 / ord)
    return result.to(dtype)
