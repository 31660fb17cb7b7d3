"""Stages found by search: which layers, devices, meshes, boundary specs, and what is recomputed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.errors import ConfigError, InfeasibleError
from shardwright.graph_table import table_nodes, to_core_graph
from shardwright.pipeline.backward_split import split_convolutions
from shardwright.pipeline.layers import Layers, assign_layers, layers_for
from shardwright.pipeline.options import (
    PipelineOptions,
    SearchClaim,
    StageConstraints,
    StageOptions,
)
from shardwright.pipeline.recompute import recompute_layers
from shardwright.planning import SearchRequest
from shardwright.rules import rule_registry
from shardwright.search_budget import SearchBudget

# Of deeper steps, several layers at a time: the search grows with the square of their number.
_MOST_LAYERS = 64
# What the memory limit must cost of the time for recomputation to be looked at.
_LEAST_COST_OF_MEMORY = 0.01
# Share of the memory that hopeful stages may hold by the tables.
_HOPED = 1.1
# Stages that take so much longer in the model may be faster once they are planned.
_ABOUT_AS_LONG = 0.05
# Relative difference of times that are the same.
_ROUNDING = 1e-9
# What is known of a search that Ctrl-C ended before it had any stages.
_INTERRUPTED = {"stages": (), "lower_bound_us": 0.0, "status": "time_limit", "interrupted": True}


def can_search(constraints: StageConstraints, cluster: Cluster) -> bool:
    """Whether the stages are open, and the search knows submeshes and schedule.

    It knows hosts of a power of two of devices, and all schedules but the interleaved one.
    """
    if (constraints.num_stages or 1) > cluster.num_devices:
        return False
    is_power = cluster.devices_per_host & (cluster.devices_per_host - 1) == 0
    is_known = constraints.schedule != "interleaved_1f1b"
    return constraints.is_open and is_known and is_power and not cluster.abstract_axes


@dataclass(frozen=True)
class SearchedMemory:
    """How searches for the stages of one step see the memory limit.

    Attributes:
        share: of the limit that stages may hold by the tables.
        hopes: whether more may be hoped to fit, where that makes all that the limit costs good.
        priced: the layers' tables, which searches of one step and request share.
    """

    share: float = 1.0
    hopes: bool = False
    priced: _core.PricedLayers = field(default_factory=_core.PricedLayers)


def search_stages(
    step_graph: StepGraph,
    cluster: Cluster,
    constraints: StageConstraints,
    request: SearchRequest,
    budget: SearchBudget | None = None,
    memory: SearchedMemory | None = None,
) -> PipelineOptions:
    """The stages of least time in the model of csrc/plan/pipeline_search.h.

    Ctrl-C ends the search with the best stages so far.

    Args:
        step_graph: In microbatches.
        cluster: The machines; all devices are used.
        constraints: Number of stages, and schedule.
        request: Memory and time; the time is for both searches, with recomputation and without.
        budget: Told when Ctrl-C ended the search.
        memory: What is searched for of the limit; all of it by default.

    Raises:
        ConfigError: E527 when the step cannot be cut into so many stages, E511 when time ran out
            before any stages were found.
        InfeasibleError: E205 when no stages fit.
        KeyboardInterrupt: On Ctrl-C before there were any stages.
        PlanError: E334 when the step cannot run in stages.
    """
    own = SearchBudget(request.time_limit_s)
    memory = memory or SearchedMemory()
    layers = layers_for(step_graph, constraints.num_stages or 1, most_layers=_MOST_LAYERS)
    limit = request.memory_limit_bytes or cluster.memory_bytes or None
    search = functools.partial(
        _core.search_pipeline,
        *_layered(step_graph, layers, constraints.schedule),
        registry=rule_registry(),
        cluster=cluster.to_core(),
        num_microbatches=step_graph.num_microbatches,
        schedule=constraints.schedule,
        num_stages=constraints.num_stages,
        memory_limit_bytes=limit,
        shard_all_products=request.shard_all_products,
        priced=memory.priced,
    )
    found: Mapping[str, Any] | None = None
    other: Mapping[str, Any] | None = None
    try:
        # With recomputation another limit would do.
        found = search(
            memory_share=memory.share, time_limit_s=own.left_s, says_what_would_do=limit is None
        )
    except InfeasibleError:
        if limit is None:
            raise
    own.interrupted = found is not None and found["interrupted"]
    matters = found is None or _memory_matters(found, _LEAST_COST_OF_MEMORY)
    hoped = _hoped(search, own) if memory.hopes and matters and not own.is_spent else None
    if hoped is not None:
        found, matters = hoped, False
    # Computing forward again costs time: worth a look only where memory does.
    if found is None or (matters and not own.is_spent):
        recomputed = recompute_layers(step_graph, layers, range(len(layers)))
        graph, layer_of = _layered(recomputed, layers, constraints.schedule)
        try:
            again = search(
                recomputed=graph,
                recomputed_layers=layer_of,
                memory_share=memory.share,
                time_limit_s=own.left_s,
            )
        except KeyboardInterrupt:
            if found is None or not found["stages"]:
                raise
            again = _INTERRUPTED
        own.interrupted = again["interrupted"]
        found, other = (again, None) if found is None else _better(found, again)
    elif _memory_matters(found, _ROUNDING):
        # Stages that recompute may do that much better.
        found = {**found, "lower_bound_us": found["unlimited_us"]}
    if not found["stages"]:
        raise ConfigError(
            "no stages were found within the time limit.",
            code="E511",
            values=[f"seconds for the search for stages: {request.time_limit_s:.3g}"],
            advice="a larger time_limit_s",
        )
    if budget is not None:
        budget.interrupted = own.interrupted

    def options(answer: Mapping[str, Any]) -> PipelineOptions:
        claim = SearchClaim(
            answer["time_us"], answer["lower_bound_us"], answer["status"] != "optimal"
        )
        return PipelineOptions(
            tuple(_stage(stage, layers) for stage in answer["stages"]),
            constraints.schedule,
            claim if _is_searched_as_asked(request) else None,
            is_hopeful=hoped is not None,
        )

    best = options(found)
    return best if other is None else dataclasses.replace(best, other=options(other))


def _hoped(search: Callable[..., Mapping[str, Any]], own: SearchBudget) -> Mapping[str, Any] | None:
    """Stages that hold a little more than there is, if so much would do.

    The tables know a few ways to hold a layer, the plan of a stage all of them: it may fit, at
    hardly any cost, where no way of the tables does.
    """
    try:
        found = search(memory_share=_HOPED, time_limit_s=own.left_s, says_what_would_do=False)
    except InfeasibleError:
        return None
    own.interrupted = found["interrupted"]
    if not found["stages"] or _memory_matters(found, _LEAST_COST_OF_MEMORY):
        return None
    return found


def _layered(step_graph: StepGraph, layers: Layers, schedule: str) -> tuple[_core.Graph, list[int]]:
    """The step as its stages will have it, and the layers of its nodes."""
    layer_of = assign_layers(step_graph, layers.begins)
    if schedule == "zero_bubble":
        split = split_convolutions(step_graph, layer_of)
        if split is not step_graph:
            step_graph, layer_of = split, assign_layers(split, layers.begins)
    nodes = table_nodes(step_graph.graph_module)
    return to_core_graph(step_graph), [layer_of[node] for node in nodes]


def _memory_matters(found: Mapping[str, Any], share: float) -> bool:
    """Whether the memory limit costs more than a share of the time."""
    return bool(found["unlimited_us"] < (1 - share) * found["time_us"])


def _is_searched_as_asked(request: SearchRequest) -> bool:
    """Whether the tables of the search know all that the plans of the stages will keep to."""
    return not request.forced and request.recompute == "none"


def _better(
    plain: Mapping[str, Any], again: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Of two searches the second of which may recompute; and the other if it is hardly worse.

    It knows more ways, of which no more are kept: it may have lost the better one. No stages are
    below both bounds, or below what any take whose memory is not limited.
    """
    bound = min(plain["lower_bound_us"], again["lower_bound_us"])
    if not again["stages"]:
        bound = max(bound, plain["unlimited_us"])
        return {**plain, "lower_bound_us": bound, "status": again["status"]}, None
    if not plain["stages"]:
        return again, None
    plain = {**plain, "lower_bound_us": bound, "status": again["status"]}
    best, other = (again, plain) if again["time_us"] <= plain["time_us"] else (plain, again)
    is_worth = other["time_us"] <= (1 + _ABOUT_AS_LONG) * best["time_us"]
    return best, other if is_worth and other["stages"] != best["stages"] else None


def _stage(found: Mapping[str, Any], layers: Layers) -> StageOptions:
    begin, end = found["begin"], found["end"]
    return StageOptions(
        found["num_hosts"] * found["devices_per_host"],
        found["first_device"],
        layers.begins[begin - 1] if begin > 0 else "",
        tuple(layers.begins[layer - 1] for layer in range(begin + 1, end)),
        tuple(found["mesh_shape"]),
        found["recomputed"],
        crossing=found["specs"],
    )
