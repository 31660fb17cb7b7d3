"""What a user asks of the stages of a step, and what the stages are to be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.capture.step_graph import StepGraph
from shardwright.errors import ConfigError
from shardwright.pipeline.layers import even_starts

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble")


@dataclass(frozen=True)
class StageConstraints:
    """Stages as a user asks for them; checked as far as that goes without the step.

    Attributes:
        num_stages: how many; None for as many as are fastest.
        schedule: one of `SCHEDULES`.
        boundaries: modules or nodes that begin the second, third, ... stage; None shares out the
            layers.
        stage_ranks: devices of every stage; None shares them out evenly. Where several stages share
            ranks, of the first ones: the others take the same ranks in turn.
        stage_meshes: mesh shape of every stage, likewise; None lets the planner choose.
        stages_per_rank: how many stages share their ranks; only interleaved schedules have several.

    Raises:
        ConfigError: E520, E528.
    """

    num_stages: int | None = 1
    schedule: str = "1f1b"
    boundaries: tuple[str, ...] | None = None
    stage_ranks: tuple[int, ...] | None = None
    stage_meshes: tuple[tuple[int, ...], ...] | None = None
    stages_per_rank: int = 1

    def __post_init__(self) -> None:
        if self.num_stages is not None:
            check_count("num_stages", self.num_stages)
        check_count("stages_per_rank", self.stages_per_rank)
        counts, meshes = self._given_counts(), self.stage_meshes
        wrong = {
            "schedule": self.schedule not in SCHEDULES,
            "stages_per_rank": (self.num_stages or 1) % self.stages_per_rank != 0
            or (self.stages_per_rank > 1 and self.schedule != "interleaved_1f1b"),
            "stage_ranks, stage_meshes": any(
                len(x) != self.num_groups for x in (counts, meshes) if x is not None
            ),
            "stage_boundaries": self.boundaries is not None
            and len(self.boundaries) + 1 != self.num_stages,
        }
        if counts is not None and meshes is not None and not any(wrong.values()):
            sizes = [math.prod(mesh) for mesh in meshes]
            wrong["stage_ranks, stage_meshes"] = list(counts) != sizes
        if any(wrong.values()):
            raise wrong_stages(self.num_stages, [name for name, bad in wrong.items() if bad])

    @classmethod
    def given(
        cls,
        num_stages: int | str,
        schedule: str,
        stage_ranks: Sequence[int] | None,
        stage_meshes: Sequence[Sequence[int]] | None,
        boundaries: Sequence[str] | None,
        stages_per_rank: int = 1,
        *,
        mesh: Sequence[int] | None,
    ) -> StageConstraints:
        """From the arguments of `sw.plan` and `sw.parallelize`.

        Raises:
            ConfigError: E520, E528; E522 for a mesh that is none.
        """
        constraints = cls(
            None if num_stages == "auto" else num_stages,  # type: ignore[arg-type]
            schedule,
            None if boundaries is None else tuple(boundaries),
            None if stage_ranks is None else tuple(stage_ranks),
            None if stage_meshes is None else tuple(tuple(mesh_of(m)) for m in stage_meshes),
            stages_per_rank,
        )
        if constraints.num_stages != 1 and mesh is not None:
            raise wrong_stages(constraints.num_stages, ["mesh"])
        return constraints

    @property
    def num_groups(self) -> int:
        """Groups of ranks; stage s is on group s % num_groups."""
        return (self.num_stages or 1) // self.stages_per_rank

    @property
    def is_open(self) -> bool:
        """Whether nothing is given but how many stages there are."""
        given = (self.boundaries, self.stage_ranks, self.stage_meshes)
        return all(x is None for x in given)

    @property
    def all_devices(self) -> list[int] | None:
        """Devices of all stages, as the shape of a mesh of one axis; None where that is open."""
        counts = self._given_counts()
        return None if counts is None or self.num_stages == 1 else [sum(counts)]

    def _given_counts(self) -> tuple[int, ...] | None:
        if self.stage_ranks is None and self.stage_meshes is not None:
            return tuple(math.prod(mesh) for mesh in self.stage_meshes)
        return self.stage_ranks

    def devices_of_groups(self, num_devices: int) -> tuple[int, ...]:
        """Devices of every group of ranks.

        Raises:
            ConfigError: E528 when the devices cannot be shared out.
        """
        counts = self._given_counts() or (num_devices // self.num_groups,) * self.num_groups
        if sum(counts) != num_devices or min(counts) < 1:
            raise ConfigError(
                "the devices cannot be shared out to the stages.",
                code="E528",
                values=[f"devices: {num_devices}", f"stages: {self.num_stages}, of {counts}"],
                advice="a number of stages that divides the devices, or stage_ranks=(1, 2) with "
                "the devices of each stage",
            )
        return counts


@dataclass(frozen=True)
class StageOptions:
    """What one stage is to be.

    Attributes:
        num_devices: of its submesh.
        first_rank: first global rank; the others follow.
        begin: module or node at which it begins; empty for the first stage.
        layers: modules or nodes at which its layers begin, for recomputation; empty means that
            the stage is one layer.
        mesh: shape of its mesh; None lets the planner choose.
        recompute: whether backward computes forward's values anew, layer by layer.
        forced: specs of its inputs and nodes, as `sw.plan` takes them.
        entry: printed spec of the largest value that it receives in forward; empty leaves it to
            the planner.
        exit: printed spec of the largest value that it sends in forward, likewise.
        crossing: printed specs of values that it receives or sends, by fx name in the whole graph.
    """

    num_devices: int
    first_rank: int
    begin: str = ""
    layers: tuple[str, ...] = ()
    mesh: tuple[int, ...] | None = None
    recompute: bool = False
    forced: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    exit: str = ""
    crossing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchClaim:
    """What a search for stages says of its answer, in its own model of the step's time.

    Attributes:
        model_time_us: of the stages found: the sum of the steps of the pipeline plus (B - 1) times
            the longest (Alpa, section 5.1), transfers being steps.
        lower_bound_us: no stages take less in this model.
        out_of_time: whether the time limit ended the search.
    """

    model_time_us: float
    lower_bound_us: float
    out_of_time: bool = False


@dataclass(frozen=True)
class PipelineOptions:
    """How a step is cut into stages: what a search finds, or a user writes.

    Attributes:
        stages: in the order of forward.
        schedule: one of `SCHEDULES`.
        claim: of the search that found them; None without one.
        is_hopeful: whether the search let them hold more than there is.
        other: stages that take about as long in the search's model: the plans decide.
    """

    stages: tuple[StageOptions, ...]
    schedule: str = "1f1b"
    claim: SearchClaim | None = None
    is_hopeful: bool = False
    other: PipelineOptions | None = None


def even_stages(
    step_graph: StepGraph, constraints: StageConstraints, num_devices: int
) -> PipelineOptions:
    """Stages as they were asked for; what was left open is shared out evenly.

    Args:
        step_graph: the step, in microbatches or not.
        constraints: what is given.
        num_devices: of all stages, which follow one another.

    Raises:
        ConfigError: E527, E528.
    """
    counts = constraints.devices_of_groups(num_devices)
    num_stages = constraints.num_stages or 1
    boundaries: Sequence[str] | None = constraints.boundaries
    if boundaries is None:
        boundaries = even_starts(step_graph, num_stages)
    meshes = constraints.stage_meshes or (None,) * constraints.num_groups
    groups = [number % constraints.num_groups for number in range(num_stages)]
    stages = [
        StageOptions(counts[group], sum(counts[:group]), begin, mesh=meshes[group])
        for group, begin in zip(groups, ("", *boundaries), strict=True)
    ]
    return PipelineOptions(tuple(stages), constraints.schedule)


def mesh_of(mesh: Sequence[int]) -> list[int]:
    """The sizes of a stage's mesh; ConfigError E522 for what is none."""
    from shardwright.planning import mesh_shape

    return mesh_shape(mesh) or []


