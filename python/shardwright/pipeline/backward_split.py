"""Backward in two parts: gradients that other stages need, and those of weights.

A linear layer's gradients are two ops anyway. A convolution's are one, which makes the gradient of
the image and that of the weight; where the parts run at different times it becomes two.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from shardwright.capture.step_graph import StepGraph, uncompiled_module
from shardwright.pipeline.fx_nodes import copied_node

_CONVOLUTION = torch.ops.aten.convolution_backward.default


def split_convolutions(step_graph: StepGraph, stages: Mapping[fx.Node, int]) -> StepGraph:
    """Takes the gradients of convolutions apart, in every stage that sends gradients on.

    Args:
        step_graph: the step.
        stages: of its nodes; the first has nobody to send gradients to.

    Returns:
        A step that computes the same; `step_graph` where there is nothing to do.
    """
    nodes = list(step_graph.graph_module.graph.nodes)
    both = {n for n in nodes if n.target is _CONVOLUTION and stages[n] > 0 and _makes_both(n)}
    if not both:
        return step_graph
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    of_image: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        if node in both:
            _, weight, bias = _mask(node)
            of_image[node] = _with_mask(graph, node, copies, (True, False, False))
            copies[node] = _with_mask(graph, node, copies, (False, weight, bias))
        elif node.target is operator.getitem and node.args[0] in both and node.args[1] == 0:
            copies[node] = copied_node(graph, node, of_image.__getitem__)
        else:
            copies[node] = copied_node(graph, node, copies.__getitem__)
    module = uncompiled_module(graph)
    return dataclasses.replace(step_graph, graph_module=module)


def nodes_not_for_others(of_backward: Iterable[fx.Node], sent: Iterable[fx.Node]) -> set[fx.Node]:
    """Those nodes of one stage's backward that no value follows from that others need.

    Args:
        of_backward: the stage's calls in backward.
        sent: what it sends in backward.
    """
    late = set(of_backward)
    waiting = list(sent)
    while waiting:
        node = waiting.pop()
        if node in late:
            late.remove(node)
            waiting += node.all_input_nodes
    return late


def _mask(node: fx.Node) -> tuple[bool, bool, bool]:
    mask: Any = node.args[10]
    image, weight, bias = mask
    return bool(image), bool(weight), bool(bias)


def _makes_both(node: fx.Node) -> bool:
    image, weight, bias = _mask(node)
    return image and (weight or bias)


def _with_mask(
    graph: fx.Graph,
    node: fx.Node,
    copies: Mapping[fx.Node, fx.Node],
    mask: tuple[bool, bool, bool],
) -> fx.Node:
    copy = copied_node(graph, node, copies.__getitem__)
    copy.args = (*copy.args[:10], list(mask))
    values = zip(node.meta["val"], mask, strict=True)
    copy.meta = {**node.meta, "val": tuple(v if asked else None for v, asked in values)}
    return copy
