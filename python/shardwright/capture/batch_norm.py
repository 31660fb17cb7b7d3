"""Batch normalisation from per-channel sums: a sharded batch has the one-device statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from shardwright.capture.ops.library import accumulate_dtype
from shardwright.capture.reductions import centered_on_mean, count_of

Assign = Callable[[Tensor, Tensor], None]

# Elements per channel of the batch norm that is being recorded, None outside of any. Its nodes keep
# the number (`meta["batch_norm_count"]`), for microbatches have statistics of their own.
STATISTICS_COUNT: ContextVar[int | None] = ContextVar("statistics_count", default=None)


@contextmanager
def _statistics_over(count: int | None) -> Iterator[None]:
    token = STATISTICS_COUNT.set(count)
    try:
        yield
    finally:
        STATISTICS_COUNT.reset(token)


def _per_channel(value: Tensor, x: Tensor) -> Tensor:
    """Shapes a per-channel vector [c] to broadcast over x [n, c, ...]."""
    return value.reshape([1, -1] + [1] * (x.dim() - 2))


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Batch norm from sums: output, saved mean and inverse deviation, new running statistics."""
    with _statistics_over(count_of(x, _batch_dims(x)) if training else None):
        return _normalized(x, weight, bias, running_mean, running_var, training, momentum, eps)


def _batch_dims(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    dims = _batch_dims(x)
    wide_dtype = accumulate_dtype(x.dtype)
    if training:
        centered, mean = centered_on_mean(x, dims)
        count = count_of(x, dims)
        var = (centered * centered).sum(dims) / count
        mean = mean.reshape(var.shape)
        invstd = (var + eps).rsqrt()
        if running_mean is not None:
            blended = mean.to(running_mean.dtype) * momentum
            running_mean = running_mean * (1 - momentum) + blended
        if running_var is not None:
            unbiased = var * (count / max(count - 1, 1))
            running_var = running_var * (1 - momentum) + unbiased.to(running_var.dtype) * momentum
        saved_mean, saved_invstd = mean, invstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = running_mean.to(wide_dtype)
        invstd = (running_var.to(wide_dtype) + eps).rsqrt()
        centered = x.to(wide_dtype) - _per_channel(mean, x)
        saved_mean = saved_invstd = x.new_empty((0,))
    out = centered * _per_channel(invstd, x)
    if weight is not None:
        out = out * _per_channel(weight.to(wide_dtype), x)
    if bias is not None:
        out = out + _per_channel(bias.to(wide_dtype), x)
    return out.to(x.dtype), saved_mean, saved_invstd, running_mean, running_var


def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """aten._native_batch_norm_legit.no_stats: batch statistics, none kept."""
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)[:3]


def batch_norm_no_training(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """aten._native_batch_norm_legit_no_training: with the running statistics."""
    return _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, saved_mean: Tensor | None, saved_invstd: Tensor | None,
    training: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of batch norm from per-channel sums (Ioffe and Szegedy 2015, section 3)."""
    with _statistics_over(count_of(x, _batch_dims(x)) if training else None):
        return _gradients(
            grad, x, weight, running_mean, running_var, saved_mean, saved_invstd, training, eps,
            output_mask,
        )  # fmt: skip


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, saved_mean: Tensor | None, saved_invstd: Tensor | None,
    training: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    dims = _batch_dims(x)
    wide = accumulate_dtype(x.dtype)
    grad = grad.to(wide)
    if training:
        assert saved_mean is not None
        assert saved_invstd is not None
        mean, invstd = saved_mean.to(wide), saved_invstd.to(wide)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, invstd = running_mean.to(wide), (running_var.to(wide) + eps).rsqrt()
    normalised = (x.to(wide) - _per_channel(mean, x)) * _per_channel(invstd, x)
    sum_grad = grad.sum(dims)
    sum_product = (grad * normalised).sum(dims)
    grad_x = None
    if output_mask[0]:
        scale = invstd if weight is None else invstd * weight.to(wide)
        inner = grad
        if training:
            count = count_of(x, dims)
            inner = inner - _per_channel(sum_grad / count, x)
            inner = inner - normalised * _per_channel(sum_product / count, x)
        grad_x = (inner * _per_channel(scale, x)).to(x.dtype)
    weight_dtype = x.dtype if weight is None else weight.dtype
    return (
        grad_x,
        sum_product.to(weight_dtype) if output_mask[1] else None,
        sum_grad.to(weight_dtype) if output_mask[2] else None,
    )


def batch_norm_backward_reserved(
    grad: Tensor, x: Tensor, weight: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, saved_mean: Tensor | None, saved_invstd: Tensor | None,
    training: bool, eps: float, output_mask: Sequence[bool], reserve: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """aten.batch_norm_backward: as batch_norm_backward; the reserved space is not used."""
    return batch_norm_backward(
        grad, x, weight, running_mean, running_var, saved_mean, saved_invstd, training, eps,
        output_mask,
    )  # fmt: skip


def batch_norm_in_place(
    assign: Assign, x: Tensor, weight: Tensor | None, bias: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """aten.native_batch_norm: running statistics get new values through `assign`."""
    out, mean, invstd, new_mean, new_var = _batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training and running_mean is not None and new_mean is not None:
        assign(running_mean, new_mean)
    if training and running_var is not None and new_var is not None:
        assign(running_var, new_var)
    return out, mean, invstd


def batch_norm_with_update(
    assign: Assign, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """aten._batch_norm_with_update: training mode of batch_norm_in_place."""
    out, mean, invstd = batch_norm_in_place(
        assign, x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, invstd, x.new_empty((0,), dtype=torch.uint8)
