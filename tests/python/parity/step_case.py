"""A captured step with the values of all its nodes on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

import shardwright.lowering.shard_ops  # noqa: F401  (registers the ops)
from shardwright.capture.arguments import sort_arguments
from shardwright.capture.binding import read_inputs
from shardwright.capture.capture import capture
from shardwright.graph_table import to_core_graph
from shardwright.planning import sharded_graph


class Recorder(fx.Interpreter):
    """Keeps the values of all nodes, multiple outputs as tuples."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, tuple[Tensor, ...]] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Strides carry no meaning in a step graph: a view is any reshape.
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output":
            self.values[n.name] = tuple(result) if isinstance(result, (list, tuple)) else (result,)
        return result


class StepCase:
    """One step: its op table, its rules, and name of node -> values.

    Args:
        build: gives the step and its arguments, freshly built and seeded.
    """

    _known: ClassVar[dict[str, StepCase]] = {}

    @classmethod
    def of(cls, build: Callable[[], Any]) -> StepCase:
        """The case of a builder, made once."""
        key = f"{build.__module__}.{build.__name__}"
        if key not in cls._known:
            cls._known[key] = cls(build)
        return cls._known[key]

    def __init__(self, build: Callable[[], Any]) -> None:
        step, args = build()
        step_graph = capture(step, args)
        inputs = read_inputs(step_graph, sort_arguments(step, args, {}), seed=7)
        recorder = Recorder(step_graph.graph_module)
        with torch.no_grad():
            recorder.run(*inputs)
        self.dense = recorder.values
        self.graph = to_core_graph(step_graph)
        self.sharded = sharded_graph(step_graph)
        self.names = [self.graph.node(index)["name"] for index in range(len(self.graph))]
