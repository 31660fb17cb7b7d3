"""sw.parallelize: the decorator that runs a one-device training step on all processes."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from shardwright.cluster import Cluster
from shardwright.errors import ConfigError
from shardwright.pipeline.microbatch_search import search_microbatches
from shardwright.pipeline.options import StageConstraints, wanted_microbatches, wrong_stages
from shardwright.pipeline.pipeline import Pipeline, lower_pipeline
from shardwright.pipeline.plan import PipelinePlan
from shardwright.pipeline.planning import plan_pipeline
from shardwright.pipeline.recompute import checked_recompute, with_recomputation
from shardwright.pipeline.session import PipelineSession
from shardwright.plan import Plan
from shardwright.plan_files import load_plan
from shardwright.planning import (
    SearchRequest,
    given_cluster,
    mesh_shape,
    parse_bytes,
    plan_graph,
)
from shardwright.runtime.groups import check_mesh_size
from shardwright.runtime.session import Session
from shardwright.search_budget import SearchBudget, search_seconds

if TYPE_CHECKING:
    from shardwright.capture import StepGraph
    from shardwright.lowering.program import Program

P = TypeVar("P")

_GPU_PRESETS = (("H200", "h200"), ("H100", "h100"), ("A100", "a100-80gb"), ("V100", "p3.16xlarge"))


class ParallelStep:
    """A training step that runs on every process of the job.

    Calling it does what the decorated function does: captures at the first call with a new
    signature, plans on rank 0, divides model and optimizer in place, and runs. Every rank passes
    the same whole batch and gets the same return value.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        memory_limit: str | int | float | None,
        mesh: Sequence[int] | int | None,
        cluster: Cluster | str | None,
        plan: Plan | PipelinePlan | str | Path | None,
        forced: Mapping[str, str] | None,
        num_microbatches: int | str | None,
        num_stages: int | str,
        schedule: str,
        stage_ranks: Sequence[int] | None,
        stage_meshes: Sequence[Sequence[int]] | None,
        stage_boundaries: Sequence[str] | None,
        stages_per_rank: int,
        recompute: str,
        timeout: float | timedelta,
        time_limit_s: float,
        check: bool,
    ) -> None:
        functools.update_wrapper(self, step)
        shape = mesh_shape(mesh)
        self._mesh = None if shape is None else tuple(shape)
        self._cluster = None if cluster is None else given_cluster(cluster)
        self._given = load_plan(plan) if isinstance(plan, (str, Path)) else plan
        self._request = SearchRequest(
            parse_bytes(memory_limit),
            dict(forced or {}),
            search_seconds(time_limit_s),
            recompute=checked_recompute(recompute),
        )
        constraints = StageConstraints.given(
            num_stages,
            schedule,
            stage_ranks,
            stage_meshes,
            stage_boundaries,
            stages_per_rank,
            mesh=shape,
        )
        microbatches = wanted_microbatches(num_microbatches, num_stages)
        if isinstance(self._given, PipelinePlan):
            _check_given(self._given, num_stages, microbatches)
            microbatches = self._given.num_microbatches
        elif self._given is not None and num_stages == 1:
            self._request = dataclasses.replace(self._request, recompute=self._given.recompute)
            microbatches = microbatches if num_microbatches else self._given.num_microbatches
        elif self._given is not None:
            raise wrong_stages(constraints.num_stages, ["plan, which is of a step without stages"])
        options = {
            "memory_limit": str(self._request.memory_limit_bytes),
            "mesh": str(self._mesh),
            "cluster": str(self._cluster),
            "plan": "" if self._given is None else self._given.graph_hash,
            "forced shardings": str(sorted(self._request.forced.items())),
            "microbatches": str(microbatches),
            "stages": str(constraints),
            "recompute": self._request.recompute,
        }
        duration = _duration(timeout)
        self._new_session: Callable[[], Session] = functools.partial(
            Session, step, self._make_plan, os.environ, options, duration, microbatches, check,
            self._request.recompute,
        )  # fmt: skip
        if num_stages != 1 or isinstance(self._given, PipelinePlan):
            self._new_session = functools.partial(
                PipelineSession, step, self._make_plan, os.environ, options, duration,
                microbatches, check,
                plan_pipeline=functools.partial(self._plan_pipeline, constraints),
            )  # fmt: skip
        self._searches_microbatches = microbatches is None
        self._sessions: list[Session] = []
        self._session = self._new_session()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One training step. Each model with its optimizers is divided and kept apart."""
        self._sessions = [s for s in self._sessions if not s.is_stale]
        known = next((s for s in self._sessions if s.knows(args, kwargs)), None)
        if known is None:
            known = self._new_session()
        self._session = known
        try:
            return known.call(args, kwargs)
        finally:
            if known.holds_objects and all(known is not held for held in self._sessions):
                self._sessions.append(known)

    @property
    def plan(self) -> Plan | PipelinePlan | None:
        """Plan of the newest call; None before the first. With stages it is that of all stages."""
        if self.pipeline is not None:
            return self.pipeline.plan
        newest = self._session.newest
        return None if newest is None else newest.plan

    @property
    def pipeline(self) -> Pipeline | None:
        """All stages of the newest call; None before the first, and without stages."""
        session = self._session
        return session.pipeline if isinstance(session, PipelineSession) else None

    @property
    def program(self) -> Program | None:
        """Program of the newest call, of this rank's stage; None before the first."""
        newest = self._session.newest
        return None if newest is None else newest.program

    def _plan_pipeline(
        self,
        constraints: StageConstraints,
        graph: StepGraph,
        world_size: int,
        device: torch.device,
    ) -> Pipeline:
        """Called on rank 0."""
        if isinstance(self._given, PipelinePlan):
            self._given.validate(graph)
            check_mesh_size((self._given.num_devices,), world_size)
            return lower_pipeline(graph, self._given)
        cluster = self._cluster or default_cluster(world_size, device)
        if cluster.num_devices != world_size:
            cluster = cluster.part(world_size)

        def timed_plan(cut: StepGraph, budget: SearchBudget) -> tuple[float, Pipeline]:
            pipeline = plan_pipeline(cut, cluster, constraints, self._request, budget)
            return pipeline.plan.time_us, pipeline

        return self._fastest(graph, timed_plan)

    def _fastest(
        self, graph: StepGraph, timed_plan: Callable[[StepGraph, SearchBudget], tuple[float, P]]
    ) -> P:
        """The plan in the microbatches asked for, or in as many as are fastest."""
        budget = SearchBudget(self._request.time_limit_s)
        if self._searches_microbatches:
            return search_microbatches(graph, timed_plan, budget)
        return timed_plan(graph, budget)[1]

    def _make_plan(
        self,
        graph: StepGraph,
        world_size: int,
        device: torch.device,
        mesh: tuple[int, ...] | None,
        specs: Mapping[str, str],
    ) -> Plan:
        """Called on rank 0."""
        given = self._given
        if isinstance(given, Plan) and (mesh is None or given.graph_hash == graph.hash()):
            given.validate(graph)
            return given
        shape = mesh or self._mesh or ((1,) if world_size == 1 else None)
        if shape is not None:
            check_mesh_size(shape, world_size)
        cluster = self._cluster or default_cluster(world_size, device)
        request = dataclasses.replace(self._request, forced={**self._request.forced, **specs})

        def timed_plan(cut: StepGraph, budget: SearchBudget) -> tuple[float, Plan]:
            cut = with_recomputation(cut, self._request.recompute)
            own = dataclasses.replace(request, time_limit_s=budget.left_s)
            plan = plan_graph(cut, cluster, shape, own)
            return plan.time_us, plan

        return self._fastest(graph, timed_plan)


