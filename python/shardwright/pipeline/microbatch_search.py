"""In how many microbatches a step is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from shardwright.capture.step_graph import StepGraph
from shardwright.errors import ConfigError, InfeasibleError, PlanError
from shardwright.pipeline.microbatches import split_microbatches

P = TypeVar("P")

# Counts that are slower than the best so far, one after the other, until the search ends.
_PATIENCE = 2


def search_microbatches(
    step_graph: StepGraph, plan_step: Callable[[StepGraph], tuple[float, P]]
) -> P:
    """The fastest plan over powers of two of microbatches that divide the batch.

    Few microbatches make bubbles and hold much memory, many make small products: the time falls,
    then rises. Counts are tried from one on until two in a row are slower than the best.

    Args:
        step_graph: the step as captured.
        plan_step: time and plan of the step in microbatches.

    Raises:
        InfeasibleError: of the largest count, when none fits.
    """
    best: tuple[float, P] | None = None
    num_slower = 0
    infeasible: InfeasibleError | None = None
    for graph in _cut(step_graph):
        try:
            found = plan_step(graph)
        except InfeasibleError as error:
            infeasible = error
            continue
        if best is None or found[0] < best[0]:
            best, num_slower = found, 0
        else:
            num_slower += 1
            if num_slower == _PATIENCE:
                break
    if best is None:
        assert infeasible is not None
        raise infeasible
    return best[1]


def _cut(step_graph: StepGraph) -> Iterator[StepGraph]:
    """The step in 1, 2, 4, ... microbatches, as far as it can be cut."""
    yield step_graph
    count = 2
    while step_graph.num_microbatches == 1:
        try:
            graph = split_microbatches(step_graph, count)
        except (ConfigError, PlanError):
            return
        yield graph
        count *= 2
