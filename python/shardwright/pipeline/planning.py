"""From a step and a cluster to a pipeline: chooses the stages, then plans each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.pipeline.options import (
    PipelineOptions,
    StageConstraints,
    even_stages,
    wrong_stages,
)
from shardwright.pipeline.pipeline import Pipeline, StageRequest, build_pipeline
from shardwright.pipeline.recomputed_stages import with_all_recomputed
from shardwright.pipeline.search import can_search, search_stages
from shardwright.plan import Plan
from shardwright.planning import SearchRequest, match_forced, plan_graph

# Chooses the stages: (step in microbatches, cluster, what was asked for) -> the stages.
StageChooser = Callable[[StepGraph, Cluster, StageConstraints, SearchRequest], PipelineOptions]


def plan_pipeline(
    step_graph: StepGraph,
    cluster: Cluster,
    constraints: StageConstraints,
    request: SearchRequest,
    *,
    choose: StageChooser | None = None,
) -> Pipeline:
    """Plans a step in stages.

    Args:
        step_graph: In microbatches already.
        cluster: The machines; all devices are used.
        constraints: The stages as they were asked for.
        request: Limits of the searches; the time is for all stages together.
        choose: Chooses the stages; by default they are searched where nothing but their number is
            asked for, and even where the rest is.

    Raises:
        ConfigError: E527, E528; PlanError: E334, E335; InfeasibleError: E206; and what planning a
            stage raises.
    """
    options = (choose or choose_stages)(step_graph, cluster, constraints, request)
    if request.recompute == "full":
        options = with_all_recomputed(step_graph, options)
    return plan_options(step_graph, options, cluster, request)


def choose_stages(
    step_graph: StepGraph,
    cluster: Cluster,
    constraints: StageConstraints,
    request: SearchRequest,
) -> PipelineOptions:
    """The stages that a search finds, or as asked for, the rest shared out evenly.

    Raises:
        ConfigError: E528 when the number of stages is open and they cannot be searched.
    """
    if can_search(constraints, cluster):
        return search_stages(step_graph, cluster, constraints, request)
    if constraints.num_stages is None:
        raise wrong_stages(None, ["schedule, or a cluster of hosts that are no power of two"])
    return even_stages(step_graph, constraints, cluster.num_devices)


def plan_options(
    step_graph: StepGraph, options: PipelineOptions, cluster: Cluster, request: SearchRequest
) -> Pipeline:
    """Plans every stage of a given cut.

    Raises:
        As `plan_pipeline`.
    """
    forced = match_forced(request.forced, step_graph)
    share = request.time_limit_s / len(options.stages)
    first_ranks = [stage.first_rank for stage in options.stages]
    limit = request.memory_limit_bytes or cluster.memory_bytes

    def plan_stage(graph: StepGraph, stage: StageRequest) -> Plan:
        names = {spec.name for spec in graph.inputs if spec.kind != "boundary"}
        names |= {node.name for node in graph.graph_module.graph.nodes}
        # Stages that share ranks share their memory.
        sharing = first_ranks.count(first_ranks[stage.number])
        own_limit = limit // sharing if limit else None
        wanted = {name: spec for name, spec in forced.items() if name in names} | dict(stage.forced)
        return plan_graph(
            graph,
            stage.cluster,
            stage.mesh,
            dataclasses.replace(
                request,
                forced=wanted,
                time_limit_s=share,
                memory_limit_bytes=own_limit,
                microbatches_in_flight=stage.microbatches_in_flight,
            ),
        )

    return build_pipeline(step_graph, options, cluster, plan_stage)