def default_cluster(world_size: int, device: torch.device) -> Cluster:
    """The machines this job runs on, as far as they tell.

    Raises:
        ConfigError: E504 for a GPU without a preset.
    """
    if device.type == "cpu":
        return Cluster.local_cpu(world_size)
    name = torch.cuda.get_device_name(device)
    preset = next((preset for word, preset in _GPU_PRESETS if word in name), None)
    if preset is None:
        raise ConfigError(
            "the figures of this device are not known.",
            code="E504",
            values=[f"device: {name}"],
            advice='pass cluster=..., for instance sw.Cluster.preset("a100-80gb") or a JSON file',
        )
    per_host = min(world_size, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    return Cluster.preset(preset, nodes=world_size // per_host, devices_per_host=per_host)


def _check_given(plan: PipelinePlan, num_stages: int | str, num_microbatches: int | None) -> None:
    """Raises ConfigError E528 when other stages or microbatches than the plan's are asked for."""
    asked = {
        "num_stages": (num_stages, len(plan.stages)),
        "num_microbatches": (num_microbatches, plan.num_microbatches),
    }
    wrong = [
        f"{name}={number}, the plan has {found}"
        for name, (number, found) in asked.items()
        if number not in (1, "auto", None, found)
    ]
    if wrong:
        raise wrong_stages(len(plan.stages), wrong)


def _duration(timeout: float | timedelta) -> timedelta:
    duration = timeout if isinstance(timeout, timedelta) else None
    if duration is None and isinstance(timeout, (int, float)) and 0 < timeout < 1e7:
        duration = timedelta(seconds=timeout)
    if duration is None or duration <= timedelta(0):
        raise ConfigError(
            "timeout must be a positive number of seconds.",
            code="E505",
            values=[f"timeout: {timeout!r}"],
            advice="timeout=600",
        )
    return duration


@overload
def parallelize(step: Callable[..., Any], /) -> ParallelStep: ...


@overload
def parallelize(
    *,
    memory_limit: str | int | float | None = None,
    mesh: Sequence[int] | int | None = None,
    cluster: Cluster | str | None = None,
    plan: Plan | PipelinePlan | str | Path | None = None,
    forced: Mapping[str, str] | None = None,
    num_microbatches: int | str | None = None,
    num_stages: int | str = 1,
    schedule: str = "1f1b",
    stage_ranks: Sequence[int] | None = None,
    stage_meshes: Sequence[Sequence[int]] | None = None,
    stage_boundaries: Sequence[str] | None = None,
    stages_per_rank: int = 1,
    recompute: str = "none",
    timeout: float | timedelta = 600.0,
    time_limit_s: float = 60.0,
    check: bool = True,
) -> Callable[[Callable[..., Any]], ParallelStep]: ...


def parallelize(
    step: Callable[..., Any] | None = None,
    /,
    *,
    memory_limit: str | int | float | None = None,
    mesh: Sequence[int] | int | None = None,
    cluster: Cluster | str | None = None,
    plan: Plan | PipelinePlan | str | Path | None = None,
    forced: Mapping[str, str] | None = None,
    num_microbatches: int | str | None = None,
    num_stages: int | str = 1,
    schedule: str = "1f1b",
    stage_ranks: Sequence[int] | None = None,
    stage_meshes: Sequence[Sequence[int]] | None = None,
    stage_boundaries: Sequence[str] | None = None,
    stages_per_rank: int = 1,
    recompute: str = "none",
    timeout: float | timedelta = 600.0,
    time_limit_s: float = 60.0,
    check: bool = True,
) -> ParallelStep | Callable[[Callable[..., Any]], ParallelStep]:
    """Runs a training step written for one device on all processes of the job.

    The function gets model, optimizer and whole batch as arguments and does forward, backward,
    clipping and update; what it returns is returned on every rank. In a plain process it runs
    there; under torchrun on all ranks.

    Args:
        step: the function, when used without parentheses.
        memory_limit: bytes per device: a number, or text such as `"14GiB"`.
        mesh: shape of the device mesh, such as `(2, 4)`; by default the planner chooses.
        cluster: the machines, or a word such as `"p3.16xlarge:8"`; by default those at hand.
        plan: a plan, or the file of one, to use instead of planning; one of a step in stages
            brings its stages and microbatches.
        forced: specs that inputs must have, see `sw.plan`.
        num_microbatches: in how many parts, one after the other, the batch goes through forward
            and backward; gradients are added up and the update runs once. Losses and gradients are
            those of the whole batch; see docs/concepts/microbatches.md for what cannot be cut.
            "auto" for the fastest power of two. By default 1, and "auto" where num_stages is.
        num_stages: in how many pipeline stages the layers run, each on ranks of its own, or "auto"
            for as many as are fastest; stages of which nothing else is given are searched.
        schedule: order in which stages take microbatches, "1f1b", "gpipe", "interleaved_1f1b" or
            "zero_bubble".
        stage_ranks: ranks of every stage, such as `(1, 2)`; by default equally many.
        stage_meshes: shape of every stage's mesh; by default the planner chooses.
        stage_boundaries: what begins the second, third, ... stage: names of modules, or fx names of
            forward nodes; by default the layers that are found (and marked, `sw.mark_layer`) are
            shared out evenly by FLOPs.
        stages_per_rank: how many stages run on the same ranks, with "interleaved_1f1b": stages 0
            and 2 on the first half and 1 and 3 on the second for 4 stages and 2. `stage_ranks` and
            `stage_meshes` are then those of the first ones.
        recompute: "full" makes the forward of every layer again in its backward, which costs time
            and saves memory (docs/concepts/recomputation.md); "none" by default. A given plan
            brings its own.
        timeout: of every collective, in seconds.
        time_limit_s: for all searches together, without capture.
        check: proves every program with the static checker before it runs.

    Returns:
        The step, with the attributes `plan` and `program`.

    Raises:
        ConfigError: E505 for a timeout that is none, E520 for a number of microbatches or stages
            that is none, E521 for a memory limit that is none, E528 for stages that cannot be.

    Example:
        >>> @sw.parallelize(memory_limit="14GiB")
        ... def train_step(model, optimizer, tokens, targets): ...
    """

    def decorate(function: Callable[..., Any]) -> ParallelStep:
        return ParallelStep(
            function,
            memory_limit=memory_limit,
            mesh=mesh,
            cluster=cluster,
            plan=plan,
            forced=forced,
            num_microbatches=num_microbatches,
            num_stages=num_stages,
            schedule=schedule,
            stage_ranks=stage_ranks,
            stage_meshes=stage_meshes,
            stage_boundaries=stage_boundaries,
            stages_per_rank=stages_per_rank,
            recompute=recompute,
            timeout=timeout,
            time_limit_s=time_limit_s,
            check=check,
        )

    return decorate if step is None else decorate(step)
