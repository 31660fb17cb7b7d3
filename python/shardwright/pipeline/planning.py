"""From a step and a cluster to a pipeline: chooses the stages, then plans each."""

from __future__ import annotations

import dataclasses

from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.collector import collector_paused
from shardwright.errors import ConfigError, InfeasibleError
from shardwright.pipeline.options import (
    PipelineOptions,
    StageConstraints,
    even_stages,
    wrong_stages,
)
from shardwright.pipeline.pipeline import Pipeline, build_pipeline
from shardwright.pipeline.recomputed_stages import with_all_recomputed
from shardwright.pipeline.search import SearchedMemory, can_search, search_stages
from shardwright.pipeline.stage_plans import StageRequest
from shardwright.plan import Plan
from shardwright.planning import SearchRequest, match_forced, plan_graph
from shardwright.search_budget import SearchBudget

# Shares of the memory that the search for stages is given, one after the other.
_SEARCHED_MEMORY = (1.0, 0.95, 0.85)
# Of the time that is left, what the search for stages may take: it gives nothing before all layers
# are priced. The rest is for the plans of the stages.
_SEARCHED_TIME = 0.75


def plan_pipeline(
    step_graph: StepGraph,
    cluster: Cluster,
    constraints: StageConstraints,
    request: SearchRequest,
    budget: SearchBudget | None = None,
) -> Pipeline:
    """Plans a step in stages.

    Stages are searched where nothing but their number is asked for. What the plan of a stage needs
    may be less than the search knew, or more: stages that hold a little too much by the search's
    tables are planned first where that would make the limit harmless, and where plans do not fit
    stages are searched again for less memory.

    Args:
        step_graph: In microbatches already.
        cluster: The machines; all devices are used.
        constraints: The stages as they were asked for.
        request: Limits of the searches; the time is for all of them together, those for stages
            and those for the plans of the stages, however often they are made.
        budget: The time instead, where it is shared with others; told of Ctrl-C.

    Raises:
        ConfigError: E511 when time ran out before there were stages, E527, E528; PlanError: E334,
            E335; InfeasibleError: E205, E206; and what planning a stage raises.
    """
    budget = budget or SearchBudget(request.time_limit_s)
    refused: InfeasibleError | None = None
    memory = SearchedMemory(hopes=True)
    shares = list(_SEARCHED_MEMORY)
    while shares:
        if refused and budget.is_spent:
            break
        memory = dataclasses.replace(memory, share=shares[0])
        timed = dataclasses.replace(request, time_limit_s=_SEARCHED_TIME * budget.left_s)
        try:
            options = choose_stages(step_graph, cluster, constraints, timed, budget, memory)
        except (InfeasibleError, ConfigError) as error:
            raise refused or error from None
        memory = dataclasses.replace(memory, hopes=False)
        if not options.is_hopeful:
            shares.pop(0)
        try:
            return _plan_either(step_graph, options, cluster, request, budget)
        except InfeasibleError as error:
            if not can_search(constraints, cluster):
                raise
            if not options.is_hopeful:
                refused = refused or error
    assert refused is not None
    raise refused


def _plan_either(
    step_graph: StepGraph,
    options: PipelineOptions,
    cluster: Cluster,
    request: SearchRequest,
    budget: SearchBudget,
) -> Pipeline:
    """The faster of the pipelines that fit, where a search could not decide between two."""
    refused: InfeasibleError | None = None
    planned: list[Pipeline] = []
    for choice in (options, options.other):
        if choice is None or (planned and budget.is_spent):
            continue
        if request.recompute == "full":
            choice = with_all_recomputed(step_graph, choice)
        try:
            planned.append(plan_options(step_graph, choice, cluster, request, budget))
        except InfeasibleError as error:
            refused = refused or error
    if not planned:
        assert refused is not None
        raise refused
    return min(planned, key=lambda pipeline: pipeline.plan.time_us)


@collector_paused()
def choose_stages(
    step_graph: StepGraph,
    cluster: Cluster,
    constraints: StageConstraints,
    request: SearchRequest,
    budget: SearchBudget | None = None,
    memory: SearchedMemory | None = None,
) -> PipelineOptions:
    """The stages that a search finds, or as asked for, the rest shared out evenly.

    Raises:
        ConfigError: E511, as `search_stages`; E528 when the number of stages is open and they
            cannot be searched.
        InfeasibleError: E205 when no stages fit.
    """
    if can_search(constraints, cluster):
        return search_stages(step_graph, cluster, constraints, request, budget, memory)
    if constraints.num_stages is None:
        at_fault = (
            "a schedule or hosts that are not searched"
            if constraints.is_open
            else ("stage_ranks, stage_meshes or stage_boundaries without a number of stages")
        )
        raise wrong_stages(None, [at_fault])
    return even_stages(step_graph, constraints, cluster.num_devices)


@collector_paused()
def plan_options(
    step_graph: StepGraph,
    options: PipelineOptions,
    cluster: Cluster,
    request: SearchRequest,
    budget: SearchBudget | None = None,
) -> Pipeline:
    """Plans every stage of a given cut.

    A stage may take an equal share of the time that those before it left.

    Args:
        step_graph: In microbatches.
        options: The stages.
        cluster: The machines.
        request: Limits of the searches, the time for all of them together.
        budget: The time instead, where it is shared with others.

    Raises:
        As `plan_pipeline`.
    """
    time_left = budget or SearchBudget(request.time_limit_s)
    forced = match_forced(request.forced, step_graph)
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
                time_limit_s=time_left.left_s / (len(options.stages) - stage.number),
                memory_limit_bytes=own_limit,
                microbatches_in_flight=stage.microbatches_in_flight,
            ),
        )

    return build_pipeline(step_graph, options, cluster, plan_stage)
