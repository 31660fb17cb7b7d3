"""A step graph whose backward computes some layers' forward again instead of keeping its values.

Of such a layer only what other layers read stays in memory until backward; the rest is made again
right before the layer's backward first needs it (Chen et al. 2016, "Training Deep Nets with
Sublinear Memory Cost").
"""

from __future__ import annotations

import dataclasses
import operator
from collections import ChainMap
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch
from torch import fx

from shardwright.capture.step_graph import StepGraph, uncompiled_module
from shardwright.errors import ConfigError
from shardwright.pipeline.fx_nodes import copied_node, named_call
from shardwright.pipeline.layers import find_layers
from shardwright.pipeline.microbatches import drop_dead

RECOMPUTE = ("none", "full")
_SEND = torch.ops.shardwright.send.default

# Layer, and round of its backward: 1 for what is late where backward is split, else 0.
_Part = tuple[int, int]


class LayerOfNode(Protocol):
    """Says which layer a node belongs to; `shardwright.pipeline.layers.Layers` is one."""

    def of(self, node: str, /) -> int:
        """Layer of a node, by fx name; negative where it is of no layer."""


def recompute_layers(
    step_graph: StepGraph, layers: LayerOfNode, which: Collection[int]
) -> StepGraph:
    """The step with the forward of some layers made again in their backward.

    A clone has phase backward and `meta["recomputed"]`. What it reads of other layers, of inputs
    and of no layer is kept, and so are the values that other layers read. Views of what is kept
    need no clone. What reads an input that forward updates (running statistics) gets none, for its
    value would be another. Dropout masks are the same again: functions of seed, stream and place.

    Args:
        step_graph: the step, in microbatches or not, whole or of one stage.
        layers: of every call in forward and backward.
        which: layers to recompute.

    Returns:
        A new graph; the old one where backward reads nothing that could be made again.
    """
    choice = _Choice(step_graph, layers, frozenset(layer for layer in which if layer >= 0))
    clones = choice.clones()
    return _written(step_graph, choice.layer, clones) if clones else step_graph


def checked_recompute(recompute: str) -> str:
    """Raises ConfigError E520 unless it is one of the words."""
    if recompute not in RECOMPUTE:
        raise ConfigError(
            "recompute must be one of the words for it.",
            code="E520",
            values=[f"recompute: {recompute!r}"],
            advice=" or ".join(f'recompute="{word}"' for word in RECOMPUTE),
        )
    return recompute


def is_recomputed(step_graph: StepGraph) -> bool:
    """Whether backward makes anything of forward again."""
    return any(node.meta.get("recomputed") for node in step_graph.graph_module.graph.nodes)


def with_recomputation(step_graph: StepGraph, recompute: str) -> StepGraph:
    """The step as `sw.plan(recompute=...)` has it: "none" as it is, "full" with every layer.

    A step with clones stays as it is: it was made so.

    Raises:
        ConfigError: E520 for another word.
    """
    if checked_recompute(recompute) == "none" or is_recomputed(step_graph):
        return step_graph
    layers = find_layers(step_graph)
    return recompute_layers(step_graph, layers, range(len(layers)))


