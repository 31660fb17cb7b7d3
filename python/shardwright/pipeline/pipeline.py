"""A pipeline plan lowered: a program per stage, transfers between them, every stage's actions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from functools import cached_property

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.errors import ConfigError, PlanError
from shardwright.lowering.emitted import EmittedProgram
from shardwright.lowering.program import Program
from shardwright.pipeline.boundary_specs import boundary_specs
from shardwright.pipeline.options import (
    PipelineOptions,
    SearchClaim,
    splits_backward,
)
from shardwright.pipeline.plan import (
    PipelineCertificate,
    PipelinePlan,
    PipelineStage,
)
from shardwright.pipeline.plan_schema import same_simulation
from shardwright.pipeline.pricing import (
    backward_weight_us,
    microbatches_in_flight,
    pipeline_certificate,
    simulated_step,
    stage_schedule,
)
from shardwright.pipeline.recomputed_stages import recompute_stages
from shardwright.pipeline.stage_graphs import StageGraphs, split_stages
from shardwright.pipeline.stage_plans import StagePlanner, StageRequest, plan_checked
from shardwright.pipeline.transfers import PlannedTransfer, TransferPlanner
from shardwright.plan import Plan, same_step

_MOST_SHOWN = 8


class Pipeline:
    """A step in stages; the same object on every rank.

    Args:
        stages: the graphs.
        planned: what the plan says of every stage.
        kind: of the schedule.
        cluster: the machines.
        graph_hash: of the step before it was cut into stages.
        claim: of the search that found the stages.

    Attributes:
        stages: the graphs.
        plans: of every stage.
        cluster: the machines.
        first_ranks: first global rank of every stage; the others follow.
        schedule: actions of every stage.
        messages: transfers that go together, in the order of their first ones.
        transfers: in the order of `stages.transfers`.
    """

    def __init__(
        self,
        stages: StageGraphs,
        planned: Sequence[PipelineStage],
        kind: str,
        cluster: Cluster,
        graph_hash: str,
        claim: SearchClaim | None = None,
    ) -> None:
        self.stages = stages
        self.cluster = cluster
        self.plans = tuple(stage.plan for stage in planned)
        self._emitted = tuple(
            EmittedProgram(graph, plan)
            for graph, plan in zip(stages.graphs, self.plans, strict=True)
        )
        self.first_ranks = tuple(stage.first_rank for stage in planned)
        _check_meshes(planned)
        self.schedule = stage_schedule(
            kind, self.first_ranks, stages.whole.num_microbatches, stages.transfers
        )
        machines = cluster.to_core()
        submeshes = [
            _core.Submesh.on_cluster(plan.mesh_shape, list(self.ranks_of(stage)), machines)
            for stage, plan in enumerate(self.plans)
        ]
        planner = TransferPlanner(self._emitted, self.plans, submeshes, machines)
        self.messages = planner.messages(stages.transfers)
        by_transfer = {of.transfer: of for message in self.messages for of in message}
        self.transfers = tuple(by_transfer[transfer] for transfer in stages.transfers)
        self._planned_stages = tuple(planned)
        self._kind = kind
        self._graph_hash = graph_hash
        self._claim = claim

    @cached_property
    def plan(self) -> PipelinePlan:
        """The plan that this is lowered from, with its price."""
        transfers = tuple(transfer.described for transfer in self.transfers)
        simulation = simulated_step(self._kind, self._planned_stages, transfers)
        return PipelinePlan(
            graph_hash=self._graph_hash,
            cluster=self.cluster,
            schedule=self._kind,
            num_microbatches=self.num_microbatches,
            stages=self._planned_stages,
            transfers=transfers,
            simulation=simulation,
            certificate=pipeline_certificate(simulation.time_us, self._claim),
        )

    @property
    def programs(self) -> tuple[Program, ...]:
        """Of every stage."""
        return tuple(emitted.program for emitted in self._emitted)

    @property
    def num_microbatches(self) -> int:
        """How often forward and backward run per step."""
        return self.stages.whole.num_microbatches

    def ranks_of(self, stage: int) -> range:
        """Global ranks of a stage, in mesh order."""
        first = self.first_ranks[stage]
        return range(first, first + math.prod(self.plans[stage].mesh_shape))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages of a global rank, in order."""
        return tuple(s for s in range(len(self.plans)) if rank in self.ranks_of(s))

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Stages of every group of ranks: those that share their ranks."""
        of_stage = self.schedule.rank_of_stage
        return tuple(
            tuple(stage for stage, group in enumerate(of_stage) if group == number)
            for number in range(self.schedule.num_ranks)
        )

    @cached_property
    def actions(self) -> tuple[tuple[_core.Action, ...], ...]:
        """What every group of ranks does with its microbatches; receives are posted."""
        return tuple(tuple(actions) for actions in self.schedule.with_early_receives().actions)

    def transfers_of(self, when: str, source: int, target: int) -> list[PlannedTransfer]:
        """What one stage sends another of every microbatch, "forward" or "backward"."""
        return [
            t for t in self.transfers
            if (t.transfer.when, t.transfer.source, t.transfer.target) == (when, source, target)
        ]  # fmt: skip

    def fingerprint(self) -> str:
        """SHA-256 of all programs, transfers and actions."""
        parts = [program.fingerprint() for program in self.programs]
        parts += [
            f"{[(t.transfer, t.source, t.target) for t in message]} {message[0].plan.steps}"
            for message in self.messages
        ]
        parts.append(str(self.schedule))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def build_pipeline(
    step_graph: StepGraph, options: PipelineOptions, cluster: Cluster, plan_stage: StagePlanner
) -> Pipeline:
    """Cuts, plans and lowers a step in stages.

    Args:
        step_graph: the step, cut into microbatches already.
        options: stages and schedule.
        cluster: the machines.
        plan_stage: makes the plan of one stage.

    Raises:
        ConfigError: E527, E528; PlanError: E334, E335; InfeasibleError: E206 when a stage does not
            fit; and what planning raises.
    """
    _check_submeshes(options, cluster)
    stages = split_stages(
        step_graph,
        [stage.begin for stage in options.stages[1:]],
        splits_backward=splits_backward(options.schedule),
    )
    stages = recompute_stages(stages, options.stages, [stage.recompute for stage in options.stages])
    schedule = stage_schedule(
        options.schedule,
        [stage.first_rank for stage in options.stages],
        step_graph.num_microbatches,
        stages.transfers,
    )
    planned: list[PipelineStage] = []
    for number, (graph, stage, in_flight) in enumerate(
        zip(stages.graphs, options.stages, microbatches_in_flight(schedule), strict=True)
    ):
        earlier = [other.plan for other in planned if other.first_rank == stage.first_rank]
        mesh = stage.mesh or ((1,) if stage.num_devices == 1 else None)
        request = StageRequest(
            number,
            cluster.part(stage.num_devices),
            mesh if not earlier else earlier[0].mesh_shape,
            {
                **_held_already(graph, earlier),
                **stage.forced,
                **boundary_specs(stages, number, stage.entry, stage.exit, {}),
            },
            in_flight,
        )
        wished = boundary_specs(stages, number, "", "", stage.crossing)
        plan = plan_checked(graph, stage.num_devices, request, wished, plan_stage)
        late = backward_weight_us(graph, plan) if stages.splits_backward else 0.0
        planned.append(
            PipelineStage(
                plan, stage.first_rank, stage.begin, stage.layers, stage.recompute, in_flight, late
            )
        )
    return Pipeline(stages, planned, options.schedule, cluster, step_graph.hash(), options.claim)


def lower_pipeline(step_graph: StepGraph, plan: PipelinePlan) -> Pipeline:
    """Cuts a step as a plan says and lowers the stages.

    Args:
        step_graph: the step that the plan was made for, cut into microbatches or not.
        plan: a searched, written or loaded plan.

    Raises:
        PlanError: E325 for another step, E311, E314 when a stage's plan does not fit its graph.
    """
    step_graph = same_step(step_graph, plan.num_microbatches, plan.graph_hash)
    stages = split_stages(
        step_graph, plan.boundaries, splits_backward=splits_backward(plan.schedule)
    )
    stages = recompute_stages(stages, plan.stages, [stage.recomputed for stage in plan.stages])
    claim = plan.certificate.claim
    return Pipeline(stages, plan.stages, plan.schedule, plan.cluster, plan.graph_hash, claim)


def validate_pipeline(plan: PipelinePlan, step_graph: StepGraph) -> PipelineCertificate:
    """Cuts the step as the plan says, recomputes all of it and compares.

    Raises:
        PlanError: as `PipelinePlan.validate`.
    """
    pipeline = lower_pipeline(step_graph, plan)
    for graph, stage in zip(pipeline.stages.graphs, plan.stages, strict=True):
        stage.plan.validate(graph)
    in_flight = microbatches_in_flight(pipeline.schedule)
    found = pipeline.plan
    wrong = [
        f"{what}: plan says {claimed!r}, recomputed {recomputed!r}"
        for what, claimed, recomputed in (
            ("microbatches in flight",
             tuple(stage.microbatches_in_flight for stage in plan.stages), in_flight),
            ("parts of backward", [stage.backward_weight_us for stage in plan.stages],
             [backward_weight_us(graph, stage.plan) if pipeline.stages.splits_backward else 0.0
              for graph, stage in zip(pipeline.stages.graphs, plan.stages, strict=True)]),
            ("transfers", len(plan.transfers), len(found.transfers)),
            *((f"transfer of {a.value} to stage {a.target}", a, b)
              for a, b in zip(plan.transfers, found.transfers, strict=False)),
        )
        if claimed != recomputed
    ]  # fmt: skip
    if not same_simulation(plan.simulation, found.simulation):
        wrong.append(f"step: plan says {plan.simulation}, recomputed {found.simulation}")
    if wrong:
        raise PlanError(
            "the plan fails its certificate.",
            code="E324",
            values=wrong[:_MOST_SHOWN],
            advice="plan the step again; the file was changed or made by another version",
        )
    return found.certificate


def _held_already(graph: StepGraph, earlier: Sequence[Plan]) -> dict[str, str]:
    """Specs of fixed tensors that other stages on the same ranks have too."""
    names = {spec.name for spec in graph.inputs if spec.kind in ("parameter", "buffer")}
    return {
        name: tensor.text
        for plan in earlier
        for name, tensor in plan.inputs.items()
        if name in names
    }


def _check_submeshes(options: PipelineOptions, cluster: Cluster) -> None:
    for number, stage in enumerate(options.stages):
        if stage.mesh is not None and math.prod(stage.mesh) != stage.num_devices:
            raise ConfigError(
                "the mesh of a stage has another size than the stage.",
                code="E528",
                values=[f"stage {number}: mesh {stage.mesh}, devices {stage.num_devices}"],
                advice="stage meshes whose sizes multiply to the devices of their stages",
            )


def _check_meshes(planned: Sequence[PipelineStage]) -> None:
    """Raises ConfigError E528 unless stages that share ranks have one mesh."""
    meshes: dict[int, tuple[int, ...]] = {}
    for number, stage in enumerate(planned):
        known = meshes.setdefault(stage.first_rank, stage.plan.mesh_shape)
        if known != stage.plan.mesh_shape:
            raise ConfigError(
                "stages that share ranks have different meshes.",
                code="E528",
                values=[f"stage {number}: {stage.plan.mesh_shape}, before it {known}"],
                advice="one mesh for all stages of a rank",
            )
