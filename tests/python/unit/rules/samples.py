"""One or more small calls of every op that has a built-in rule.

Sums of whole numbers are compared bit by bit; other ops run in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.python.unit.rules.rule_oracle import Sample
from torch import Tensor

import shardwright.capture.ops
import shardwright.lowering.shard_ops

aten = torch.ops.aten
own = torch.ops.shardwright
assert shardwright.capture.ops is not None


class Source:
    """Seeded random tensors."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(11)

    def ints(self, *shape: int) -> Tensor:
        """Whole numbers in float32."""
        return torch.randint(-3, 4, shape, generator=self.generator).float()

    def reals(self, *shape: int) -> Tensor:
        """float64 between 0.1 and 0.9."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) * 0.8 + 0.1

    def below(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)

    def bools(self, *shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.generator).bool()

    def distinct(self, *shape: int) -> Tensor:
        """Different numbers in random order, so that sorting has one answer."""
        count = torch.Size(shape).numel()
        return torch.randperm(count, generator=self.generator).double().reshape(shape)


def all_samples() -> list[Sample]:
    source = Source()
    makers: list[Callable[[Source], list[Sample]]] = [
        matmuls, unary, binary, linear_pointwise, casts, views, slices, joins, reductions, scans,
        normalizations, convolutions, pooling, embeddings, indexing, creation, attention, losses,
        updates, dropout,
    ]  # fmt: skip
    return [sample for maker in makers for sample in maker(source)]


def op_named(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


def matmuls(s: Source) -> list[Sample]:
    return [
        Sample(aten.mm.default, (s.ints(4, 8), s.ints(8, 12))),
        Sample(
            aten.mm.default,
            (s.ints(8, 8), s.ints(8, 12)),
            fine_shapes={0: (2, 4, 2, 4), 1: (8, 3, 4)},
        ),
        Sample(aten.bmm.default, (s.ints(4, 4, 8), s.ints(4, 8, 4))),
        Sample(aten.bmm.default, (s.ints(8, 3, 4), s.ints(8, 4, 3)), fine_shapes={0: (2, 4, 3, 4)}),
        Sample(aten.addmm.default, (s.ints(8), s.ints(4, 8), s.ints(8, 8))),
        Sample(aten.addmm.default, (s.ints(4, 1), s.ints(4, 8), s.ints(8, 8))),
        Sample(aten.baddbmm.default, (s.ints(4, 4, 4), s.ints(4, 4, 8), s.ints(4, 8, 4))),
        Sample(aten.mv.default, (s.ints(4, 8), s.ints(8))),
        Sample(aten.dot.default, (s.ints(8), s.ints(8))),
    ]


UNARY = """hardshrink.default softshrink.default log_sigmoid_forward.default
abs.default acos.default acosh.default asin.default asinh.default atan.default
atanh.default ceil.default celu.default cos.default cosh.default elu.default erf.default
erfc.default erfinv.default exp.default exp2.default expm1.default floor.default frac.default
gelu.default hardsigmoid.default hardswish.default hardtanh.default isfinite.default isinf.default
isnan.default leaky_relu.default lgamma.default digamma.default log.default log10.default
log1p.default log2.default logical_not.default logit.default mish.default nan_to_num.default
reciprocal.default relu.default relu6.default round.default rsqrt.default selu.default sgn.default
sigmoid.default sign.default signbit.default silu.default sin.default sinh.default softplus.default
sqrt.default square.default tan.default tanh.default trunc.default"""

WITH_SCALAR = """add.Scalar sub.Scalar rsub.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar
ge.Scalar fmod.Scalar remainder.Scalar pow.Tensor_Scalar clamp_min.default clamp_max.default
clamp.default copysign.Scalar floor_divide.Scalar fill.Scalar"""

WITH_TENSOR = """eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor maximum.default
minimum.default fmax.default fmin.default fmod.Tensor remainder.Tensor pow.Tensor_Tensor
atan2.default hypot.default logaddexp.default logical_and.default logical_or.default
logical_xor.default clamp_min.Tensor clamp_max.Tensor copysign.Tensor floor_divide.default
rsub.Tensor xlogy.Tensor"""


def unary(s: Source) -> list[Sample]:
    samples = [
        Sample(op_named(name), (s.reals(4, 6) - 0.5 * (name in ("relu.default", "sign.default")),),
               exact=False)
        for name in UNARY.split()
    ]  # fmt: skip
    samples += [Sample(op_named(name), (s.reals(4, 8), 0.5), exact=False) for name in
                WITH_SCALAR.split()]  # fmt: skip
    flags = s.below(8, 4, 6)
    samples += [
        Sample(aten.bitwise_not.default, (s.bools(4, 6),)),
        Sample(aten.round.decimals, (s.reals(4, 6),), {"decimals": 1}, exact=False),
        Sample(aten.threshold.default, (s.reals(4, 6), 0.5, 0.0), exact=False),
        Sample(aten.pow.Scalar, (2.0, s.reals(4, 6)), exact=False),
    ]
    for name in ("bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar"):
        samples.append(Sample(op_named(name), (flags, 3)))
    for name in ("bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar"):
        samples.append(Sample(op_named(name), (flags, 1)))
    return samples


def binary(s: Source) -> list[Sample]:
    samples = [
        Sample(op_named(name), (s.reals(4, 6), s.reals(6)), exact=False)
        for name in WITH_TENSOR.split()
    ]
    flags, other = s.below(8, 4, 6), s.below(3, 4, 1)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
                 "bitwise_right_shift"):  # fmt: skip
        samples.append(Sample(op_named(f"{name}.Tensor"), (flags, other)))
    return [
        *samples,
        Sample(aten.clamp.Tensor, (s.reals(4, 6), s.reals(6), s.reals(4, 1)), exact=False),
        Sample(aten.fill.Tensor, (s.ints(4, 6), s.ints())),
        Sample(aten.where.ScalarOther, (s.bools(4, 6), s.ints(4, 6), 0.0)),
        Sample(aten.where.ScalarSelf, (s.bools(4, 6), 0.0, s.ints(4, 6))),
    ]


def linear_pointwise(s: Source) -> list[Sample]:
    grad_like = """threshold_backward.default hardshrink_backward.default
    softshrink_backward.default
    silu_backward.default leaky_relu_backward.default
    gelu_backward.default hardswish_backward.default hardsigmoid_backward.default
    logit_backward.default hardtanh_backward.default softplus_backward.default
    tanh_backward.default sigmoid_backward.default"""
    extra: dict[str, tuple[Any, ...]] = {
        "threshold_backward.default": (0.5,),
        "hardshrink_backward.default": (0.5,),
        "softshrink_backward.default": (0.5,),
        "leaky_relu_backward.default": (0.1, False),
        "hardtanh_backward.default": (0.2, 0.7),
        "softplus_backward.default": (1.0, 20.0),
    }
    samples = [
        Sample(op_named(name), (s.reals(4, 8), s.reals(4, 8), *extra.get(name, ())), exact=False)
        for name in grad_like.split()
    ]
    samples.append(
        Sample(
            aten.elu_backward.default,
            (s.reals(4, 8), 1.0, 1.0, 1.0, False, s.reals(4, 8)),
            exact=False,
        )
    )
    buffer = aten.log_sigmoid_forward(s.reals(4, 8))[1]
    samples += [
        Sample(
            aten.log_sigmoid_backward.default, (s.reals(4, 8), s.reals(4, 8), buffer), exact=False
        ),
        Sample(aten._prelu_kernel.default, (s.ints(4, 8), s.ints(1, 8))),
        Sample(aten._prelu_kernel_backward.default, (s.ints(4, 8), s.ints(4, 8), s.ints(1, 8))),
    ]
    halves = torch.tensor([1.0, 2.0, 4.0, 0.5]).repeat(2)
    return [
        *samples,
        *(Sample(op_named(f"{name}.default"), (s.ints(4, 8),)) for name in
          ("neg", "clone", "positive", "lift_fresh_copy")),
        Sample(aten.add.Tensor, (s.ints(4, 8), s.ints(4, 8))),
        Sample(aten.add.Tensor, (s.ints(4, 8), s.ints(8)), {"alpha": 2}),
        Sample(aten.add.Tensor, (s.ints(8, 4), s.ints(4)), fine_shapes={0: (2, 4, 4), 1: (2, 2)}),
        Sample(aten.sub.Tensor, (s.ints(4, 8), s.ints(4, 1))),
        Sample(aten.mul.Tensor, (s.ints(4, 8), s.ints(4, 8))),
        Sample(aten.mul.Tensor, (s.ints(4, 8), s.ints())),
        Sample(aten.mul.Scalar, (s.ints(4, 8), 2.0)),
        Sample(aten.div.Scalar, (s.ints(4, 8), 4.0)),
        Sample(aten.div.Tensor, (s.ints(4, 8), halves)),
        Sample(aten.true_divide.Tensor, (s.ints(4, 8), halves)),
        Sample(aten.div.Tensor_mode, (s.ints(4, 8), halves), {"rounding_mode": "floor"}),
        Sample(aten.div.Scalar_mode, (s.ints(4, 8), 2.0), {"rounding_mode": "trunc"}),
        Sample(aten.where.self, (s.bools(4, 8), s.ints(4, 8), s.ints(8))),
        Sample(aten.copy.default, (s.ints(4, 8), s.ints(8))),
        Sample(aten.lerp.Scalar, (s.ints(4, 8), s.ints(4, 8), 0.5)),
        Sample(aten.lerp.Tensor, (s.ints(4, 8), s.ints(4, 8), s.bools(4, 8).float())),
        Sample(aten.addcmul.default, (s.ints(4, 8), s.ints(4, 8), s.ints(8))),
        Sample(aten.addcdiv.default, (s.ints(4, 8), s.ints(4, 8), halves)),
        Sample(aten.masked_fill.Tensor, (s.ints(4, 8), s.bools(4, 8), s.ints())),
        Sample(aten.masked_fill.Scalar, (s.ints(4, 8), s.bools(8), 0.0)),
        Sample(aten.masked_fill.Scalar, (s.ints(4, 8), s.bools(8), 3.0)),
    ]  # fmt: skip


def casts(s: Source) -> list[Sample]:
    convert = torch.ops.prims.convert_element_type.default
    pairs = [
        (s.ints(4, 8), torch.float64),
        (s.ints(4, 8), torch.bfloat16),
        (s.ints(4, 8).to(torch.bfloat16), torch.float32),
        (s.bools(4, 8), torch.int64),
        (s.below(9, 4, 8), torch.float32),
    ]
    return [
        sample
        for x, dtype in pairs
        for sample in (
            Sample(aten._to_copy.default, (x,), {"dtype": dtype}),
            Sample(convert, (x, dtype)),
        )
    ]


def views(s: Source) -> list[Sample]:
    x = s.ints(4, 6, 8)
    return [
        Sample(aten.view.default, (x, [24, 8])),
        Sample(aten.view.default, (x, [4, 6, 2, 4])),
        Sample(aten.view.default, (x, [4, 3, 16])),
        Sample(aten.view.default, (s.ints(6, 4), [4, 6])),
        Sample(aten.view.default, (s.ints(4, 1, 8), [1, 4, 8, 1])),
        Sample(aten._unsafe_view.default, (x, [4, 48])),
        Sample(aten.reshape.default, (x, [192])),
        Sample(aten.view_copy.default, (x, [24, 8])),
        Sample(aten.unsqueeze.default, (x, 1)),
        Sample(aten.alias.default, (x,)),
        Sample(aten.detach.default, (x,)),
        Sample(aten.lift_fresh.default, (x,)),
        Sample(aten.squeeze.default, (s.ints(4, 1, 8),)),
        Sample(aten.squeeze.dim, (s.ints(4, 1, 8), 0)),
        Sample(aten.squeeze.dims, (s.ints(4, 1, 8), [1, 2])),
        Sample(aten.permute.default, (x, [2, 0, 1])),
        Sample(aten.permute.default, (s.ints(8, 4), [-1, 0]), fine_shapes={0: (2, 4, 4)}),
        Sample(aten.transpose.int, (x, 0, -1)),
        Sample(aten.t.default, (s.ints(4, 8),)),
        Sample(aten.expand.default, (s.ints(4, 1, 8), [2, 4, 4, 8])),
        Sample(aten.expand.default, (s.ints(4, 8), [-1, 8])),
        Sample(aten.repeat.default, (s.ints(4, 8), [2, 1, 2])),
        Sample(aten.flip.default, (x, [1])),
        Sample(aten.roll.default, (x, [1], [0])),
        Sample(aten.roll.default, (x, [3])),
        Sample(aten.tril.default, (s.ints(4, 8, 8),)),
        Sample(aten.triu.default, (s.ints(4, 8, 8), 1)),
    ]


def slices(s: Source) -> list[Sample]:
    x = s.ints(4, 24)
    far = torch.iinfo(torch.int64).max
    return [
        Sample(aten.slice.Tensor, (x, 1, 8, 16)),
        Sample(aten.slice.Tensor, (x, 1, 16, far)),
        Sample(aten.slice.Tensor, (x, 1, -8, far)),
        Sample(aten.slice.Tensor, (x, 1, 0, 16)),
        Sample(aten.slice.Tensor, (x, 1, 0, far)),
        Sample(aten.slice.Tensor, (x, 1, 3, 20)),
        Sample(aten.slice.Tensor, (x, 1, 0, 24, 2)),
        Sample(aten.slice.Tensor, (x, 1, None, 8)),
        Sample(aten.slice.Tensor, (x, 1, 8, 16), fine_shapes={0: (4, 3, 4, 2)}),
        Sample(aten.select.int, (x, 0, 2)),
        Sample(aten.select.int, (x, -1, -1)),
        Sample(aten.slice_backward.default, (s.ints(4, 8), [4, 24], 1, 8, 16, 1)),
        Sample(aten.slice_backward.default, (s.ints(4, 8), [4, 24], 1, 16, far, 1)),
        Sample(aten.slice_backward.default, (s.ints(4, 12), [4, 24], 1, 0, 24, 2)),
        Sample(aten.select_backward.default, (s.ints(4), [4, 24], 1, 5)),
        Sample(aten.slice_scatter.default, (x, s.ints(4, 8), 1, 8, 16)),
        Sample(aten.select_scatter.default, (x, s.ints(24), 0, 1)),
        Sample(aten.diagonal.default, (s.ints(4, 6, 6), 1, 1, 2)),
        Sample(aten.diagonal_backward.default, (s.ints(4, 5), [4, 6, 6], 1, 1, 2)),
        Sample(aten.unfold.default, (s.ints(4, 8), 1, 4, 2)),
        Sample(aten.unfold_backward.default, (s.ints(4, 3, 4), [4, 8], 1, 4, 2)),
    ]


def joins(s: Source) -> list[Sample]:
    return [
        Sample(aten.cat.default, ([s.ints(4, 8), s.ints(4, 8), s.ints(4, 8)], 1)),
        Sample(aten.cat.default, ([s.ints(4, 8), s.ints(4, 4)], -1)),
        Sample(aten.cat.default, ([s.ints(3, 8), s.ints(5, 8)],)),
        Sample(aten.cat.default, ([s.ints(40, 2), s.ints(3, 2)],)),
        Sample(aten.cat.default, ([s.ints(0), s.ints(4, 8)],)),
        Sample(aten.stack.default, ([s.ints(4, 8), s.ints(4, 8)], 1)),
        Sample(aten.stack.default, ([s.ints(4, 8), s.ints(4, 8)], -1)),
        Sample(aten.constant_pad_nd.default, (s.ints(4, 8), [8, 0])),
        Sample(aten.constant_pad_nd.default, (s.ints(4, 8), [8, 16, 4, 0], 0.0)),
        Sample(aten.constant_pad_nd.default, (s.ints(4, 8), [1, 0], 2.0)),
        Sample(aten.constant_pad_nd.default, (s.ints(4, 8), [-1, 0])),
    ]


def reductions(s: Source) -> list[Sample]:
    x = s.ints(4, 6, 8)
    return [
        Sample(aten.sum.default, (x,)),
        Sample(aten.sum.dim_IntList, (x, [1])),
        Sample(aten.sum.dim_IntList, (x, [0, -1], True)),
        Sample(aten.sum.dim_IntList, (s.bools(4, 8), [0]), {"dtype": torch.int64}),
        Sample(aten.sum.dim_IntList, (s.ints(8, 4), [0]), fine_shapes={0: (2, 4, 4)}),
        Sample(aten.amax.default, (x, [1])),
        Sample(aten.amax.default, (x,)),
        Sample(aten.amin.default, (x, [0, 2], True)),
        Sample(aten.max.default, (x,)),
        Sample(aten.min.default, (x,)),
        Sample(aten.mean.default, (s.ints(4, 8),)),
        Sample(aten.mean.dim, (s.ints(4, 8), [1], True)),
        Sample(aten.any.default, (s.bools(4, 8),)),
        Sample(aten.all.default, (s.bools(4, 8),)),
        Sample(aten.prod.default, (x,)),
        Sample(aten.any.dim, (s.bools(4, 8), 1)),
        Sample(aten.any.dims, (s.bools(4, 8), [0])),
        Sample(aten.all.dim, (s.bools(4, 8), 1, True)),
        Sample(aten.all.dims, (s.bools(4, 8), [1])),
        Sample(aten.prod.dim_int, (s.ints(4, 8), 1)),
        Sample(aten.std.correction, (s.reals(4, 8), [1]), exact=False),
        Sample(aten.var.correction, (s.reals(4, 8), [1]), {"correction": 0}, exact=False),
        Sample(aten.var_mean.correction, (s.reals(4, 8), [0]), {"keepdim": True}, exact=False),
        Sample(aten.logsumexp.default, (s.reals(4, 8), [1]), exact=False),
        Sample(aten.max.dim, (s.distinct(4, 8), 1)),
        Sample(aten.min.dim, (s.distinct(4, 8), 0, True)),
        Sample(aten.median.dim, (s.distinct(4, 8), 1)),
        Sample(aten.argmax.default, (s.distinct(4, 8), 1)),
        Sample(aten.argmax.default, (s.distinct(4, 8),)),
        Sample(aten.argmin.default, (s.distinct(4, 8), 0, True)),
        Sample(aten.linalg_vector_norm.default, (s.reals(4, 8), 2, [1]), exact=False),
    ]


def scans(s: Source) -> list[Sample]:
    x = s.distinct(4, 8)
    return [
        Sample(aten.cumsum.default, (s.ints(4, 8), 1)),
        Sample(aten.cumprod.default, (s.ints(4, 8), 0)),
        Sample(aten.logcumsumexp.default, (s.reals(4, 8), 1), exact=False),
        Sample(aten.cummax.default, (x, 1)),
        Sample(aten.cummin.default, (x, 0)),
        Sample(aten.sort.default, (x,)),
        Sample(aten.sort.stable, (x,), {"stable": True, "dim": 0}),
        Sample(aten.argsort.default, (x, 0)),
        Sample(aten.topk.default, (x, 3)),
        Sample(aten.topk.default, (x, 2, 0)),
    ]


def normalizations(s: Source) -> list[Sample]:
    x, grad = s.reals(4, 6, 8), s.reals(4, 6, 8)
    weight, bias = s.reals(8), s.reals(8)
    _, mean, rstd = aten.native_layer_norm(x, [8], weight, bias, 1e-5)
    soft = torch.softmax(x, -1)
    _, root = aten._fused_rms_norm(x, [8], weight, 1e-5)
    masks = [True, True, True]
    return [
        Sample(aten._softmax.default, (x, -1, False), exact=False),
        Sample(aten._softmax.default, (x, 0, False), exact=False),
        Sample(aten._log_softmax.default, (x, 1, False), exact=False),
        Sample(aten._softmax_backward_data.default, (grad, soft, -1, torch.float64), exact=False),
        Sample(
            aten._log_softmax_backward_data.default,
            (grad, torch.log_softmax(x, 1), 1, torch.float64),
            exact=False,
        ),
        Sample(aten.native_layer_norm.default, (x, [8], weight, bias, 1e-5), exact=False),
        Sample(aten.native_layer_norm.default, (x, [6, 8], None, None, 1e-5), exact=False),
        Sample(
            aten.native_layer_norm_backward.default,
            (grad, x, [8], mean, rstd, weight, bias, masks),
            exact=False,
        ),
        Sample(
            aten.native_layer_norm_backward.default,
            (grad, x, [8], mean, rstd, weight, bias, [True, True, False]),
            exact=False,
        ),
        Sample(aten._fused_rms_norm.default, (x, [8], weight, 1e-5), exact=False),
        Sample(
            aten._fused_rms_norm_backward.default,
            (grad, x, [8], root, weight, [True, True]),
            exact=False,
        ),
    ]


def convolutions(s: Source) -> list[Sample]:
    x, w = s.ints(4, 4, 5, 5), s.ints(8, 4, 3, 3)
    tail = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    depthwise = (*tail[:-1], 4)
    transposed = ([2, 2], [1, 1], [1, 1], True, [0, 0], 1)
    grouped = (*tail[:-1], 2)
    grad = s.ints(4, 8, 5, 5)
    wt = s.ints(4, 8, 3, 3)
    grad_t = torch.ops.aten.convolution(x, wt, None, *transposed)
    all_three = [True, True, True]
    return [
        Sample(aten.convolution.default, (x, w, None, *tail)),
        Sample(aten.convolution.default, (x, w, s.ints(8), *tail)),
        Sample(aten.convolution.default, (x, s.ints(8, 1, 3, 3), None, *depthwise)),
        Sample(aten.convolution.default, (x, s.ints(8, 2, 3, 3), s.ints(8), *grouped)),
        Sample(aten.convolution.default, (x, wt, None, *transposed)),
        Sample(aten.convolution.default, (s.ints(4, 4, 8), s.ints(8, 4, 3), None, [1], [0], [1],
                                          False, [0], 1)),
        Sample(aten.convolution_backward.default, (grad, x, w, [8], *tail, all_three)),
        Sample(aten.convolution_backward.default, (grad, x, w, [0], *tail, [True, True, False])),
        Sample(aten.convolution_backward.default, (grad, x, w, [0], *tail, [False, True, False])),
        Sample(
            aten.convolution_backward.default,
            (grad, x, s.ints(8, 1, 3, 3), [8], *depthwise, all_three),
        ),
        Sample(
            aten.convolution_backward.default,
            (torch.ones_like(grad_t), x, wt, [8], *transposed, all_three),
        ),
    ]  # fmt: skip


def pooling(s: Source) -> list[Sample]:
    x = s.distinct(4, 4, 4, 4)
    _, indices = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    grad = s.ints(4, 4, 2, 2).double()
    return [
        Sample(aten.max_pool2d_with_indices.default, (x, [2, 2], [2, 2])),
        Sample(aten.max_pool2d_with_indices.default, (x[0], [2, 2], [2, 2])),
        Sample(
            aten.max_pool2d_with_indices_backward.default,
            (grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices),
        ),
        Sample(aten.avg_pool2d.default, (s.ints(4, 4, 4, 4), [2, 2], [2, 2])),
        Sample(
            aten.avg_pool2d_backward.default,
            (grad, x, [2, 2], [2, 2], [0, 0], False, True, None),
        ),
        Sample(aten._adaptive_avg_pool2d.default, (s.ints(4, 4, 4, 4), [2, 2])),
        Sample(aten._adaptive_avg_pool2d_backward.default, (grad, x)),
        Sample(aten.reflection_pad2d.default, (x, [1, 1, 1, 1])),
        Sample(aten.replication_pad2d.default, (x, [1, 1, 1, 1])),
        Sample(
            aten.reflection_pad2d_backward.default,
            (s.ints(4, 4, 6, 6).double(), x, [1, 1, 1, 1]),
        ),
        Sample(
            aten.replication_pad2d_backward.default,
            (s.ints(4, 4, 6, 6).double(), x, [1, 1, 1, 1]),
        ),
        Sample(aten.upsample_nearest2d.default, (x, [8, 8])),
        Sample(aten.upsample_bilinear2d.default, (x, [8, 8], False), exact=False),
        Sample(
            aten.upsample_nearest2d_backward.default,
            (s.ints(4, 4, 8, 8), [8, 8], [4, 4, 4, 4]),
        ),
        Sample(
            aten.upsample_bilinear2d_backward.default,
            (s.reals(4, 4, 8, 8), [8, 8], [4, 4, 4, 4], False),
            exact=False,
        ),
        Sample(aten.pixel_shuffle.default, (s.ints(4, 4, 2, 2), 2)),
        Sample(aten.pixel_unshuffle.default, (s.ints(4, 4, 4, 4), 2)),
    ]


def embeddings(s: Source) -> list[Sample]:
    tokens = s.below(8, 4, 6)
    return [
        Sample(aten.embedding.default, (s.ints(8, 4), tokens)),
        Sample(aten.embedding.default, (s.ints(8, 4), tokens, 3)),
        Sample(aten.embedding.default, (s.ints(8, 4), tokens), fine_shapes={0: (4, 2, 4)}),
        Sample(aten.embedding_dense_backward.default, (s.ints(4, 6, 4), tokens, 8, -1, False)),
        Sample(aten.embedding_dense_backward.default, (s.ints(4, 6, 4), tokens, 8, 5, False)),
        Sample(aten.embedding_dense_backward.default, (s.ints(4, 6, 4), tokens, 8, 0, True),
               exact=False),
    ]  # fmt: skip


def indexing(s: Source) -> list[Sample]:
    x = s.ints(6, 8)
    rows = s.below(6, 4)
    unique = torch.tensor([4, 0, 3, 1])
    return [
        Sample(aten.gather.default, (x, 0, s.below(6, 4, 8))),
        Sample(aten.gather.default, (x, 1, s.below(8, 6, 4))),
        Sample(aten.gather.default, (x, 1, s.below(8, 4, 4))),
        Sample(aten.index_select.default, (x, 0, rows)),
        Sample(aten.index_select.default, (x, -1, torch.tensor(3))),
        Sample(aten.index.Tensor, (x, [rows])),
        Sample(aten.index.Tensor, (x, [None, s.below(8, 4, 2)])),
        Sample(aten.index.Tensor, (s.ints(4, 6, 8), [rows.clamp(max=3), s.below(6, 2, 1)])),
        Sample(aten.index.Tensor, (s.ints(4, 6, 8), [rows.clamp(max=3), None, s.below(8, 4)])),
        Sample(aten._unsafe_index.Tensor, (x, [rows])),
        Sample(aten._unsafe_index_put.default, (x, [rows], s.ints(4, 8), True)),
        Sample(aten.index_put.default, (x, [unique], s.ints(4, 8))),
        Sample(aten.index_put.default, (x, [rows], s.ints(4, 8), True)),
        Sample(aten.index_put.default, (x, [None, rows], s.ints(4), True)),
        Sample(aten.scatter.src, (x, 0, unique.view(4, 1).repeat(1, 8), s.ints(4, 8))),
        Sample(aten.scatter.value, (x, 1, s.below(8, 6, 1), 5.0)),
        Sample(aten.scatter.reduce, (x, 0, unique.view(4, 1).repeat(1, 8), s.ints(4, 8)),
               {"reduce": "add"}),
        Sample(aten.scatter.value_reduce, (x, 1, s.below(8, 6, 1), 2.0), {"reduce": "multiply"}),
        Sample(aten.scatter_reduce.two, (x, 1, s.below(8, 6, 4), s.ints(6, 4), "amax")),
        Sample(aten.scatter_add.default, (x, 1, s.below(8, 6, 4), s.ints(6, 4))),
        Sample(aten.scatter_add.default, (x, 0, s.below(6, 2, 8), s.ints(4, 8))),
        Sample(aten.index_add.default, (x, 0, rows, s.ints(4, 8)), {"alpha": 2}),
        Sample(aten.index_copy.default, (x, 0, unique, s.ints(4, 8))),
    ]  # fmt: skip


def creation(s: Source) -> list[Sample]:
    x = s.ints(4, 8)
    return [
        Sample(aten.full.default, ([4, 8], 3.0)),
        Sample(aten.zeros.default, ([4, 8],)),
        Sample(aten.ones.default, ([4, 8],)),
        Sample(aten.new_full.default, (x, [4, 4], 2.0)),
        Sample(aten.new_zeros.default, (x, [4, 4])),
        Sample(aten.new_ones.default, (x, [4, 4])),
        Sample(aten.full_like.default, (x, 2.0)),
        Sample(aten.zeros_like.default, (x,)),
        Sample(aten.ones_like.default, (x,)),
        Sample(aten.arange.start_step, (0, 8)),
        Sample(aten.arange.start_step, (3, 19, 2)),
        Sample(aten.arange.start_step, (0.0, 4.0, 0.5), {"dtype": torch.float32}),
        Sample(aten.arange.default, (8,)),
        Sample(aten.arange.start, (2, 8)),
        Sample(aten.eye.default, (4,)),
        Sample(aten.eye.m, (4, 8)),
        Sample(aten.scalar_tensor.default, (2.0,)),
    ]


def attention(s: Source) -> list[Sample]:
    samples = []
    for kv_heads, mask in ((4, None), (2, None), (4, s.reals(2, 1, 6, 6)), (2, s.bools(6, 6))):
        q = s.reals(4, 4, 6, 8)
        k, v = s.reals(4, kv_heads, 6, 8), s.reals(4, kv_heads, 6, 8)
        if mask is not None and mask.dim() == 4:
            mask = s.reals(4, 1, 6, 6)
        if mask is not None and mask.dtype == torch.bool:
            mask = mask | torch.eye(6, dtype=torch.bool)
        options = (mask is None, 0.5, kv_heads != 4)
        out, lse = own.sdpa(q, k, v, mask, *options)
        samples.append(Sample(own.sdpa.default, (q, k, v, mask, *options), exact=False))
        samples.append(
            Sample(
                own.sdpa_backward.default,
                (s.reals(4, 4, 6, 8), q, k, v, mask, out, lse, *options),
                exact=False,
            )
        )
    return samples


def losses(s: Source) -> list[Sample]:
    x, target = s.reals(4, 8), s.below(8, 4)
    maximum = x.amax(1)
    lse = torch.logsumexp(x, 1)
    return [
        Sample(own.sum_exp.default, (x, maximum), exact=False),
        Sample(own.pick.default, (x, target), exact=False),
        Sample(own.pick.default, (s.reals(8, 8), s.below(8, 8)), exact=False,
               fine_shapes={0: (2, 4, 4, 2), 1: (2, 4)}),
        Sample(own.softmax_minus_onehot.default, (x, lse, target, s.reals(4)), exact=False),
    ]  # fmt: skip


def updates(s: Source) -> list[Sample]:
    def scalars(*values: float) -> tuple[Tensor, ...]:
        return tuple(torch.tensor(value, dtype=torch.float64) for value in values)

    state = [s.reals(4, 8) for _ in range(5)]
    step = torch.tensor(3.0)
    adam = scalars(0.1, 0.9, 0.99, 0.01, 1e-8)
    flags = {"decoupled": True, "maximize": False}
    return [
        Sample(own.adam_update.default, (*state[:4], step, *adam), flags, exact=False),
        Sample(own.adam_amsgrad_update.default, (*state, step, *adam), flags, exact=False),
        Sample(
            own.adam_master_update.default, (*state[:4], *scalars(0.1, 1e-8, 0.999)),
            {"beta1": 0.9, "beta2": 0.99, "dtype": torch.bfloat16}, exact=False,
        ),
        Sample(
            own.sgd_update.default, (*state[:2], *scalars(0.1, 0.01)), {"maximize": False},
            exact=False,
        ),
        Sample(
            own.sgd_momentum_update.default,
            (*state[:3], *scalars(0.1, 0.9, 0.0, 0.01)),
            {"nesterov": True, "maximize": False},
            exact=False,
        ),
    ]  # fmt: skip


def dropout(s: Source) -> list[Sample]:
    seed = torch.tensor(1234)
    return [
        Sample(own.dropout.default, (s.ints(4, 8), seed, 2, 0.5)),
        Sample(own.dropout.default, (s.ints(8, 8), seed, 3, 0.5), fine_shapes={0: (2, 4, 2, 4)}),
    ]