class _Choice:
    """Finds the forward nodes of each layer that backward makes again."""

    def __init__(self, step_graph: StepGraph, layers: LayerOfNode, which: frozenset[int]) -> None:
        self.layer = {
            node: layers.of(node.name)
            for node in step_graph.graph_module.graph.nodes
            if node.op == "call_function" and node.target is not _SEND
            if node.meta["phase"] != "update"
        }
        self._which = which
        results = zip(step_graph.outputs, step_graph.output_nodes, strict=True)
        self._updated_in_forward = {
            step_graph.placeholders[spec.updates]
            for spec, node in results
            if spec.updates is not None and node.meta["phase"] != "update"
        }

    def clones(self) -> dict[_Part, set[fx.Node]]:
        """By part of backward; parts without any are left out."""
        found: dict[_Part, set[fx.Node]] = {}
        made: dict[int, set[fx.Node]] = {}
        for node, layer in self.layer.items():
            if node.meta["phase"] == "backward" and layer in self._which:
                new = self._needed(node, layer, made.setdefault(layer, set()))
                found.setdefault(_part(node, layer), set()).update(new)
        return {part: nodes for part, nodes in found.items() if nodes}

    def _needed(self, reader: fx.Node, layer: int, made: set[fx.Node]) -> set[fx.Node]:
        """What is to be made for a reader besides what is made already, which it adds."""
        new: set[fx.Node] = set()
        waiting = list(reader.all_input_nodes)
        while waiting:
            node = waiting.pop()
            if node not in made and not self._is_kept(node, layer):
                made.add(node)
                new.add(node)
                waiting += node.all_input_nodes
        return new

    def _is_kept(self, node: fx.Node, layer: int) -> bool:
        """Whether backward finds a value in memory anyway, or must not make it again."""
        if self.layer.get(node) != layer or node.meta["phase"] != "forward":
            return True
        if not self._updated_in_forward.isdisjoint(node.all_input_nodes):
            return True
        if any(self._reads_elsewhere(user, layer) for user in node.users):
            return True
        viewed = _viewed(node)
        return viewed is not None and self._is_kept(viewed, layer)

    def _reads_elsewhere(self, user: fx.Node, layer: int) -> bool:
        """Whether another layer needs the value, or a part of it where an op has several."""
        if _is_part(user):
            return any(self._reads_elsewhere(u, layer) for u in user.users)
        return user.meta.get("phase") == "forward" and self.layer.get(user, -1) not in (-1, layer)


def _part(node: fx.Node, layer: int) -> _Part:
    return layer, node.meta.get("round", 0)


def _is_part(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _viewed(node: fx.Node) -> fx.Node | None:
    """The value whose memory a view or one part of several outputs is in; None for new memory."""
    if _is_part(node):
        source = node.all_input_nodes[0]
        return source if _viewed(source) is not None else None
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.returns:
        return None
    alias = target._schema.returns[0].alias_info
    if alias is None or alias.is_write:
        return None
    return node.all_input_nodes[0]


def _written(
    step_graph: StepGraph, layer_of: Mapping[fx.Node, int], clones: Mapping[_Part, set[fx.Node]]
) -> StepGraph:
    old = list(step_graph.graph_module.graph.nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    again: dict[int, dict[fx.Node, fx.Node]] = {}
    remaining = dict(clones)
    place = {node: index for index, node in enumerate(old)}
    for node in old:
        layer = layer_of.get(node, -1) if node.meta.get("phase") == "backward" else -1
        read = ChainMap(again.setdefault(layer, {}), copies)
        part = _part(node, layer)
        if not remaining.get(part, set()).isdisjoint(node.all_input_nodes):
            wanted = remaining.pop(part)
            made = _cloned(graph, sorted(wanted, key=place.__getitem__), read)
            for clone in made.values():
                clone.meta["round"] = part[1]
            again[layer].update(made)
        copies[node] = copied_node(graph, node, read.__getitem__)
    drop_dead(graph)
    graph.lint()
    return dataclasses.replace(step_graph, graph_module=uncompiled_module(graph))


def _cloned(
    graph: fx.Graph, originals: list[fx.Node], copies: ChainMap[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Clones, under names of their own: the other nodes keep theirs."""
    made: dict[fx.Node, fx.Node] = {}
    read = copies.new_child(made)
    for original in originals:
        args, kwargs = fx.node.map_arg((original.args, original.kwargs), read.__getitem__)
        clone = named_call(graph, f"recomputed_{original.name}", original.target, args, kwargs)
        clone.meta = {**original.meta, "phase": "backward", "recomputed": True}
        made[original] = clone
    return made
