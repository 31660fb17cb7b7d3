"""Pipelines written by hand: a JSON file that says how a step is cut, and what that costs.

The format is in docs/concepts/stages.md; whatever the file leaves open is the planner's to choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.errors import ConfigError, PlanError
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import SCHEDULES, PipelineOptions, StageOptions
from shardwright.pipeline.plan import PipelinePlan
from shardwright.pipeline.planning import plan_options
from shardwright.planning import SearchRequest
from shardwright.strict_json import Reader, read_file

FORMAT = "shardwright.written_pipeline"
VERSION = 1

_MAX_STAGES = 4096
_MAX_RANKS = 2**16
_PLACES = ("hosts", "devices", "ranks")
_STAGE_FIELDS = ("begin", *_PLACES, "mesh", "entry", "exit", "forced")


@dataclass(frozen=True)
class WrittenPipeline:
    """A pipeline as its file has it.

    Attributes:
        num_microbatches: how often forward and backward run per step.
        schedule: one of `SCHEDULES`.
        stages: what each is to be; `first_rank` is -1 where the file gives hosts and devices.
        submeshes: (hosts, devices per host) of every stage; (0, 0) where the file gives ranks.
    """

    num_microbatches: int
    schedule: str
    stages: tuple[StageOptions, ...]
    submeshes: tuple[tuple[int, int], ...]

    def placed(self, cluster: Cluster) -> PipelineOptions:
        """The stages with their ranks.

        Raises:
            ConfigError: E544 for submeshes that overlap or cannot be placed, E545 for those that
                the cluster does not have.
        """
        stages = self.stages
        if any(stage.first_rank < 0 for stage in stages):
            stages = self._with_ranks(cluster)
        owner: dict[int, int] = {}
        places: list[range] = []
        for number, stage in enumerate(stages):
            ranks = range(stage.first_rank, stage.first_rank + stage.num_devices)
            if ranks[-1] >= cluster.num_devices:
                raise _beyond(number, f"ranks {ranks[0]} to {ranks[-1]}", cluster)
            if self.schedule == "interleaved_1f1b" and ranks in places:
                continue
            places.append(ranks)
            for rank in ranks:
                if rank in owner:
                    raise ConfigError(
                        "the submeshes of two stages overlap.",
                        code="E544",
                        values=[f"stages {owner[rank]} and {number}: both have rank {rank}"],
                        advice="ranks that no other stage has",
                    )
                owner[rank] = number
        return PipelineOptions(stages, self.schedule)

    def _with_ranks(self, cluster: Cluster) -> tuple[StageOptions, ...]:
        for number, (hosts, devices) in enumerate(self.submeshes):
            if hosts > cluster.num_hosts or devices > cluster.devices_per_host:
                raise _beyond(number, f"{hosts} x {devices} devices", cluster)
        total = sum(hosts * devices for hosts, devices in self.submeshes)
        if total > cluster.num_devices:
            last = len(self.submeshes) - 1
            raise _beyond(last, f"{total} devices with the stages before it", cluster)
        try:
            firsts = _core.place_submeshes(list(self.submeshes), cluster.devices_per_host)
        except ValueError as error:
            raise ConfigError(
                "the submeshes cannot be placed on the hosts.",
                code="E544",
                values=[f"hosts x devices: {self.submeshes}", f"cluster: {cluster}", str(error)],
                advice="a power of two of one host's devices, whole hosts, or ranks",
            ) from error
        return tuple(
            StageOptions(**{**vars(stage), "first_rank": first})
            for stage, first in zip(self.stages, firsts, strict=True)
        )


def read_written(path: str | Path) -> WrittenPipeline:
    """Reads a file.

    Raises:
        PlanError: E320 for a file that cannot be read, E321 with a JSON pointer where it does not
            follow the format, E322 for another format or version.
    """
    data = read_file(path)
    try:
        return _read(Reader(data))
    except PlanError as error:
        raise PlanError(
            error.summary.replace("a plan file", "a written pipeline"),
            code=error.code,
            values=error.values,
            advice="docs/concepts/stages.md has the format; examples/pipeline.json is one",
        ) from error


def evaluate(
    written: WrittenPipeline, step_graph: StepGraph, cluster: Cluster, request: SearchRequest
) -> PipelinePlan:
    """What a written pipeline costs: the price of a plan, whatever the file leaves open planned.

    Args:
        written: the stages.
        step_graph: the captured step of one batch.
        cluster: the machines.
        request: limits of the searches.

    Raises:
        ConfigError: E526 for microbatches that do not divide the batch, E527 for stages that begin
            nowhere, E543 to E545; InfeasibleError: E206; and what planning a stage raises.
    """
    options = written.placed(cluster)
    graph = split_microbatches(step_graph, written.num_microbatches)
    return plan_options(graph, options, cluster, request).plan


def _beyond(number: int, what: str, cluster: Cluster) -> ConfigError:
    return ConfigError(
        "a stage lies beyond the cluster.",
        code="E545",
        values=[f"stage {number}: {what}", f"cluster: {cluster}"],
        advice="fewer devices for the stages, or a larger cluster",
    )


def _read(document: Reader) -> WrittenPipeline:
    from shardwright.plan_schema import check_format

    check_format(document, FORMAT, VERSION)
    fields = document.fields(
        ("format", "version", "num_microbatches", "stages"), optional=("schedule",)
    )
    parsed = fields["stages"].items(_stage, least=1, most=_MAX_STAGES)
    if len({stage.first_rank < 0 for stage, _ in parsed}) > 1:
        raise fields["stages"].fail("ranks for all stages, or hosts and devices for all")
    for number, (stage, _) in enumerate(parsed):
        if bool(stage.begin) != (number > 0):
            raise fields["stages"].fail('a "begin" for every stage but the first')
    schedule = fields["schedule"].choice(*SCHEDULES) if "schedule" in fields else "1f1b"
    return WrittenPipeline(
        num_microbatches=fields["num_microbatches"].integer(1, 2**20),
        schedule=schedule,
        stages=tuple(stage for stage, _ in parsed),
        submeshes=tuple(submesh for _, submesh in parsed),
    )


def _stage(reader: Reader) -> tuple[StageOptions, tuple[int, int]]:
    fields = reader.fields((), optional=_STAGE_FIELDS)
    places = {name for name in _PLACES if name in fields}
    if places not in ({"hosts", "devices"}, {"ranks"}):
        raise reader.fail('either "ranks", or "hosts" and "devices"')
    submesh, first, count = (0, 0), -1, 0
    if "ranks" in fields:
        ranks = fields["ranks"].items(
            lambda rank: rank.integer(0, _MAX_RANKS - 1), least=1, most=_MAX_RANKS
        )
        if ranks != tuple(range(ranks[0], ranks[0] + len(ranks))):
            raise fields["ranks"].fail("ranks that follow one another")
        first, count = ranks[0], len(ranks)
    else:
        submesh = (
            fields["hosts"].integer(1, _MAX_RANKS), fields["devices"].integer(1, _MAX_RANKS)
        )  # fmt: skip
        count = submesh[0] * submesh[1]
    given: dict[str, Any] = {}
    if "mesh" in fields:
        given["mesh"] = fields["mesh"].items(
            lambda size: size.integer(1, _MAX_RANKS), least=1, most=4
        )
    for name in ("begin", "entry", "exit"):
        if name in fields:
            given[name] = fields[name].text()
    if "forced" in fields:
        value = fields["forced"].value
        names = list(value) if isinstance(value, dict) else []
        given["forced"] = fields["forced"].mapping(names, lambda spec: spec.text())
    return StageOptions(count, first, **given), submesh
