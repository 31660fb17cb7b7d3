"""Canonical forms of ATen calls: one handler per op, one op per meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from shardwright.capture.rewriter import Handler, Rewriter, args_of, as_node, kwargs_of, val_of
from shardwright.errors import CaptureError

_aten = torch.ops.aten


def _same(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    return as_node(args_of(node)[0])


def _view(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source = as_node(args_of(node)[0])
    return emit_view(rewriter, source, val_of(node))


def emit_view(rewriter: Rewriter, source: fx.Node, val: Tensor) -> fx.Node:
    """Source in the shape of val: a view, or the source itself if it has that shape already."""
    if val_of(source).shape == val.shape:
        return source
    return rewriter.emit(_aten.view.default, source, list(val.shape), val=val)


def _permute_by(order: Callable[[int, Sequence[Any]], list[int]]) -> Handler:
    def handle(rewriter: Rewriter, node: fx.Node) -> fx.Node:
        source = as_node(args_of(node)[0])
        dims = order(val_of(source).dim(), args_of(node)[1:])
        if dims == sorted(dims):
            return source
        return rewriter.emit(_aten.permute.default, source, dims, val=val_of(node))

    return handle


def _swapped(rank: int, args: Sequence[Any]) -> list[int]:
    dims = list(range(rank))
    if rank:
        a, b = args[0] % rank, args[1] % rank
        dims[a], dims[b] = b, a
    return dims


def _expand(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source = as_node(args_of(node)[0])
    shape = list(val_of(node).shape)
    if list(val_of(source).shape) == shape:
        return source
    return rewriter.emit(_aten.expand.default, source, shape, val=val_of(node))


def _copy(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """copy(self, src): src in the dtype and shape of self."""
    target, source = as_node(args_of(node)[0]), args_of(node)[1]
    if not isinstance(source, fx.Node):
        return _emit_full(rewriter, val_of(node), source)
    source = _emit_cast(rewriter, source, val_of(target).dtype)
    if val_of(source).shape == val_of(node).shape:
        return source
    return rewriter.emit(_aten.expand.default, source, list(val_of(node).shape), val=val_of(node))


def _emit_cast(rewriter: Rewriter, source: fx.Node, dtype: torch.dtype) -> fx.Node:
    if val_of(source).dtype == dtype:
        return source
    return rewriter.emit(_aten._to_copy.default, source, dtype=dtype)


def _cast(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    return _emit_cast(rewriter, as_node(args_of(node)[0]), val_of(node).dtype)


def _emit_full(rewriter: Rewriter, val: Tensor, value: Any) -> fx.Node:
    return rewriter.emit(_aten.full.default, list(val.shape), value, val=val, dtype=val.dtype)


def _filled(value: float | None, position: int = 0) -> Handler:
    """Creation with a fixed value, or with the value at an argument position."""

    def handle(rewriter: Rewriter, node: fx.Node) -> fx.Node:
        fill = args_of(node)[position] if value is None else value
        if isinstance(fill, fx.Node):
            cast = _emit_cast(rewriter, fill, val_of(node).dtype)
            if not val_of(node).dim():
                return cast
            return rewriter.emit(
                _aten.expand.default, cast, list(val_of(node).shape), val=val_of(node)
            )
        dtype = val_of(node).dtype
        if dtype == torch.bool:
            fill = bool(fill)
        elif dtype.is_floating_point:
            fill = float(fill)
        return _emit_full(rewriter, val_of(node), fill)

    return handle


def _arange(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    args = args_of(node)
    if node.target is _aten.arange.default:
        args = (0, args[0], 1)
    elif node.target is _aten.arange.start:
        args = (args[0], args[1], 1)
    elif len(args) == 2:
        args = (*args, 1)
    return rewriter.emit(_aten.arange.start_step, *args, val=val_of(node), dtype=val_of(node).dtype)


def _emit_slice(
    rewriter: Rewriter, source: fx.Node, dim: int, start: int, end: int, step: int = 1
) -> fx.Node:
    size = val_of(source).shape[dim]
    if (start, end, step) == (0, size, 1):
        return source
    return rewriter.emit(_aten.slice.Tensor, source, dim, start, end, step)


def _slice_arguments(given: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """dim, start, end, step with the defaults of aten.slice."""
    complete: list[Any] = [*given, *(0, None, None, 1)[len(given) :]]
    return complete[0], complete[1], complete[2], complete[3]


def _slice(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source = as_node(args_of(node)[0])
    dim, start, end, step = _slice_arguments(args_of(node)[1:])
    dim = dim % val_of(source).dim()
    start, end, step = slice(start, end, step).indices(val_of(source).shape[dim])
    return _emit_slice(rewriter, source, dim, start, max(start, end), step)


def _select(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source, dim, index = args_of(node)
    shape = val_of(as_node(source)).shape
    dim = dim % len(shape)
    return rewriter.emit(_aten.select.int, source, dim, index % shape[dim], val=val_of(node))


def _split(rewriter: Rewriter, node: fx.Node) -> list[fx.Node]:
    source, parts = as_node(args_of(node)[0]), node.meta["val"]
    dim = args_of(node)[2] if len(args_of(node)) > 2 else kwargs_of(node).get("dim", 0)
    dim = dim % val_of(source).dim()
    pieces, start = [], 0
    for part in parts:
        end = start + part.shape[dim]
        pieces.append(_emit_slice(rewriter, source, dim, start, end))
        start = end
    return pieces


def _unbind(rewriter: Rewriter, node: fx.Node) -> list[fx.Node]:
    source, parts = as_node(args_of(node)[0]), node.meta["val"]
    dim = args_of(node)[1] if len(args_of(node)) > 1 else 0
    dim = dim % val_of(source).dim()
    return [
        rewriter.emit(_aten.select.int, source, dim, i, val=part) for i, part in enumerate(parts)
    ]


def _slice_backward(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    grad, shape, dim, start, end, step = args_of(node)
    rank = len(shape)
    dim = dim % rank
    start, end, step = slice(start, end, step).indices(shape[dim])
    if step != 1:
        return node
    return _emit_pad(rewriter, as_node(grad), dim, start, shape[dim] - max(start, end))


def _emit_pad(rewriter: Rewriter, source: fx.Node, dim: int, before: int, after: int) -> fx.Node:
    if before == after == 0:
        return source
    rank = val_of(source).dim()
    pads = [0] * (2 * (rank - dim))
    pads[-2:] = [before, after]
    return rewriter.emit(_aten.constant_pad_nd.default, source, pads, 0.0)


def _select_backward(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    grad, shape, dim, index = args_of(node)
    dim = dim % len(shape)
    index = index % shape[dim]
    kept = [*val_of(as_node(grad)).shape]
    kept.insert(dim, 1)
    single = rewriter.emit(_aten.view.default, grad, kept)
    return _emit_pad(rewriter, single, dim, index, shape[dim] - index - 1)


def _slice_scatter(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source, piece = as_node(args_of(node)[0]), as_node(args_of(node)[1])
    dim, start, end, step = _slice_arguments(args_of(node)[2:])
    rank = val_of(source).dim()
    size = val_of(source).shape[dim % rank]
    start, end, step = slice(start, end, step).indices(size)
    if step != 1:
        return node
    return _emit_splice(rewriter, source, piece, dim % rank, start, end)


def _select_scatter(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source, piece, dim, index = args_of(node)
    shape = val_of(as_node(source)).shape
    dim = dim % len(shape)
    index = index % shape[dim]
    kept = [*shape]
    kept[dim] = 1
    single = rewriter.emit(_aten.view.default, piece, kept)
    return _emit_splice(rewriter, as_node(source), single, dim, index, index + 1)


def _emit_splice(
    rewriter: Rewriter, source: fx.Node, piece: fx.Node, dim: int, start: int, end: int
) -> fx.Node:
    """Source with [start, end) of a dim replaced by piece."""
    size = val_of(source).shape[dim]
    piece = _emit_cast(rewriter, piece, val_of(source).dtype)
    parts = [piece]
    if start > 0:
        parts.insert(0, _emit_slice(rewriter, source, dim, 0, start))
    if end < size:
        parts.append(_emit_slice(rewriter, source, dim, end, size))
    return parts[0] if len(parts) == 1 else rewriter.emit(_aten.cat.default, parts, dim)


def _cat(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    parts = list(args_of(node)[0])
    dim = args_of(node)[1] if len(args_of(node)) > 1 else kwargs_of(node).get("dim", 0)
    dim = dim % val_of(node).dim()
    if len(parts) == 1:
        return as_node(parts[0])
    return rewriter.emit(_aten.cat.default, parts, dim, val=val_of(node))


def _stack(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    dim = args_of(node)[1] if len(args_of(node)) > 1 else kwargs_of(node).get("dim", 0)
    dim = dim % val_of(node).dim()
    return rewriter.emit(_aten.stack.default, list(args_of(node)[0]), dim, val=val_of(node))


def _reduction(target: Any) -> Handler:
    """sum, amax, amin: explicit sorted dims and keepdim; the sum's dtype is an explicit cast."""

    def handle(rewriter: Rewriter, node: fx.Node) -> fx.Node:
        source = as_node(args_of(node)[0])
        rank = val_of(source).dim()
        dims = args_of(node)[1] if len(args_of(node)) > 1 else kwargs_of(node).get("dim")
        keepdim = (
            bool(args_of(node)[2])
            if len(args_of(node)) > 2
            else bool(kwargs_of(node).get("keepdim"))
        )
        if isinstance(dims, int):
            dims = [dims]
        dims = sorted(d % rank for d in dims) if dims and rank else list(range(rank))
        source = _emit_cast(rewriter, source, val_of(node).dtype)
        if not rank:
            return source
        if dims == sorted(dims) and all(val_of(source).shape[d] == 1 for d in dims):
            return emit_view(rewriter, source, val_of(node))
        return rewriter.emit(target, source, dims, keepdim, val=val_of(node))

    return handle


