"""New nodes of an fx graph, made without fx's look at every argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx


def named_call(
    graph: fx.Graph,
    name: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> fx.Node:
    """A call with a name of our choice: nodes of the step keep theirs, whatever is added.

    Arguments come after the node is made: fx looks through those given at once for symbolic
    numbers, of which a step has none, and that takes as long as all the rest.
    """
    node = graph.create_node("call_function", target, name=name)
    node.args = args
    if kwargs:
        node.kwargs = dict(kwargs)
    return node


def copied_node(graph: fx.Graph, node: fx.Node, copy_of: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """As `fx.Graph.node_copy`, which it is but for calls."""
    if node.op != "call_function":
        return graph.node_copy(node, copy_of)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), copy_of)
    copy = named_call(graph, node.name, node.target, args, kwargs)
    copy.meta = dict(node.meta)
    return copy
