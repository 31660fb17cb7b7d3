"""Specs that are demanded where one stage meets the next, as specs of the stage graph's nodes."""

from __future__ import annotations

from torch import Tensor

from shardwright.errors import ConfigError
from shardwright.pipeline.stage_graphs import StageGraphs, Transfer


def boundary_specs(stages: StageGraphs, number: int, entry: str, exit: str) -> dict[str, str]:
    """What `entry` and `exit` of a stage force, by input or node name of its graph.

    Args:
        stages: all stages.
        number: of the stage.
        entry: printed spec of the largest value that the stage receives in forward; empty for any.
        exit: printed spec of the largest value that it sends in forward; empty for any.

    Raises:
        ConfigError: E543 when the stage receives or sends nothing.
    """
    forced = {}
    if entry:
        forced[_largest(stages, "target", number, "entry").value] = entry
    if exit:
        sent = _largest(stages, "source", number, "exit").value
        marks = stages.graphs[number].graph_module.graph.nodes
        forced[next(n.name for n in marks if n.meta.get("sent") == sent)] = exit
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
