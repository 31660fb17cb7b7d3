"""The schema of pipeline plan files, version 1; of the stages see `plan_schema.py`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, cast

from shardwright.pipeline.plan import (
    FORMAT,
    VERSION,
    BoundaryTransfer,
    PipelineCertificate,
    PipelinePlan,
    PipelineStage,
    SimulatedStep,
)
from shardwright.plan_schema import (
    DTYPES,
    MAX_BYTES,
    MAX_RANKS,
    check_format,
    contradiction,
    field_names,
    read_cluster,
    read_plan_at,
)
from shardwright.strict_json import Reader

_MAX_STAGES = 4096
_SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble")


def read_pipeline_plan(data: object) -> PipelinePlan:
    """Builds a plan from parsed JSON.

    Raises:
        PlanError: E321 with a JSON pointer where the schema is broken, E322 for another format or
            version, E323 where the plan contradicts itself.
    """
    document = Reader(data)
    check_format(document, FORMAT, VERSION)
    fields = document.fields(
        ("format", "version", "graph_hash", "cluster", "schedule", "num_microbatches",
         "certificate", "simulation", "transfers", "stages")
    )  # fmt: skip
    plan = PipelinePlan(
        graph_hash=fields["graph_hash"].text(pattern=r"[0-9a-f]{64}"),
        cluster=read_cluster(fields["cluster"]),
        schedule=fields["schedule"].choice(*_SCHEDULES),
        num_microbatches=fields["num_microbatches"].integer(1, 2**20),
        stages=fields["stages"].items(_stage, least=1, most=_MAX_STAGES),
        transfers=fields["transfers"].items(_transfer, most=2**20),
        simulation=_simulation(fields["simulation"]),
        certificate=_certificate(fields["certificate"]),
    )
    _check_stages(plan)
    _check_transfers(plan)
    _check_time(plan)
    return plan


def _stage(reader: Reader) -> PipelineStage:
    fields = reader.fields(field_names(PipelineStage))
    return PipelineStage(
        plan=read_plan_at(fields["plan"]),
        first_rank=fields["first_rank"].integer(0, MAX_RANKS - 1),
        begin=fields["begin"].text(),
        layers=fields["layers"].items(lambda name: name.text(), most=2**16),
        recomputed=fields["recomputed"].boolean(),
        microbatches_in_flight=fields["microbatches_in_flight"].integer(1, 2**20),
        backward_weight_us=fields["backward_weight_us"].number(),
    )


def _transfer(reader: Reader) -> BoundaryTransfer:
    fields = reader.fields(field_names(BoundaryTransfer))
    return BoundaryTransfer(
        when=cast(Any, fields["when"].choice("start", "forward", "backward", "update")),
        round=fields["round"].integer(0, 2**16),
        source=fields["source"].integer(0, _MAX_STAGES - 1),
        target=fields["target"].integer(0, _MAX_STAGES - 1),
        value=fields["value"].text(),
        parameter=fields["parameter"].text(),
        shape=fields["shape"].items(lambda size: size.integer(0, 2**48), most=64),
        dtype=fields["dtype"].choice(*DTYPES),
        source_spec=fields["source_spec"].text(),
        target_spec=fields["target_spec"].text(),
        bytes=fields["bytes"].integer(0, MAX_BYTES),
        host_bytes=fields["host_bytes"].integer(0, MAX_BYTES),
        cost_us=fields["cost_us"].number(),
    )


def _simulation(reader: Reader) -> SimulatedStep:
    fields = reader.fields(field_names(SimulatedStep))
    return SimulatedStep(
        time_us=fields["time_us"].number(),
        start_us=fields["start_us"].number(),
        pipeline_us=fields["pipeline_us"].number(),
        update_us=fields["update_us"].number(),
        exchange_us=fields["exchange_us"].number(),
        bubble_share=fields["bubble_share"].number(0, 1),
        busy_us=fields["busy_us"].items(lambda time: time.number(), least=1, most=_MAX_STAGES),
    )


def _certificate(reader: Reader) -> PipelineCertificate:
    fields = reader.fields(field_names(PipelineCertificate))
    searched = [fields[name] for name in ("model_time_us", "lower_bound_us", "gap")]
    found = not all(field.value is None for field in searched)
    return PipelineCertificate(
        time_us=fields["time_us"].number(),
        model_time_us=fields["model_time_us"].number() if found else None,
        lower_bound_us=fields["lower_bound_us"].number() if found else None,
        gap=fields["gap"].number(0, 1) if found else None,
        status=cast(Any, fields["status"].choice("optimal", "feasible", "time_limit")),
    )


def _check_stages(plan: PipelinePlan) -> None:
    owner: dict[int, range] = {}
    for number, stage in enumerate(plan.stages):
        where = f"stage {number}"
        if len(stage.plan.stages) != 1:
            raise contradiction("the plan of a stage has stages", where)
        if stage.plan.num_microbatches != plan.num_microbatches:
            raise contradiction("a stage has another number of microbatches", where)
        if stage.plan.microbatches_in_flight != stage.microbatches_in_flight:
            raise contradiction("a stage counts another number of microbatches in flight", where)
        if stage.microbatches_in_flight > plan.num_microbatches:
            raise contradiction("more microbatches are in flight than there are", where)
        if stage.backward_weight_us > stage.backward_us:
            raise contradiction("a part of backward takes longer than all of it", where)
        if bool(stage.begin) != (number > 0):
            raise contradiction("a stage without a beginning, or a first one with one", where)
        if list(stage.plan.stages[0].ranks) != list(range(len(stage.ranks))):
            raise contradiction("the ranks of a stage's plan do not count from 0", where)
        if stage.ranks[-1] >= plan.cluster.num_devices:
            raise contradiction(
                "it uses more ranks than its cluster has",
                f"{where}: rank {stage.ranks[-1]} of {plan.cluster.num_devices}",
            )
        for rank in stage.ranks:
            # Several stages may run on one submesh, but not on parts of it.
            if owner.setdefault(rank, stage.ranks) != stage.ranks:
                raise contradiction("submeshes overlap", f"{where}: rank {rank}")


def _check_transfers(plan: PipelinePlan) -> None:
    for transfer in plan.transfers:
        ends = (transfer.source, transfer.target)
        where = f"{transfer.value}: stage {transfer.source} to {transfer.target}"
        if max(ends) >= len(plan.stages) or transfer.source == transfer.target:
            raise contradiction("a transfer is between stages that are none", where)
        if bool(transfer.parameter) != (transfer.when == "start"):
            raise contradiction("a transfer of a parameter does not come first", where)
        if transfer.host_bytes > transfer.bytes:
            raise contradiction("more bytes go between hosts than in all", where)
        forward = transfer.source < transfer.target
        if transfer.when in ("forward", "backward") and forward != (transfer.when == "forward"):
            raise contradiction("a transfer goes the wrong way", where)
    known = {(t.value, t.target) for t in plan.transfers}
    if len(known) != len(plan.transfers):
        raise contradiction("a value is sent twice to one stage")
    order = [(t.when, t.round, t.source, t.target, t.value) for t in plan.transfers]
    if any(a >= b for a, b in pairwise(order)):
        raise contradiction("the transfers are not in order")


def _check_time(plan: PipelinePlan) -> None:
    from shardwright.pipeline.pricing import simulated_step

    claimed, certificate = plan.simulation, plan.certificate
    found = simulated_step(plan.schedule, plan.stages, plan.transfers)
    if not same_simulation(claimed, found):
        raise contradiction(
            "the simulated step is not that of its stages", f"{claimed}", f"{found}"
        )
    if certificate.time_us != claimed.time_us:
        raise contradiction(
            "the time is not the simulated one", f"{certificate.time_us} and {claimed.time_us}"
        )
    bound, gap, model = certificate.lower_bound_us, certificate.gap, certificate.model_time_us
    if (certificate.status == "optimal") != (gap == 0):
        raise contradiction("status and gap disagree", f"{certificate.status}, gap {gap}")
    if bound is None or gap is None or model is None:
        return
    if bound > model:
        raise contradiction("the lower bound is above the time", f"{bound}, {model}")
    expected = (model - bound) / model if model else 0.0
    if not math.isclose(gap, expected, rel_tol=1e-9, abs_tol=1e-9):
        raise contradiction("the gap is not that of time and bound", f"{gap} and {expected}")


def same_simulation(first: SimulatedStep, second: SimulatedStep) -> bool:
    """Whether two simulations agree but for rounding."""
    pairs = [
        (getattr(first, name), getattr(second, name))
        for name in field_names(SimulatedStep)
        if name != "busy_us"
    ]
    if len(first.busy_us) != len(second.busy_us):
        return False
    pairs += zip(first.busy_us, second.busy_us, strict=True)
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs)
