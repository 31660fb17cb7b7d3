"""Recomputation in some stages of a step that is cut into stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwright.capture.step_graph import StepGraph
from shardwright.pipeline.layers import assign_layers, find_layers
from shardwright.pipeline.options import PipelineOptions
from shardwright.pipeline.recompute import recompute_layers
from shardwright.pipeline.stage_graphs import StageGraphs


class RecomputedStage(Protocol):
    """What recomputation needs to know of a stage."""

    @property
    def begin(self) -> str:
        """Module or forward node at which it begins; empty for the first stage."""

    @property
    def layers(self) -> Sequence[str]:
        """Where its second, third, ... layer begins, likewise."""


@dataclass(frozen=True)
class _LayersByName:
    """Layers of the nodes of the whole step, for the graphs of its stages."""

    layer_of: Mapping[str, int]

    def of(self, node: str, /) -> int:
        """As `Layers.of`; what a stage adds, such as marks of what it sends, is of no layer."""
        return self.layer_of.get(node, -1)


def recompute_stages(
    stages: StageGraphs, planned: Sequence[RecomputedStage], which: Sequence[bool]
) -> StageGraphs:
    """The stages, with forward made again, layer by layer, in the backward of some.

    Args:
        stages: the step in stages.
        planned: where every stage and its layers begin.
        which: per stage whether it recomputes.

    Raises:
        ConfigError: E527 where a layer begins at what is no forward node after the one before.
    """
    if not any(which):
        return stages
    starts = [
        [*([stage.begin] if number else []), *stage.layers] for number, stage in enumerate(planned)
    ]
    found = assign_layers(stages.whole, [start for of_stage in starts for start in of_stage])
    layers = _LayersByName({node.name: layer for node, layer in found.items()})
    graphs, first = [], 0
    for number, graph in enumerate(stages.graphs):
        end = first + len(planned[number].layers) + 1
        graphs.append(
            recompute_layers(graph, layers, range(first, end)) if which[number] else graph
        )
        first = end
    return dataclasses.replace(stages, graphs=tuple(graphs))


def with_all_recomputed(step_graph: StepGraph, options: PipelineOptions) -> PipelineOptions:
    """Options by which every stage recomputes every layer that is found.

    Args:
        step_graph: the whole step.
        options: of its stages.
    """
    starts = [stage.begin for stage in options.stages[1:]]
    stage_of = {node.name: stage for node, stage in assign_layers(step_graph, starts).items()}
    first: dict[int, str] = {}
    for node in step_graph.graph_module.graph.nodes:
        if node.op == "call_function" and node.meta["phase"] == "forward":
            first.setdefault(stage_of[node.name], node.name)
    begins = [name for name in find_layers(step_graph).begins if name not in first.values()]
    stages = tuple(
        dataclasses.replace(
            stage, recompute=True, layers=tuple(b for b in begins if stage_of[b] == number)
        )
        for number, stage in enumerate(options.stages)
    )
    return dataclasses.replace(options, stages=stages)
