"""Specs that are demanded where one stage meets the next, as specs of the stage graph's nodes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shardwright.errors import ConfigError
from shardwright.pipeline.stage_graphs import StageGraphs, Transfer


def boundary_specs(
    stages: StageGraphs, number: int, entry: str, exit: str, crossing: Mapping[str, str]
) -> dict[str, str]:
    """What is demanded at the ends of a stage, by input or node name of its graph.

    Args:
        stages: all stages.
        number: of the stage.
        entry: printed spec of the largest value that the stage receives in forward; empty for any.
        exit: printed spec of the largest value that it sends in forward; empty for any.
        crossing: printed specs by fx name of the value, as the stage receives or sends it; values
            that it does neither with do not count.

    Raises:
        ConfigError: E543 when the stage receives or sends nothing.
    """
    graph = stages.graphs[number]
    marks = {n.meta["sent"]: n.name for n in graph.graph_module.graph.nodes if "sent" in n.meta}
    received = {spec.name for spec in graph.inputs if spec.kind == "boundary"}
    forced = {}
    for value, spec in crossing.items():
        if value in received:
            forced[value] = spec
        elif value in marks:
            forced[marks[value]] = spec
    if entry:
        forced[_largest(stages, "target", number, "entry").value] = entry
    if exit:
        forced[marks[_largest(stages, "source", number, "exit").value]] = exit
    return forced


def _largest(stages: StageGraphs, end: str, number: int, what: str) -> Transfer:
    """The transfer of forward that moves most; of equals the first."""
    shapes = {
        node.name: node.meta["val"]
        for node in stages.whole.graph_module.graph.nodes
        if node.op == "call_function"
    }
    found = [t for t in stages.transfers if t.when == "forward" and getattr(t, end) == number]
    if not found:
        raise ConfigError(
            "a spec is demanded at a stage boundary at which nothing passes.",
            code="E543",
            values=[f"stage {number}, {what}"],
            advice="no entry for the first stage, no exit for the last one",
        )

    def num_bytes(transfer: Transfer) -> int:
        value: Tensor = shapes[transfer.value]
        return value.numel() * value.element_size()

    return max(found, key=num_bytes)
