"""sw.plan: from a training step and a cluster to a certified plan, without running anything."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from shardwright import _core
from shardwright.cluster import Cluster
from shardwright.errors import ClusterError, ConfigError
from shardwright.once import once_per_step
from shardwright.plan import Plan, PlanOrigin, SearchStats, plan_from_core
from shardwright.progress import Progress
from shardwright.search_budget import SearchBudget, search_seconds

if TYPE_CHECKING:
    from shardwright.capture.step_graph import StepGraph
    from shardwright.pipeline.plan import PipelinePlan

_UNITS = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
# Of a search for which others left no time: it gives what it has at once.
_LEAST_SECONDS = 1e-3


@overload
def plan(
    step: Callable[..., Any] | StepGraph,
    *args: Any,
    cluster: Cluster | str | None = None,
    mesh: Sequence[int] | int | None = None,
    memory_limit: str | int | float | None = None,
    forced: Mapping[str, str] | None = None,
    num_microbatches: int | str | None = None,
    microbatches_in_flight: int = 1,
    recompute: str = "none",
    time_limit_s: float = 60.0,
    relative_gap: float = 1e-4,
    shard_all_products: bool = False,
    step_kwargs: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Plan: ...


@overload
def plan(
    step: Callable[..., Any] | StepGraph,
    *args: Any,
    cluster: Cluster | str | None = None,
    mesh: Sequence[int] | int | None = None,
    memory_limit: str | int | float | None = None,
    forced: Mapping[str, str] | None = None,
    num_microbatches: int | str | None = None,
    num_stages: int | str,
    schedule: str = "1f1b",
    stage_ranks: Sequence[int] | None = None,
    stage_meshes: Sequence[Sequence[int]] | None = None,
    stage_boundaries: Sequence[str] | None = None,
    stages_per_rank: int = 1,
    recompute: str = "none",
    time_limit_s: float = 60.0,
    relative_gap: float = 1e-4,
    shard_all_products: bool = False,
    step_kwargs: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Plan | PipelinePlan: ...


def plan(
    step: Callable[..., Any] | StepGraph,
    *args: Any,
    cluster: Cluster | str | None = None,
    mesh: Sequence[int] | int | None = None,
    memory_limit: str | int | float | None = None,
    forced: Mapping[str, str] | None = None,
    num_microbatches: int | str | None = None,
    num_stages: int | str = 1,
    schedule: str = "1f1b",
    stage_ranks: Sequence[int] | None = None,
    stage_meshes: Sequence[Sequence[int]] | None = None,
    stage_boundaries: Sequence[str] | None = None,
    stages_per_rank: int = 1,
    microbatches_in_flight: int = 1,
    recompute: str = "none",
    time_limit_s: float = 60.0,
    relative_gap: float = 1e-4,
    shard_all_products: bool = False,
    step_kwargs: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Plan | PipelinePlan:
    """Plans a training step for a cluster.

    Args:
        step: The user's step, or a captured `StepGraph` (then without arguments), which may be cut
            into microbatches already.
        *args: What the step is called with; tensors and models may be on the meta device.
        cluster: The machines, or a word such as `"p3.16xlarge:8"`; by default as many CPU processes
            as the mesh has devices.
        mesh: Shape of the device mesh, such as `(2, 4)`; by default every shape of one or two axes
            is tried.
        memory_limit: Bytes per device: a number, or text such as `"14GiB"`; by default the
            cluster's.
        forced: Specs that inputs (by unsharded name; `*` and `?` match) or graph nodes must have,
            as printed: `{"*.mlp.up.weight": "R S0"}`. Needs `mesh`, or `stage_meshes`.
        num_microbatches: In how many parts the batch goes through forward and backward, as in
            `sw.parallelize`, or "auto" for the fastest power of two. By default 1, and "auto" where
            num_stages is.
        num_stages: In how many pipeline stages the layers run, or "auto" for as many as are
            fastest. Anything but 1 gives a `PipelinePlan`. Stages of which nothing else is given
            are searched: layers, devices, meshes, specs between stages, recomputation.
        schedule: Order in which stages take microbatches, "1f1b", "gpipe", "interleaved_1f1b" or
            "zero_bubble".
        stage_ranks: Devices of every stage, such as `(1, 2)`; by default equally many.
        stage_meshes: Shape of every stage's mesh; by default the planner chooses.
        stage_boundaries: What begins the second, third, ... stage: names of modules, or fx names of
            forward nodes; by default the layers that are found are shared out evenly by FLOPs.
        stages_per_rank: How many stages run on the same ranks, see `sw.parallelize`.
        microbatches_in_flight: How many microbatches are between their forward and their backward
            at once, when the step is one stage of a pipeline: all hold activations, while one is
            computed.
        recompute: "full" makes the forward of every layer again in its backward, so that only what
            goes between layers is kept; "none" keeps what backward needs.
        time_limit_s: Seconds for all searches together, without capture: of every number of
            microbatches tried, of stages with and without recomputation, of the plans of stages.
        relative_gap: Once (cost - lower bound) / cost is at most this, no long search is made for
            the rest; 0 always asks for a proof.
        shard_all_products: No matrix product may leave a mesh axis idle; for clusters on which
            compute costs nothing.
        step_kwargs: Keyword arguments of the step.
        on_progress: Called up to ten times per second while one mesh shape is searched, with phase,
            cost and lower bound (thousandths of a microsecond, or None) and seconds.

    Returns:
        The plan; `plan.certificate.status` says whether it is proven optimal.

    Raises:
        ConfigError: E521 for a memory limit that is none, E522 for a mesh that is none, E523 for a
            forced name that matches nothing, E524 when neither cluster nor mesh is given, E526 for
            a batch that cannot be cut, E527 and E528 for stages that cannot be, E520 for more
            microbatches in flight than there are.
        ClusterError: E351 for a mesh that is larger than the cluster, E352 for an unknown preset.
        CaptureError: When the step cannot be captured.
        RuleError: For an op without a rule.
        PlanError: E330 to E335 when the step cannot run in microbatches or stages.
        InfeasibleError: E203 when nothing fits the memory, E206 when a stage does not.
    """
    from shardwright.pipeline.microbatch_search import search_microbatches
    from shardwright.pipeline.options import StageConstraints, wanted_microbatches
    from shardwright.pipeline.planning import plan_pipeline
    from shardwright.pipeline.recompute import checked_recompute, with_recomputation

    request = SearchRequest(
        parse_bytes(memory_limit),
        forced or {},
        search_seconds(time_limit_s),
        _number("relative_gap", relative_gap, "a number, 0 or more", "1e-4"),
        shard_all_products,
        on_progress,
        _integer("microbatches_in_flight", microbatches_in_flight),
        checked_recompute(recompute),
    )
    shape = mesh_shape(mesh)
    constraints = StageConstraints.given(
        num_stages,
        schedule,
        stage_ranks,
        stage_meshes,
        stage_boundaries,
        stages_per_rank,
        mesh=shape,
    )
    if num_microbatches not in (None, "auto"):
        _integer("num_microbatches", num_microbatches)
    microbatches = wanted_microbatches(num_microbatches, num_stages)
    chosen = _cluster(cluster, shape or constraints.all_devices)
    started = time.perf_counter()
    captured = _captured(step, args, step_kwargs or {})
    seconds = {"capture": time.perf_counter() - started}

    def timed_plan(graph: StepGraph, budget: SearchBudget) -> tuple[float, Plan | PipelinePlan]:
        if constraints.num_stages == 1:
            graph = with_recomputation(graph, recompute)
            own = dataclasses.replace(request, time_limit_s=budget.left_s)
            one = plan_graph(graph, chosen, shape, own, seconds=seconds)
            return one.certificate.cost_us, one
        stages = plan_pipeline(graph, chosen, constraints, request, budget).plan
        return stages.time_us, stages

    budget = SearchBudget(request.time_limit_s)
    if microbatches is None:
        return search_microbatches(captured, timed_plan, budget)
    return timed_plan(_in_microbatches(captured, microbatches), budget)[1]


@dataclasses.dataclass(frozen=True)
class SearchRequest:
    """What a search is asked for, besides step, cluster and mesh.

    Attributes:
        memory_limit_bytes: per device; None for the cluster's.
        forced: specs by name or pattern.
        time_limit_s: for all searches together.
        relative_gap: gap that is good enough.
        shard_all_products: no matrix product may leave a mesh axis idle.
        on_progress: told about running searches.
        microbatches_in_flight: how many hold activations at once, where the step is a stage.
        recompute: "none", or "full" for every layer of every stage; `plan_graph` takes the graph as
            it is given.
    """

    memory_limit_bytes: int | None = None
    forced: Mapping[str, str] = dataclasses.field(default_factory=dict)
    time_limit_s: float = 60.0
    relative_gap: float = 1e-4
    shard_all_products: bool = False
    on_progress: Progress | None = None
    microbatches_in_flight: int = 1
    recompute: str = "none"


def plan_graph(
    step_graph: StepGraph,
    cluster: Cluster,
    mesh: Sequence[int] | None,
    request: SearchRequest,
    *,
    seconds: Mapping[str, float] | None = None,
) -> Plan:
    """Plans a captured step, or a stage of one, that runs on the whole of a cluster.

    Args:
        step_graph: In microbatches or not.
        cluster: The machines.
        mesh: Shape of the mesh; None tries every one.
        request: What is asked for.
        seconds: What was spent already, by phase.

    Raises:
        As `plan`.
    """
    from shardwright.pipeline.recompute import is_recomputed

    spent = dict(seconds or {})
    started = time.perf_counter()
    graph = sharded_graph(step_graph)
    spent["rules"] = time.perf_counter() - started
    origin = PlanOrigin(
        graph,
        request.memory_limit_bytes,
        match_forced(request.forced, step_graph),
        request.shard_all_products,
    )
    result = _core.plan_step(
        graph,
        cluster.to_core(),
        mesh_shape=None if mesh is None else list(mesh),
        memory_limit_bytes=request.memory_limit_bytes,
        forced=dict(origin.forced),
        num_microbatches=step_graph.num_microbatches,
        microbatches_in_flight=request.microbatches_in_flight,
        time_limit_s=max(request.time_limit_s, _LEAST_SECONDS),
        relative_gap=request.relative_gap,
        shard_all_products=request.shard_all_products,
        graph_hash=step_graph.hash(),
        on_progress=request.on_progress,
    )
    spent.update(result.seconds)
    stats = SearchStats(
        seconds=spent,
        trials=tuple(
            (tuple(t.mesh_shape), t.cost_us if t.cost_us >= 0 else None, t.status)
            for t in result.trials
        ),
        num_nodes=result.num_nodes,
        num_edges=result.num_edges,
    )
    plan = plan_from_core(result.plan, graph, cluster, stats, origin)
    return dataclasses.replace(plan, recompute="full" if is_recomputed(step_graph) else "none")


def sharded_graph(step_graph: StepGraph) -> _core.ShardedGraph:
    """The step as the planner reads it: op table, rules refined to atoms, views folded.

    Raises:
        RuleError: For an op without a rule.
    """
    from shardwright.graph_table import to_core_graph
    from shardwright.rules import rule_registry

    registry = rule_registry()
    known = _sharded_graphs(step_graph)
    if registry not in known:
        known.clear()
        known[registry] = _core.ShardedGraph(to_core_graph(step_graph), registry)
    return known[registry]


@once_per_step
def _sharded_graphs(step_graph: StepGraph) -> dict[_core.RuleRegistry, _core.ShardedGraph]:
    """By the rules that were known; holds the latest."""
    return {}


def parse_bytes(limit: str | int | float | None) -> int | None:
    """Bytes of a memory limit: `"14GiB"`, `"1.5e9"`, 2**30.

    Raises:
        ConfigError: E521 for text that is no size, NaN, infinity, and nothing above zero.
    """
    if limit is None:
        return None
    value = math.nan
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([A-Za-z]*)\s*", limit)
        if match and match[2].lower() in {*_UNITS, ""}:
            try:
                value = float(match[1]) * _UNITS[match[2].lower() or "b"]
            except ValueError:
                value = math.nan
    elif type(limit) in (int, float):
        value = float(limit)
    if not (math.isfinite(value) and 1 <= value <= 2**62):
        raise ConfigError(
            "memory_limit must be a positive number of bytes.",
            code="E521",
            values=[f"memory_limit: {limit!r}"],
            advice='memory_limit="14GiB", or a number of bytes',
        )
    return int(value)


def _captured(
    step: Callable[..., Any] | StepGraph, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> StepGraph:
    from shardwright.capture.capture import capture
    from shardwright.capture.step_graph import StepGraph

    if isinstance(step, StepGraph):
        if args or kwargs:
            raise ConfigError(
                "a captured step takes no arguments.",
                code="E522",
                advice="plan(step_graph, cluster=...)",
            )
        return step
    return capture(getattr(step, "__wrapped__", step), args, kwargs)


def _in_microbatches(step_graph: StepGraph, num_microbatches: int) -> StepGraph:
    from shardwright.pipeline.microbatches import split_microbatches

    if step_graph.num_microbatches == 1:
        return split_microbatches(step_graph, num_microbatches)
    if num_microbatches not in (1, step_graph.num_microbatches):
        raise ConfigError(
            "the captured step is in another number of microbatches already.",
            code="E522",
            values=[f"step: {step_graph.num_microbatches}", f"asked for: {num_microbatches}"],
            advice="the step as it was captured",
        )
    return step_graph


def mesh_shape(mesh: Sequence[int] | int | None) -> list[int] | None:
    """The sizes of a mesh that a user gave.

    Raises:
        ConfigError: E522 for what is no shape.
    """
    if mesh is None:
        return None
    shape: list[Any] = list(mesh) if isinstance(mesh, (list, tuple)) else [mesh]
    good = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in shape)
    if not shape or not good or len(shape) > 4 or isinstance(mesh, bool):
        raise ConfigError(
            "mesh must be a tuple of one to four positive integers.",
            code="E522",
            values=[f"mesh: {mesh!r}"],
            advice="mesh=(2, 4)",
        )
    return shape


def _integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**20:
        raise ConfigError(
            f"{name} must be a positive integer.",
            code="E522",
            values=[f"{name}: {value!r}"],
            advice=f"{name}=1",
        )
    return value


def given_cluster(cluster: Cluster | str) -> Cluster:
    """The cluster a user gave, as an object or a word.

    Raises:
        ClusterError: E352 to E356 for a word that names none.
        ConfigError: E522 for another type.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, str):
        return Cluster.parse(cluster)
    raise ConfigError(
        "cluster must be a Cluster or the name of one.",
        code="E522",
        values=[f"cluster: {cluster!r}"],
        advice='cluster="p3.16xlarge:8"',
    )


