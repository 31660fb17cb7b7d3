"""PipelinePlan: the immutable plan of a step in stages, with its price, and its JSON form.

Each stage holds an ordinary `Plan` of the stage's own graph. What follows from the stages (what
travels between them, the simulated time) is held as well, so that a file can be read without the
step; `PipelinePlan.validate` recomputes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from shardwright.cluster import Cluster
from shardwright.pipeline.options import SearchClaim
from shardwright.plan import Plan, TensorSharding, plain

if TYPE_CHECKING:
    from shardwright._core import Schedule, Simulation
    from shardwright.capture.step_graph import StepGraph
    from shardwright.report.explain import Explanation

FORMAT = "shardwright.pipeline_plan"
VERSION = 1

When = Literal["start", "forward", "backward", "update"]


@dataclass(frozen=True)
class PipelineStage:
    """One stage: its plan and where it runs.

    Attributes:
        plan: Of the stage's own graph; its cluster is the submesh, its ranks count from 0.
        first_rank: First global rank of the submesh; the others follow.
        begin: Module or node at which it begins; empty for the first stage.
        layers: Modules or nodes at which its layers begin, for recomputation.
        recomputed: Whether backward computes forward's values anew, layer by layer.
        microbatches_in_flight: Most microbatches whose activations the stage holds at once.
        backward_weight_us: Of backward of one microbatch what can wait, where the schedule takes
            it apart: gradients of weights; else 0.
    """

    plan: Plan
    first_rank: int
    begin: str
    layers: tuple[str, ...]
    recomputed: bool
    microbatches_in_flight: int
    backward_weight_us: float = 0.0

    @property
    def ranks(self) -> range:
        """Global ranks, in mesh order."""
        return range(self.first_rank, self.first_rank + len(self.plan.stages[0].ranks))

    @property
    def forward_us(self) -> float:
        """Time of forward of one microbatch."""
        return self.plan.certificate.forward_us / self.plan.num_microbatches

    @property
    def backward_us(self) -> float:
        """Time of backward of one microbatch."""
        return self.plan.certificate.backward_us / self.plan.num_microbatches

    @property
    def update_us(self) -> float:
        """Time of the update, once per step."""
        return self.plan.certificate.update_us


@dataclass(frozen=True)
class BoundaryTransfer:
    """One value that goes from one stage to another.

    Attributes:
        when: "forward" and "backward": once per microbatch; "start": a stored parameter, once per
            step before all else; "update": once per step.
        round: Of "update": rounds of the update, in which all stages alternate with transfers.
        source: Stage that has it.
        target: Stage that reads it.
        value: fx name of its node.
        parameter: Of "start": name of the parameter, else empty.
        shape: Global shape.
        dtype: torch's name without prefix.
        source_spec: How it lies on the source's mesh, as printed.
        target_spec: How it lies on the target's mesh.
        bytes: Sum over all messages of one transfer.
        host_bytes: Of these what goes from one host to another.
        cost_us: Time of one transfer.
    """

    when: When
    round: int
    source: int
    target: int
    value: str
    parameter: str
    shape: tuple[int, ...]
    dtype: str
    source_spec: str
    target_spec: str
    bytes: int
    host_bytes: int
    cost_us: float


@dataclass(frozen=True)
class SimulatedStep:
    """One step as the simulator of schedules gives it.

    Attributes:
        time_us: Of the step: the sum of the four parts that follow.
        start_us: By how much waiting for parameters that other stages send makes it longer.
        pipeline_us: From the first forward to the last backward, without that.
        update_us: From there to the end of the last stage's update.
        exchange_us: By how much transfers of the update make it longer.
        bubble_share: Share of `start_us + pipeline_us` in which submeshes do not compute, over all
            of them.
        busy_us: By stage: time in which it computes forward and backward.
    """

    time_us: float
    start_us: float
    pipeline_us: float
    update_us: float
    exchange_us: float
    bubble_share: float
    busy_us: tuple[float, ...]


@dataclass(frozen=True)
class PipelineCertificate:
    """What is claimed of a pipeline as a whole; each stage's plan has a certificate of its own.

    Attributes:
        time_us: The simulated time.
        model_time_us: What the search that found the stages takes it for (see
            `pipeline.options.SearchClaim`); None without a search.
        lower_bound_us: No stages take less in the model of that search; None without one.
        gap: (model time - lower bound) / model time; None without a search.
        status: "optimal" when the gap is 0: no other stages are better in the model. "time_limit"
            when time ended the search, else "feasible".
    """

    time_us: float
    model_time_us: float | None
    lower_bound_us: float | None
    gap: float | None
    status: Literal["optimal", "feasible", "time_limit"]

    @property
    def claim(self) -> SearchClaim | None:
        """Of the search; None without one."""
        if self.model_time_us is None or self.lower_bound_us is None:
            return None
        return SearchClaim(self.model_time_us, self.lower_bound_us, self.status == "time_limit")


@dataclass(frozen=True, repr=False)
class PipelinePlan:
    """How one training step runs in stages on a cluster.

    Attributes:
        graph_hash: Of the step graph, in microbatches.
        cluster: The machines.
        schedule: "1f1b", ...
        num_microbatches: How often forward and backward run per step.
        stages: In the order of forward.
        transfers: What goes between them.
        simulation: One step, simulated.
        certificate: What is claimed of the whole.
    """

    graph_hash: str
    cluster: Cluster
    schedule: str
    num_microbatches: int
    stages: tuple[PipelineStage, ...]
    transfers: tuple[BoundaryTransfer, ...]
    simulation: SimulatedStep
    certificate: PipelineCertificate

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Modules or nodes that begin the second, third, ... stage."""
        return tuple(stage.begin for stage in self.stages[1:])

    @property
    def time_us(self) -> float:
        """Time of one step."""
        return self.certificate.time_us

    @property
    def peak_memory_bytes(self) -> int:
        """Of the device that needs most; stages that share ranks count together."""
        peaks: dict[int, int] = {}
        for stage in self.stages:
            peaks[stage.first_rank] = peaks.get(stage.first_rank, 0) + stage.plan.peak_memory_bytes
        return max(peaks.values())

    @property
    def num_devices(self) -> int:
        """Devices of all stages."""
        return len({rank for stage in self.stages for rank in stage.ranks})

    @cached_property
    def inputs(self) -> Mapping[str, TensorSharding]:
        """Parameters, buffers, optimizer state and batch leaves by name.

        What several stages hold is listed as the first of them has it.
        """
        found: dict[str, TensorSharding] = {}
        for number, stage in enumerate(self.stages):
            received = {t.value for t in self.transfers if t.target == number}
            for name, tensor in stage.plan.inputs.items():
                if name not in received:
                    found.setdefault(name, tensor)
        return MappingProxyType(found)

    def __str__(self) -> str:
        from shardwright.report.pipeline_text import pipeline_text_report

        return pipeline_text_report(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The plan as notebooks show it."""
        from shardwright.report.pipeline_html import pipeline_fragment

        return pipeline_fragment(self)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def simulate(self) -> tuple[Schedule, Simulation]:
        """The schedule and when everything of it happens."""
        from shardwright.pipeline.pricing import simulate_stages

        return simulate_stages(self.schedule, self.stages, self.transfers)

    def stage_of(self, name: str) -> int:
        """Stage that holds an input of this name.

        Raises:
            ConfigError: E542 for a name that the step does not have.
        """
        from shardwright.report.explain import unknown_name

        if name not in self.inputs:
            raise unknown_name(name, self.inputs)
        return next(n for n, stage in enumerate(self.stages) if name in stage.plan.inputs)

    def explain(self, name: str, *, time_limit_s: float = 60.0) -> Explanation:
        """Why an input lies as it does, within the first stage that holds it; see `Plan.explain`.

        Raises:
            ConfigError: E541 for a loaded plan, E542 for a name the step does not have.
        """
        return self.stages[self.stage_of(name)].plan.explain(name, time_limit_s=time_limit_s)

    def to_dict(self) -> dict[str, Any]:
        """The plan as its JSON file holds it."""
        stages = [
            {
                "first_rank": stage.first_rank,
                "begin": stage.begin,
                "layers": list(stage.layers),
                "recomputed": stage.recomputed,
                "microbatches_in_flight": stage.microbatches_in_flight,
                "backward_weight_us": stage.backward_weight_us,
                "plan": stage.plan.to_dict(),
            }
            for stage in self.stages
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "graph_hash": self.graph_hash,
            "cluster": self.cluster.to_dict(),
            "schedule": self.schedule,
            "num_microbatches": self.num_microbatches,
            "certificate": plain(self.certificate),
            "simulation": plain(self.simulation),
            "transfers": [plain(transfer) for transfer in self.transfers],
            "stages": stages,
        }

    @classmethod
    def from_dict(cls, data: object) -> PipelinePlan:
        """The inverse of `to_dict`.

        Raises:
            PlanError: E321 with a JSON pointer where the schema is broken, E322 for another format
                or version, E323 where the plan contradicts itself.
        """
        from shardwright.pipeline.plan_schema import read_pipeline_plan

        return read_pipeline_plan(data)

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON; the same plan gives the same bytes."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> PipelinePlan:
        """Reads a file that `save` wrote. Whether it fits a step is `validate`'s to say.

        Raises:
            PlanError: E320 for a file that cannot be read, and what `from_dict` raises.
        """
        from shardwright.strict_json import read_file

        return cls.from_dict(read_file(path))

    def validate(self, step_graph: StepGraph) -> PipelineCertificate:
        """Cuts the step as the plan says, recomputes all of it and compares.

        Args:
            step_graph: The captured step, cut into microbatches or not.

        Returns:
            The recomputed certificate. The bound is the plan's own claim.

        Raises:
            PlanError: E325 when the step is another one, E314 when choices do not fit the rules,
                E324 when time, memory or transfers are not what the plan claims.
        """
        from shardwright.pipeline.pipeline import validate_pipeline

        return validate_pipeline(self, step_graph)
