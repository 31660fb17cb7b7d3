"""A step in stages, planned and lowered: a program per stage, transfers, every stage's actions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.errors import ConfigError, PlanError
from shardwright.lowering.from_core import lower
from shardwright.lowering.program import Program
from shardwright.lowering.table import LocalRef, LocalTensor
from shardwright.pipeline.layers import even_starts
from shardwright.pipeline.stage_graphs import StageGraphs, Transfer, split_stages
from shardwright.plan import Plan

SCHEDULES = ("gpipe", "1f1b", "zero_bubble")

# Plans one stage: (its graph, its number, its number of devices) -> plan.
StagePlanner = Callable[[StepGraph, int, int], Plan]


@dataclass(frozen=True)
class PipelineOptions:
    """How a step is cut into stages.

    Attributes:
        num_stages: how many.
        schedule: one of `SCHEDULES`.
        boundaries: what begins the second, third, ... stage, as for `split_stages`; None shares out
            the layers evenly by FLOPs.
        stage_ranks: devices of every stage; None shares them out evenly.
    """

    num_stages: int = 1
    schedule: str = "1f1b"
    boundaries: tuple[str, ...] | None = None
    stage_ranks: tuple[int, ...] | None = None

    @property
    def splits_backward(self) -> bool:
        """Whether the schedule takes gradients for other stages and weight gradients apart."""
        return self.schedule == "zero_bubble"

    def devices_of_stages(self, num_devices: int) -> tuple[int, ...]:
        """Devices of every stage.

        Raises:
            ConfigError: E528 when the devices cannot be shared out.
        """
        if self.stage_ranks is not None:
            counts = self.stage_ranks
        else:
            counts = (num_devices // self.num_stages,) * self.num_stages
        if sum(counts) != num_devices or len(counts) != self.num_stages or min(counts) < 1:
            raise ConfigError(
                "the devices cannot be shared out to the stages.",
                code="E528",
                values=[f"devices: {num_devices}", f"stages: {self.num_stages}, of {counts}"],
                advice="a number of stages that divides the devices, or stage_ranks=(1, 2) with "
                "the devices of each stage",
            )
        return tuple(counts)


@dataclass(frozen=True)
class PlannedTransfer:
    """A transfer with its way from mesh to mesh.

    Attributes:
        transfer: what goes where.
        source: the value in the source's program: result of an instruction, or an input.
        target: input instruction of the target's program.
        plan: steps of all ranks.
    """

    transfer: Transfer
    source: LocalRef
    target: LocalRef
    plan: _core.TransferPlan


class Pipeline:
    """A step in stages; the same object on every rank.

    Attributes:
        stages: the graphs.
        plans, programs: of every stage.
        cluster: the machines.
        boundaries: what begins the second, third, ... stage, as for `split_stages`.
        first_ranks: first global rank of every stage; the others follow.
        schedule: actions of every stage.
        transfers: in the order of `stages.transfers`.
    """

    def __init__(
        self,
        stages: StageGraphs,
        plans: Sequence[Plan],
        schedule: str,
        cluster: Cluster,
        boundaries: Sequence[str],
    ) -> None:
        self.stages = stages
        self.cluster = cluster
        self.boundaries = tuple(boundaries)
        self.plans = tuple(plans)
        self.programs: tuple[Program, ...] = tuple(
            lower(graph, plan) for graph, plan in zip(stages.graphs, plans, strict=True)
        )
        counts = [program.table.num_ranks for program in self.programs]
        self.first_ranks = tuple(sum(counts[:stage]) for stage in range(len(counts)))
        self.schedule = _schedule(stages, schedule)
        self.transfers = tuple(self._planned(transfer) for transfer in stages.transfers)

    @property
    def num_microbatches(self) -> int:
        """How often forward and backward run per step."""
        return self.stages.whole.num_microbatches

    def ranks_of(self, stage: int) -> range:
        """Global ranks of a stage, in mesh order."""
        first = self.first_ranks[stage]
        return range(first, first + self.programs[stage].table.num_ranks)

    def stage_of(self, rank: int) -> int:
        """Stage of a global rank."""
        return max(s for s, first in enumerate(self.first_ranks) if first <= rank)

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

    def transfers_of(
        self, when: str, source: int, target: int, number: int = 0
    ) -> list[PlannedTransfer]:
        """What one stage sends another in one part (and round) of the step."""
        return [
            t for t in self.transfers
            if (t.transfer.when, t.transfer.round) == (when, number)
            and (t.transfer.source, t.transfer.target) == (source, target)
        ]  # fmt: skip

    def fingerprint(self) -> str:
        """SHA-256 of all programs, transfers and actions."""
        parts = [program.fingerprint() for program in self.programs]
        parts += [f"{t.transfer} {t.source} {t.target} {t.plan.steps}" for t in self.transfers]
        parts.append(str(self.schedule))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _planned(self, transfer: Transfer) -> PlannedTransfer:
        source_program = self.programs[transfer.source]
        target_program = self.programs[transfer.target]
        source = _source(source_program, transfer)
        target = _input(target_program, f"{transfer.value}", transfer)
        given = source_program.table.tensor(source)
        wanted = target_program.table.tensor(target)
        common = _core.common_atoms(
            *_core_form(given), source_program.table.mesh_shape,
            *_core_form(wanted), target_program.table.mesh_shape,
        )  # fmt: skip
        if common is None:
            raise PlanError(
                "a value cannot go from stage to stage as it is divided on both sides.",
                code="E335",
                values=[f"value {transfer.value}, stages {transfer.source}, {transfer.target}"],
                advice="another mesh for one of the stages",
            )
        atoms, source_spec, target_spec = common
        plan = _core.plan_transfer(
            atoms, given.dtype, source_spec, self._submesh(transfer.source), target_spec,
            self._submesh(transfer.target), self.cluster.to_core(),
        )  # fmt: skip
        return PlannedTransfer(transfer, source, target, plan)

    def _submesh(self, stage: int) -> _core.Submesh:
        shape = self.programs[stage].table.mesh_shape
        return _core.Submesh.on_cluster(shape, list(self.ranks_of(stage)), self.cluster.to_core())


def build_pipeline(
    step_graph: StepGraph,
    options: PipelineOptions,
    cluster: Cluster,
    num_devices: int,
    plan_stage: StagePlanner,
) -> Pipeline:
    """Cuts, plans and lowers a step in stages.

    Args:
        step_graph: the step, cut into microbatches already.
        options: stages and schedule.
        cluster: the machines.
        num_devices: of all stages.
        plan_stage: makes the plan of one stage.

    Raises:
        ConfigError: E527, E528; PlanError: E334, E335; and what planning raises.
    """
    counts = options.devices_of_stages(num_devices)
    boundaries = options.boundaries
    if boundaries is None:
        boundaries = even_starts(step_graph, options.num_stages)
    stages = split_stages(step_graph, boundaries, splits_backward=options.splits_backward)
    plans = [
        plan_stage(graph, stage, count)
        for stage, (graph, count) in enumerate(zip(stages.graphs, counts, strict=True))
    ]
    for stage, (plan, count) in enumerate(zip(plans, counts, strict=True)):
        if math.prod(plan.mesh_shape) != count:
            raise ConfigError(
                "the mesh of a stage has another size than the stage.",
                code="E528",
                values=[f"stage {stage}: mesh {plan.mesh_shape}, devices {count}"],
                advice="stage meshes whose sizes multiply to the devices of their stages",
            )
    return Pipeline(stages, plans, options.schedule, cluster, boundaries)


def _schedule(stages: StageGraphs, kind: str) -> _core.Schedule:
    pairs: Mapping[tuple[int, int], set[str]] = {}
    found = dict(pairs)
    for transfer in stages.transfers:
        if transfer.when == "forward":
            found.setdefault((transfer.source, transfer.target), set()).add("forward")
        elif transfer.when == "backward":
            found.setdefault((transfer.target, transfer.source), set()).add("backward")
    return _core.make_schedule(
        kind,
        num_ranks=len(stages.graphs),
        num_microbatches=stages.whole.num_microbatches,
        edges=sorted(pair for pair, whens in found.items() if "backward" in whens),
        edges_without_gradient=sorted(p for p, whens in found.items() if "backward" not in whens),
    )


def _source(program: Program, transfer: Transfer) -> LocalRef:
    if transfer.when == "start":
        return _input(program, transfer.parameter, transfer)
    marks = {
        str(program.graph_node(name).meta["sent"]): ref
        for name, ref in program.crossing.sent.items()
    }
    return marks[transfer.value]


def _input(program: Program, name: str, transfer: Transfer) -> LocalRef:
    for spec, instruction in zip(program.inputs, program.input_instructions, strict=True):
        if spec.name == name and instruction is not None:
            return LocalRef(instruction)
    raise PlanError(
        "a stage does not read what it is sent.",
        code="E335",
        values=[f"value {transfer.value}, stages {transfer.source}, {transfer.target}"],
        advice="report this with the plan",
    )


def _core_form(tensor: LocalTensor) -> tuple[_core.TensorAtoms, list[_core.Placement]]:
    """Atoms and spec as the planner has them."""
    placements = []
    for placement in tensor.spec:
        if placement.kind == "S":
            placements.append(_core.Placement.shard(placement.atom, placement.order))
        elif placement.kind == "P":
            placements.append(_core.Placement.partial(placement.reduce))
        else:
            placements.append(_core.Placement.replicate())
    return _core.TensorAtoms(tensor.atoms.sizes, tensor.atoms.dims), placements