def _number(name: str, value: object, what: str, example: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(
        f"{name} must be {what}.",
        code="E520",
        values=[f"{name}: {value!r}"],
        advice=f"{name}={example}",
    )


def _cluster(cluster: Cluster | str | None, shape: list[int] | None) -> Cluster:
    if cluster is None:
        if shape is None:
            raise ConfigError(
                "neither cluster nor mesh is given.",
                code="E524",
                advice='cluster=sw.Cluster.preset("p3.16xlarge", nodes=8), or mesh=(2, 4)',
            )
        return Cluster.local_cpu(math.prod(shape))
    chosen = given_cluster(cluster)
    if shape is not None and not chosen.abstract_axes and math.prod(shape) != chosen.num_devices:
        raise ClusterError(
            "the mesh does not cover the cluster.",
            code="E351",
            values=[
                f"mesh: {tuple(shape)} has {math.prod(shape)} devices",
                f"cluster: {chosen}",
            ],
            advice=f"a mesh whose sizes multiply to {chosen.num_devices}, or another cluster",
        )
    return chosen


def match_forced(forced: Mapping[str, str], step_graph: StepGraph) -> dict[str, str]:
    """Specs by exact name: patterns are matched against the names of inputs, then of nodes."""
    inputs = [spec.name for spec in step_graph.inputs]
    nodes = [node.name for node in step_graph.graph_module.graph.nodes]
    matched: dict[str, str] = {}
    for pattern, text in forced.items():
        names = [n for n in inputs if n == pattern or fnmatch.fnmatchcase(n, pattern)]
        names = names or [n for n in nodes if fnmatch.fnmatchcase(n, pattern)]
        if not names:
            raise ConfigError(
                f"a sharding is forced on {pattern!r}, which matches nothing in the step.",
                code="E523",
                values=[f"inputs: {', '.join(inputs[:8])}{', ...' if len(inputs) > 8 else ''}"],
                advice="the unsharded name of an input; * and ? match",
            )
        matched.update(dict.fromkeys(names, text))
    return matched
