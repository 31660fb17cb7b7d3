"""Scaled dot product attention as one op per direction, the same on every device.

Shapes: q [batch, heads, length_q, dim], k and v [batch, kv_heads, length_kv, dim], mask
broadcastable to [batch, heads, length_q, length_kv], lse [batch, heads, length_q].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardwright.capture.ops.library import accumulate_dtype, define_op

_aten = torch.ops.aten


def _scores(
    q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """Masked, scaled q k^T in fp32 (fp64 for fp64): [batch, heads, length_q, length_kv]."""
    dtype = accumulate_dtype(q.dtype)
    scores = (q.to(dtype) @ k.to(dtype).transpose(-2, -1)) * scale
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -math.inf)
    return scores + attn_mask.to(dtype)


def _probabilities(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores - lse); rows in which nothing is allowed give zeros."""
    lse = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
    return torch.exp(scores - lse.unsqueeze(-1))


def _expand_kv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeats each key/value head over the query heads that share it."""
    group = q.shape[1] // k.shape[1]
    return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def _has_flash_kernel(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> bool:
    """Whether torch's blocked CPU kernel takes these inputs."""
    return (
        q.device.type == "cpu"
        and q.dim() == 4
        and q.shape[-1] == k.shape[-1] == v.shape[-1]
        and q.dtype in (torch.float32, torch.float64, torch.bfloat16)
        and q.numel() > 0
        and k.numel() > 0
        and (not is_causal or q.shape[-2] == k.shape[-2])
    )


def _float_mask(attn_mask: Tensor | None, q: Tensor) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype != torch.bool:
        return attn_mask
    return torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -math.inf)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if enable_gqa:
        k, v = _expand_kv(q, k, v)
    if attn_mask is None and _has_flash_kernel(q, k, v, is_causal):
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            q.contiguous(), k.contiguous(), v.contiguous(), 0.0, is_causal, scale=scale
        )
        return out.contiguous(), lse.contiguous()
    scores = _scores(q, k, attn_mask, is_causal, scale)
    lse = torch.logsumexp(scores, -1)
    out = _probabilities(scores, lse) @ v.to(scores.dtype)
    return out.to(q.dtype), lse


def _sdpa_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, out: Tensor,
    lse: Tensor, is_causal: bool, scale: float, enable_gqa: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kv_heads = k.shape[1]
    if enable_gqa:
        k, v = _expand_kv(q, k, v)
    if attn_mask is None and _has_flash_kernel(q, k, v, is_causal):
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), out, lse, 0.0,
            is_causal, scale=scale,
        )  # fmt: skip
    else:
        scores = _scores(q, k, attn_mask, is_causal, scale)
        probabilities = _probabilities(scores, lse)
        grad, out = grad.to(scores.dtype), out.to(scores.dtype)
        dv = probabilities.transpose(-2, -1) @ grad
        d_probabilities = grad @ v.to(scores.dtype).transpose(-2, -1)
        delta = (grad * out).sum(-1, keepdim=True)
        d_scores = probabilities * (d_probabilities - delta) * scale
        dq = d_scores @ k.to(scores.dtype)
        dk = d_scores.transpose(-2, -1) @ q.to(scores.dtype)
    if enable_gqa:
        dk = dk.unflatten(1, (kv_heads, -1)).sum(2)
        dv = dv.unflatten(1, (kv_heads, -1)).sum(2)
    return (
        dq.to(q.dtype).contiguous(),
        dk.to(k.dtype).contiguous(),
        dv.to(v.dtype).contiguous(),
    )


def _sdpa_fake(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=accumulate_dtype(q.dtype))


def _sdpa_backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, out: Tensor,
    lse: Tensor, is_causal: bool, scale: float, enable_gqa: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


define_op(
    "sdpa(Tensor q, Tensor k, Tensor v, Tensor? attn_mask, bool is_causal, float scale, "
    "bool enable_gqa) -> (Tensor, Tensor)",
    _sdpa,
    _sdpa_fake,
)
define_op(
    "sdpa_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attn_mask, Tensor out, "
    "Tensor lse, bool is_causal, float scale, bool enable_gqa) -> (Tensor, Tensor, Tensor)",
    _sdpa_backward,
    _sdpa_backward_fake,
)


class _Sdpa(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, is_causal, scale, enable_gqa):  # type: ignore[no-untyped-def]
        out, lse = torch.ops.shardwright.sdpa(q, k, v, mask, is_causal, scale, enable_gqa)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.options = (is_causal, scale, enable_gqa)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        q, k, v, mask, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.ops.shardwright.sdpa_backward(
            grad, q, k, v, mask, out, lse, *ctx.options
        )
        return dq, dk, dv, None, None, None, None


def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float,
    enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """Attention without dropout, differentiable in q, k and v (4-D, as at the top of the file)."""
    result: Tensor = _Sdpa.apply(q, k, v, attn_mask, is_causal, scale, enable_gqa)  # type: ignore[no-untyped-call]
    return result
