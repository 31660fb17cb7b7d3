"""Folding of uniform tensors: what autograd makes of a mean's gradient is one number.

A uniform tensor is `aten.full` or an expansion of it. Arithmetic on uniform tensors is done here,
by the op itself on a 0-d tensor, so that rounding is the op's; a uniform factor becomes a Python
number, and neutral elements go.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from shardwright.capture.rewriter import Handler, Rewriter, args_of, as_node, kwargs_of, val_of

_aten = torch.ops.aten
_DIVISIONS = frozenset({_aten.div.Tensor, _aten.div.Scalar})


def _uniform(value: Any) -> float | None:
    """The number that a floating-point tensor holds everywhere, as its dtype has it, or None."""
    node = value
    while isinstance(node, fx.Node) and node.target in (_aten.expand.default, _aten.view.default):
        node = args_of(node)[0]
    if not isinstance(node, fx.Node) or node.target is not _aten.full.default:
        return None
    dtype = val_of(node).dtype
    if not dtype.is_floating_point:
        return None
    return float(torch.tensor(args_of(node)[1], dtype=dtype))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else _uniform(value)


def _is_power_of_two(number: float) -> bool:
    return abs(math.frexp(number)[0]) == 0.5


def _same_form(value: Any, node: fx.Node) -> bool:
    """Whether a tensor argument may take the place of the result."""
    if not isinstance(value, fx.Node):
        return False
    val, result = val_of(value), val_of(node)
    return val.shape == result.shape and val.dtype == result.dtype


def _filled(rewriter: Rewriter, node: fx.Node, number: float) -> fx.Node:
    val = val_of(node)
    with rewriter.fake_mode:
        scalar: Tensor = torch.empty((), dtype=val.dtype)
    full = rewriter.emit(_aten.full.default, [], number, val=scalar, dtype=val.dtype)
    if not val.dim():
        return full
    return rewriter.emit(_aten.expand.default, full, list(val.shape), val=val)


def _fold_product(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """Mul and div."""
    left, right = args_of(node)
    numbers = (_number(left), _number(right))
    divides = node.target in _DIVISIONS
    if numbers[0] is not None and numbers[1] is not None:
        # Otherwise kernels differ in how they round.
        if not _is_power_of_two(numbers[0]) and (divides or not _is_power_of_two(numbers[1])):
            return node
        operands = [
            torch.tensor(n, dtype=val_of(x).dtype) if isinstance(x, fx.Node) else x
            for n, x in zip(numbers, (left, right), strict=True)
        ]
        result = node.target(*operands)  # type: ignore[operator]
        if result.dtype == val_of(node).dtype:
            return _filled(rewriter, node, float(result))
    elif numbers[1] is not None and _same_form(left, node):
        return _scaled(rewriter, node, left, numbers[1], right)
    elif numbers[0] is not None and not divides and _same_form(right, node):
        return _scaled(rewriter, node, right, numbers[0], left)
    return node


def _scaled(
    rewriter: Rewriter, node: fx.Node, tensor: fx.Node, number: float, given: Any
) -> fx.Node:
    """The tensor times or divided by a number.

    Kernels divide by a number by multiplying with its reciprocal, which rounds unless the number
    is a power of two.
    """
    if number == 1.0:
        return tensor
    divides = node.target in _DIVISIONS
    if not isinstance(given, fx.Node) or (divides and not _is_power_of_two(number)):
        return node
    return rewriter.emit(node.target, tensor, number, val=val_of(node))


def _fold_sum(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """X + 0 and 0 + x."""
    left, right = args_of(node)
    if _uniform(right) == 0.0 and _same_form(left, node):
        return as_node(left)
    plain = kwargs_of(node).get("alpha", 1) == 1
    if _uniform(left) == 0.0 and plain and _same_form(right, node):
        return as_node(right)
    return node


def _fold_power(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    base, exponent = args_of(node)
    if exponent == 1 and _same_form(base, node):
        return as_node(base)
    return node


UNIFORM: dict[Any, Handler] = {
    **dict.fromkeys(
        (_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar), _fold_product
    ),
    _aten.add.Tensor: _fold_sum,
    _aten.pow.Tensor_Scalar: _fold_power,
}