def _softmax(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    rank = max(val_of(node).dim(), 1)
    args = list(args_of(node))
    position = 1 if node.target in (_aten._softmax.default, _aten._log_softmax.default) else 2
    if args[position] >= 0:
        return node
    args[position] = args[position] % rank
    return rewriter.emit(node.target, *args, val=val_of(node), **node.kwargs)


def _pool(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """Average pooling over the whole image is a mean."""
    source = as_node(args_of(node)[0])
    shape = val_of(source).shape
    if list(val_of(node).shape[-2:]) != [1, 1] or list(args_of(node)[1]) != list(shape[-2:]):
        return node
    dims = [len(shape) - 2, len(shape) - 1]
    total = rewriter.emit(_aten.sum.dim_IntList, source, dims, True)
    return rewriter.emit(_aten.div.Tensor, total, shape[-1] * shape[-2], val=val_of(node))


def _as_strided(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """A dense tensor with dense strides is a view; nothing else of the kind has a meaning here."""
    if node.target is _aten.as_strided.default:
        source, val = val_of(as_node(args_of(node)[0])), val_of(node)
        dense = source.is_contiguous() and val.is_contiguous() and not val.storage_offset()
        if dense and source.numel() == val.numel():
            return _view(rewriter, node)
    raise CaptureError(
        f"{node.target} depends on the layout of memory",
        code="E112",
        where=node.meta.get("source") or rewriter.where,
        advice="use view, slice or index operations instead of strides",
    )


CANONICAL: dict[Any, Handler] = {
    **dict.fromkeys((
        _aten.detach.default, _aten.alias.default, _aten.clone.default, _aten.lift_fresh.default,
        _aten.lift_fresh_copy.default, _aten.contiguous.default, _aten.positive.default,
        _aten._conj.default, _aten.detach_copy.default, _aten.alias_copy.default,
    ), _same),
    **dict.fromkeys((
        _aten.view.default, _aten.reshape.default, _aten._unsafe_view.default,
        _aten._reshape_alias.default, _aten.unsqueeze.default, _aten.squeeze.default,
        _aten.squeeze.dim, _aten.squeeze.dims, _aten.flatten.using_ints, _aten.view_copy.default,
        _aten.unsqueeze_copy.default, _aten.squeeze_copy.dim,
    ), _view),
    _aten.t.default: _permute_by(lambda rank, args: list(range(rank))[::-1]),
    _aten.numpy_T.default: _permute_by(lambda rank, args: list(range(rank))[::-1]),
    _aten.transpose.int: _permute_by(_swapped),
    _aten.permute.default: _permute_by(lambda rank, args: [d % rank for d in args[0]]),
    _aten.expand.default: _expand,
    _aten.copy.default: _copy,
    _aten._to_copy.default: _cast,
    torch.ops.prims.convert_element_type.default: _cast,
    **dict.fromkeys((
        _aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default,
        _aten.zero.default, _aten.empty.memory_format, _aten.empty_like.default,
        _aten.new_empty.default, _aten.new_empty_strided.default, _aten.empty_strided.default,
    ), _filled(0.0)),
    **dict.fromkeys((
        _aten.ones.default, _aten.ones_like.default, _aten.new_ones.default,
    ), _filled(1.0)),
    **dict.fromkeys((
        _aten.full.default, _aten.full_like.default, _aten.fill.Scalar, _aten.fill.Tensor,
    ), _filled(None, 1)),
    _aten.new_full.default: _filled(None, 2),
    _aten.scalar_tensor.default: _filled(None, 0),
    **dict.fromkeys((
        _aten.arange.default, _aten.arange.start, _aten.arange.start_step,
    ), _arange),
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
    **dict.fromkeys((
        _aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default,
    ), _split),
    _aten.unbind.int: _unbind,
    _aten.slice_backward.default: _slice_backward,
    _aten.select_backward.default: _select_backward,
    _aten.slice_scatter.default: _slice_scatter,
    _aten.select_scatter.default: _select_scatter,
    _aten.cat.default: _cat,
    _aten.stack.default: _stack,
    _aten.sum.default: _reduction(_aten.sum.dim_IntList),
    _aten.sum.dim_IntList: _reduction(_aten.sum.dim_IntList),
    _aten.amax.default: _reduction(_aten.amax.default),
    _aten.amin.default: _reduction(_aten.amin.default),
    _aten._softmax.default: _softmax,
    _aten._log_softmax.default: _softmax,
    _aten._softmax_backward_data.default: _softmax,
    _aten._log_softmax_backward_data.default: _softmax,
    _aten.avg_pool2d.default: _pool,
    _aten.as_strided.default: _as_strided,
    _aten.as_strided_scatter.default: _as_strided,
}  # fmt: skip
