"""Executes a step graph on one device, op by op, microbatch by microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from shardwright.capture.ops import microbatch as _microbatch  # noqa: F401  (registers the ops)

if TYPE_CHECKING:
    from shardwright.capture.step_graph import StepGraph

_ACCUMULATE = torch.ops.shardwright.accumulate.default
_COLLECT = torch.ops.shardwright.collect.default
_Values = dict[fx.Node, Any]


def microbatch_seed(seed: int, microbatch: int) -> int:
    """Seed of one microbatch's random masks; that of microbatch 0 is the step's."""
    return (seed + microbatch * 0xD1B54A32D192ED03) % (1 << 63)


def microbatch_value(graph: StepGraph, index: int, whole: Tensor, microbatch: int) -> Tensor:
    """What graph input `index` is in one microbatch: its samples, its seed, or what it always is.

    Args:
        graph: the step, in one or more microbatches.
        index: of the input.
        whole: its value for the whole step.
        microbatch: which, from 0 on.
    """
    spec = graph.inputs[index]
    if spec.split:
        size = whole.shape[0] // graph.num_microbatches
        return whole.narrow(0, microbatch * size, size)
    if spec.kind == "rng" and microbatch > 0:
        return torch.tensor(microbatch_seed(int(whole), microbatch), dtype=torch.int64)
    return whole


def run_graph(graph: StepGraph, flat_inputs: Sequence[Tensor]) -> list[Tensor]:
    """One tensor per output; inputs are whole and are not changed."""
    nodes = list(graph.graph_module.graph.nodes)
    inputs: _Values = dict(zip(graph.placeholders, flat_inputs, strict=True))
    outputs = graph.output_nodes
    with torch.no_grad():
        if graph.num_microbatches == 1:
            values = dict(inputs)
            _run(nodes, values, outputs)
            return [values[node] for node in outputs]
        return _run_microbatches(graph, nodes, inputs, outputs)


def _run_microbatches(
    graph: StepGraph, nodes: Sequence[fx.Node], inputs: _Values, outputs: Sequence[fx.Node]
) -> list[Tensor]:
    placeholders = graph.placeholders
    parts = [n for n in nodes if n.op == "call_function" and n.meta["phase"] != "update"]
    update = [n for n in nodes if n.op == "call_function" and n.meta["phase"] == "update"]
    crossing = {a for n in update for a in n.all_input_nodes} | set(outputs)
    marks = [n for n in nodes if n.target is _ACCUMULATE]
    collected: dict[fx.Node, list[Tensor]] = {n: [] for n in nodes if n.target is _COLLECT}
    totals: dict[fx.Node, Tensor] = {}
    made_in_parts = set(parts)
    carried = {
        placeholders[spec.updates]: node
        for node, spec in zip(outputs, graph.outputs, strict=True)
        if spec.updates is not None and node in made_in_parts
    }
    values: _Values = {}
    held = dict(inputs)
    for number in range(graph.num_microbatches):
        values = dict(held)
        for index, node in enumerate(placeholders):
            values[node] = microbatch_value(graph, index, held[node], number)
        _run(parts, values, crossing)
        for mark in marks:
            part = values[_argument(mark, 0)]
            totals[mark] = totals[mark] + part if mark in totals else part
        for node, found in collected.items():
            found.append(values[node])
        held |= {node: values[new] for node, new in carried.items()}
    values |= totals
    values |= {n: torch.cat(found, _argument(n, 1)) for n, found in collected.items()}
    _run([n for n in update if n not in totals], values, outputs)
    return [values[node] for node in outputs]


def _argument(node: fx.Node, position: int) -> Any:
    return node.args[position]


def _run(nodes: Sequence[fx.Node], values: _Values, kept: Iterable[fx.Node]) -> None:
    """Runs calls in order; values that are read no more are dropped."""
    last_use = {a: node for node in nodes for a in node.all_input_nodes}
    held = set(kept)
    for node in nodes:
        if node.op != "call_function":
            continue
        args: Any
        kwargs: Any
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        target: Any = node.target
        if target is torch.ops.aten.view.default:
            values[node] = args[0].reshape(args[1])
        else:
            values[node] = target(*args, **kwargs)
        for used in node.all_input_nodes:
            if last_use[used] is node and used not in held:
                values.pop(used, None)
