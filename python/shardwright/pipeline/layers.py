"""Layers of a step: the runs of forward operations that pipeline stages are made of."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.errors import ConfigError, ProblemError
from shardwright.graph_table import table_nodes, to_core_graph
from shardwright.rules import rule_registry

# Layer of what every layer has or computes itself: functions of the batch, of hyper-parameters and
# of constants, and what is never updated.
EVERY_LAYER = -1


@dataclass(frozen=True)
class Layers:
    """The layers of a step.

    Attributes:
        begins: fx names of the first forward nodes of the layers 1, 2, ...; layer 0 begins with the
            step.
        classes: per layer; layers of one class compute the same. Numbered by first use.
        flops: per layer, of its forward operations.
        entering_bytes: per layer, what its forward operations read of earlier layers.
        titles: per layer the module in which it begins, "" outside of any.
        layer_of: by fx name, inputs included; see `of`.
    """

    begins: tuple[str, ...]
    classes: tuple[int, ...]
    flops: tuple[int, ...]
    entering_bytes: tuple[int, ...]
    titles: tuple[str, ...]
    layer_of: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.flops)

    def of(self, node: str) -> int:
        """Layer of a node, by fx name; `EVERY_LAYER` for what each layer has or computes itself."""
        return self.layer_of[node]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """FLOPs of forward before each layer, and at the end of all."""
        total = [0]
        for flops in self.flops:
            total.append(total[-1] + flops)
        return tuple(total)


def find_layers(
    step_graph: StepGraph, num_layers: int | None = None, *, most_layers: int = 128
) -> Layers:
    """Cuts a step into layers (csrc/interop/forward_layers.h).

    Fewest bytes enter the layer that most bytes enter; of equal cuts the one with the fewest bytes
    between layers, then the most even one. Calls of `sw.mark_layer()` force a boundary.

    Args:
        step_graph: the step, in microbatches or not.
        num_layers: how many; found by default, or given by the marks.
        most_layers: of layers that are found; of more places to cut, every second, third, ... is
            taken.

    Raises:
        ProblemError: E222 when there are fewer forward operations, or more marks, than layers.
        PlanError: E334 when forward follows backward.
    """
    graph = to_core_graph(step_graph)
    found = _core.find_layers(graph, rule_registry(), num_layers, most_layers)
    nodes = table_nodes(step_graph.graph_module)
    begins = [nodes[index] for index in found.begins]
    layer_of = dict(zip((node.name for node in nodes), found.layer_of_node, strict=True))
    first = next((n for n in nodes if n.op == "call_function" and layer_of[n.name] == 0), None)
    titles = [str(n.meta.get("module_path") or "") for n in (first, *begins) if n is not None]
    for item in _items(step_graph):
        layer_of[item.name] = layer_of[item.all_input_nodes[0].name]
    return Layers(
        tuple(node.name for node in begins),
        tuple(found.class_of_layer),
        tuple(found.flops),
        tuple(found.entering_bytes),
        tuple(titles),
        layer_of,
    )


def assign_layers(step_graph: StepGraph, starts: Sequence[str]) -> dict[fx.Node, int]:
    """Layer of every node, inputs included, given where the layers 1, 2, ... begin.

    Args:
        step_graph: the step, in microbatches or not.
        starts: fx names of forward nodes, or names of modules, which stand for their first one.

    Raises:
        ConfigError: E527 for a start that is none, or not after the one before.
        PlanError: E334 when forward follows backward.
    """
    layers = _core.assign_layers(to_core_graph(step_graph), list(starts))
    layer_of = dict(zip(table_nodes(step_graph.graph_module), layers, strict=True))
    for item in _items(step_graph):
        layer_of[item] = layer_of[item.all_input_nodes[0]]
    return layer_of


def even_starts(step_graph: StepGraph, num_stages: int) -> tuple[str, ...]:
    """First nodes of all stages but the first, when layers are shared out evenly by FLOPs.

    The largest stage is as small as it can be, then the sum of squares.

    Raises:
        ConfigError: E527 when the step cannot be cut into so many stages.
    """
    layers = layers_for(step_graph, num_stages)
    # cost[i]: of the best cut of the first i layers, by stages: (largest, sum of squares, cuts).
    before = layers.starts
    cost: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
    for stage in range(num_stages):
        last = num_stages - 1 - stage
        following: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for end in range(stage + 1, len(layers) - last + 1):
            choices = [
                (max(largest, size), squares + size * size, (*cuts, end))
                for begin, (largest, squares, cuts) in cost.items()
                if begin < end
                for size in (before[end] - before[begin],)
            ]
            following[end] = min(choices)
        cost = following
    cuts = cost[len(layers)][2]
    return tuple(layers.begins[end - 1] for end in cuts[:-1])


def layers_for(step_graph: StepGraph, num_stages: int, *, most_layers: int = 128) -> Layers:
    """The layers of a step that is to run in so many stages: as found, or that many.

    Args:
        step_graph: the step, in microbatches or not.
        num_stages: how many layers are enough.
        most_layers: as in `find_layers`.

    Raises:
        ConfigError: E527 when the step cannot be cut into so many stages.
    """
    layers = find_layers(step_graph, most_layers=most_layers)
    if len(layers) >= num_stages:
        return layers
    try:
        return find_layers(step_graph, num_stages)
    except ProblemError as error:
        raise ConfigError(
            "the step cannot be cut into so many stages.",
            code="E527",
            values=[f"num_stages: {num_stages}", *str(error).splitlines()[1:2]],
            advice="fewer stages, or stage_boundaries=[...] with what begins each",
        ) from error


def _items(step_graph: StepGraph) -> list[fx.Node]:
    nodes = step_graph.graph_module.graph.nodes
    return [n for n in nodes if n.op == "call_function" and n.target is operator.getitem]
