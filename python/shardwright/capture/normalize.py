"""Brings a traced graph into the op vocabulary that the sharding rules cover.

Works on the functional graph without running the step again: bookkeeping ops go, views become
`aten.view` or `aten.permute`, splits become slices, creations become `aten.full`, dims become
explicit and non-negative; then equal expressions of one phase are merged and dead code is dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwright.capture.canonical import CANONICAL, emit_view
from shardwright.capture.constants import UNIFORM
from shardwright.capture.rewriter import Handler, Rewriter, args_of, as_node, val_of
from shardwright.errors import CaptureError

_aten = torch.ops.aten


def normalize(graph: fx.Graph, fake_mode: FakeTensorMode, where: str) -> None:
    """Normalises in place; see the top of the file.

    Args:
        graph: functional graph with `val` and tags on its nodes; constants are already
            placeholders.
        fake_mode: mode of the nodes' `val`.
        where: place of the user's step, for errors.

    Raises:
        CaptureError: E110 a random op other than dropout; E112 an op that depends on strides.
    """
    _drop_profiler_calls(graph)
    graph.eliminate_dead_code()
    _refuse(graph, where)
    rewriter = Rewriter(graph, fake_mode, where)
    rewriter.run(CANONICAL)
    rewriter.run(UNIFORM)
    rewriter.run(_FOLDS)
    _merge_equal(graph)
    graph.eliminate_dead_code()


def _drop_profiler_calls(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and str(node.target).startswith(
            ("profiler.", "aten._assert", "aten.sym_constrain")
        ):
            graph.erase_node(node)


_RANDOM = torch.Tag.nondeterministic_seeded


def _refuse(graph: fx.Graph, where: str) -> None:
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if _RANDOM in node.target.tags:
            raise CaptureError(
                f"the step draws random numbers with {node.target}",
                code="E110",
                where=node.meta.get("source") or where,
                advice="draw them outside the step and pass them as arguments, or use "
                "torch.nn.functional.dropout, which is captured",
            )


def _fold_view(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """A view of a view is one view; a view that drops a sum's kept dims is a sum without them."""
    source = as_node(args_of(node)[0])
    while source.target is _aten.view.default:
        source = as_node(args_of(source)[0])
    if source.target is _aten.sum.dim_IntList and args_of(source)[2]:
        summed, dims, _ = args_of(source)
        shape = val_of(as_node(summed)).shape
        rest = [size for d, size in enumerate(shape) if d not in dims]
        if rest == list(val_of(node).shape):
            return rewriter.emit(_aten.sum.dim_IntList, summed, dims, False, val=val_of(node))
    if source is args_of(node)[0]:
        return node
    return emit_view(rewriter, source, val_of(node))


def _fold_permute(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    source, dims = as_node(args_of(node)[0]), list(args_of(node)[1])
    if source.target is not _aten.permute.default:
        return node
    inner = list(args_of(source)[1])
    composed = [inner[d] for d in dims]
    if composed == sorted(composed):
        return as_node(args_of(source)[0])
    return rewriter.emit(_aten.permute.default, args_of(source)[0], composed, val=val_of(node))


def _fold_square_of_roots(rewriter: Rewriter, node: fx.Node) -> fx.Node:
    """stack(sqrt(a), sqrt(b), ...) squared is stack(a, b, ...): the norm of norms."""
    left, right = args_of(node)[0], args_of(node)[1]
    if left is not right or not isinstance(left, fx.Node) or left.target is not _aten.stack.default:
        return node
    roots = list(args_of(left)[0])
    if not all(root.target is _aten.sqrt.default for root in roots):
        return node
    return rewriter.emit(
        _aten.stack.default,
        [args_of(root)[0] for root in roots],
        args_of(left)[1],
        val=val_of(node),
    )


_FOLDS: dict[Any, Handler] = {
    _aten.view.default: _fold_view,
    _aten.permute.default: _fold_permute,
    _aten.mul.Tensor: _fold_square_of_roots,
}


def _merge_equal(graph: fx.Graph) -> None:
    """Merges pure calls with equal arguments within one phase.

    Not across phases: a forward value computed again in backward is the user's checkpointing.
    """
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        key = (
            node.meta["phase"], node.target, _key(args_of(node)),
            _key(tuple(sorted(node.kwargs.items(), key=lambda item: item[0]))),
        )  # fmt: skip
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_key(x) for x in value)
    # 1, 1.0 and True are equal in Python but not to an op.
    return value if isinstance(value, fx.Node) else (type(value), repr(value))
