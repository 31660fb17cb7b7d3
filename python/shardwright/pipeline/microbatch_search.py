"""In how many microbatches a step is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from shardwright.capture.step_graph import StepGraph
from shardwright.errors import ConfigError, InfeasibleError, PlanError
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.search_budget import SearchBudget

P = TypeVar("P")

# Counts that are slower than the best so far, one after the other, until the search ends.
_PATIENCE = 2
# Of the time that is left, what one count may take.
_SHARE = 0.5


def search_microbatches(
    step_graph: StepGraph,
    plan_step: Callable[[StepGraph, SearchBudget], tuple[float, P]],
    budget: SearchBudget,
) -> P:
    """The fastest plan over powers of two of microbatches that divide the batch.

    Few microbatches make bubbles and hold much memory, many make small products: the time falls,
    then rises. Counts are tried from one on until two in a row are slower than the best, or the
    time is over, or Ctrl-C. A count for which its time was too short is passed over.

    Args:
        step_graph: the step as captured.
        plan_step: time and plan of the step in microbatches, within a budget.
        budget: for all of them; each may take half of what is left, all of it where there is no
            other: a step that is cut already.

    Raises:
        InfeasibleError: of the largest count, when none fits.
        ConfigError: E511 when the time was too short for every count.
        KeyboardInterrupt: on Ctrl-C before there was any plan.
    """
    best: tuple[float, P] | None = None
    num_slower = 0
    refused: InfeasibleError | ConfigError | None = None
    share = _SHARE if step_graph.num_microbatches == 1 else 1.0
    for graph in _cut(step_graph):
        if refused is not None and budget.is_spent:
            break
        own = SearchBudget(share * budget.left_s)
        try:
            found = plan_step(graph, own)
        except InfeasibleError as error:
            refused = error
            continue
        except ConfigError as error:
            if error.code != "E511":
                raise
            refused = refused or error
            continue
        except KeyboardInterrupt:
            if best is None:
                raise
            break
        finally:
            budget.interrupted = own.interrupted
        if best is None or found[0] < best[0]:
            best, num_slower = found, 0
        else:
            num_slower += 1
        if num_slower == _PATIENCE or budget.is_spent:
            break
    if best is None:
        assert refused is not None
        raise refused
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
