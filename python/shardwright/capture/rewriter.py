"""Replacing nodes of a functional fx graph one at a time, with fake values and tags kept."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwright.capture.tags import copy_tags
from shardwright.errors import CaptureError

Handler = Callable[["Rewriter", fx.Node], "fx.Node | list[fx.Node] | None"]


class Rewriter:
    """Replaces nodes of one graph in place.

    Attributes:
        graph: the graph.
        fake_mode: mode of the nodes' `val`.
        where: place of the user's step, for errors.
    """

    def __init__(self, graph: fx.Graph, fake_mode: FakeTensorMode, where: str) -> None:
        self.graph = graph
        self.fake_mode = fake_mode
        self.where = where
        self._current: fx.Node | None = None

    def run(self, handlers: dict[Any, Handler]) -> None:
        """Applies the handler of each node's target, once per node, in order."""
        for node in list(self.graph.nodes):
            handler = handlers.get(node.target) if node.op == "call_function" else None
            if handler is None or node._erased:
                continue
            self._current = node
            with self.graph.inserting_before(node):
                result = handler(self, node)
            if isinstance(result, list):
                self._replace_items(node, result)
            elif result is not None and result is not node:
                node.replace_all_uses_with(result)
                self.graph.erase_node(node)

    def emit(self, target: Any, *args: Any, val: Any = None, **kwargs: Any) -> fx.Node:
        """Inserts a call before the current node.

        Args:
            target: op overload.
            *args: with nodes in place of tensors.
            **kwargs: likewise.
            val: fake result when known; otherwise the op runs on the arguments' fakes.
        """
        node = self.graph.call_function(target, args, kwargs)
        if val is None:
            fakes, named = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with self.fake_mode:
                val = target(*fakes, **named)
        node.meta["val"] = val
        assert self._current is not None
        copy_tags(self._current, node)
        return node

    def _replace_items(self, node: fx.Node, items: Sequence[fx.Node]) -> None:
        """Replaces the getitems of a node with several results."""
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise CaptureError(
                    f"{node.target} is used as a list by {user.target}",
                    code="E112",
                    where=node.meta.get("source") or self.where,
                    advice="unpack its results in the step",
                )
            user.replace_all_uses_with(items[args_of(user)[1]])
            self.graph.erase_node(user)
        self.graph.erase_node(node)


def args_of(node: fx.Node) -> tuple[Any, ...]:
    """Arguments, for code that knows the op's schema."""
    return node.args


def kwargs_of(node: fx.Node) -> dict[str, Any]:
    """Keyword arguments, for code that knows the op's schema."""
    return node.kwargs


def val_of(node: fx.Node) -> Tensor:
    """Fake result of a node with one tensor result."""
    value: Tensor = node.meta["val"]
    return value


def as_node(value: Any) -> fx.Node:
    """An argument that is a tensor."""
    assert isinstance(value, fx.Node)
    return value