def splits_backward(schedule: str) -> bool:
    """Whether a schedule takes gradients for other stages and weight gradients apart."""
    return schedule == "zero_bubble"


def check_count(name: str, value: object) -> None:
    """Raises ConfigError E520 unless the value is a whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"{name} must be a whole number from 1 on.",
            code="E520",
            values=[f"{name}: {value!r}"],
            advice=f"{name}=4",
        )


def wanted_microbatches(given: int | str | None, num_stages: int | str) -> int | None:
    """How many microbatches are asked for; None for as many as are fastest.

    Args:
        given: a number, "auto", or None: 1, or "auto" where the number of stages is "auto".
        num_stages: a number or "auto".

    Raises:
        ConfigError: E520 for a number that is none.
    """
    if given is None and num_stages != "auto":
        return 1
    if given is None or given == "auto":
        return None
    check_count("num_microbatches", given)
    return int(given)


def wrong_stages(num_stages: int | None, at_fault: Sequence[str]) -> ConfigError:
    """The error for arguments that do not go together; None stages are "auto"."""
    asked = "auto" if num_stages is None else num_stages
    return ConfigError(
        "the step cannot be cut into stages as asked.",
        code="E528",
        values=[f"num_stages: {asked}, at fault: {name}" for name in at_fault],
        advice=f"schedule: one of {', '.join(SCHEDULES)}; stage_ranks or stage_meshes with "
        "one entry per stage that has ranks of its own, stage_boundaries with one less than "
        "stages; stages_per_rank that divides them, with interleaved_1f1b; no mesh=",
    )
