"""The schema of plan files, version 1: every field, its type and range, and what must agree."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any, cast

from shardwright.cluster import Cluster
from shardwright.errors import ClusterError, PlanError
from shardwright.plan import (
    FORMAT,
    VERSION,
    Certificate,
    CollectiveCount,
    ConversionSharding,
    GradientSharding,
    MemoryAtPeak,
    MemorySample,
    OpSharding,
    Plan,
    Spec,
    StagePlan,
    TensorSharding,
)
from shardwright.strict_json import Reader

_MAX_AXES = 4
MAX_RANKS = 2**16
MAX_BYTES = 2**62
_WORD = r"R|S(0|[1-9][0-9]?)(\.[1-3])?|P|Pmax|Pmin"
DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_INPUT_KINDS = (
    "", "parameter", "buffer", "optimizer_state", "batch", "hyper", "rng", "constant",
)  # fmt: skip
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


def read_plan(data: object) -> Plan:
    """Builds a plan from parsed JSON.

    Raises:
        PlanError: E321 with a JSON pointer where the schema is broken, E322 for another format or
            version, E323 where the plan contradicts itself.
    """
    return read_plan_at(Reader(data))


def read_plan_at(document: Reader) -> Plan:
    """As `read_plan`, for a plan that is part of a file."""
    check_format(document, FORMAT, VERSION)
    fields = document.fields(
        ("format", "version", "graph_hash", "cluster", "num_microbatches", "certificate", "stages"),
        optional=("microbatches_in_flight", "recompute"),
    )
    in_flight, recompute = fields.get("microbatches_in_flight"), fields.get("recompute")
    cluster = read_cluster(fields["cluster"])
    plan = Plan(
        graph_hash=fields["graph_hash"].text(pattern=r"[0-9a-f]{64}"),
        cluster=cluster,
        num_microbatches=fields["num_microbatches"].integer(1, 2**20),
        microbatches_in_flight=1 if in_flight is None else in_flight.integer(1, 2**20),
        recompute="none" if recompute is None else recompute.choice("none", "full"),
        certificate=_certificate(fields["certificate"]),
        stages=fields["stages"].items(_stage, least=1, most=4096),
    )
    _check_stages(plan)
    _check_certificate(plan.certificate)
    return plan


def check_format(document: Reader, name: str, version: int) -> None:
    """Raises PlanError E321 or E322 unless the document is of this format and version."""
    value = document.value
    if not isinstance(value, dict):
        raise document.fail("an object")
    if value.get("format") != name or value.get("version") != version:
        raise PlanError(
            "the file is no plan of this version.",
            code="E322",
            values=[
                f"format: {str(value.get('format'))[:40]!r}, expected {name!r}",
                f"version: {str(value.get('version'))[:40]}, expected {version}",
            ],
            advice="a file that Plan.save wrote with this version",
        )
    Reader(value["version"], f"{document.pointer}/version").integer(version, version)


def field_names(kind: Any) -> list[str]:
    """Names of a dataclass's fields, which are those of its JSON object."""
    return [f.name for f in dataclasses.fields(kind)]


def read_cluster(reader: Reader) -> Cluster:
    """A cluster; PlanError E321 for what is none."""
    try:
        return Cluster.from_dict(reader.value)
    except ClusterError as error:
        raise reader.fail(f"a cluster: {error.summary} {' '.join(error.values)}") from error


def _spec(reader: Reader) -> Spec:
    return reader.items(lambda word: word.text(pattern=_WORD), least=1, most=_MAX_AXES)


def _tensor(reader: Reader) -> TensorSharding:
    fields = reader.fields(field_names(TensorSharding))
    return TensorSharding(
        shape=fields["shape"].items(lambda size: size.integer(0, 2**48), most=64),
        dtype=fields["dtype"].choice(*DTYPES),
        spec=_spec(fields["spec"]),
        text=fields["text"].text(),
    )


def _op(reader: Reader) -> OpSharding:
    fields = reader.fields(field_names(OpSharding))
    return OpSharding(
        node=fields["node"].text(),
        op=fields["op"].text(),
        phase=cast(Any, fields["phase"].choice("forward", "backward", "update")),
        module_path=fields["module_path"].text(),
        source=fields["source"].text(),
        input_kind=fields["input_kind"].choice(*_INPUT_KINDS),
        input_name=fields["input_name"].text(),
        operands=fields["operands"].items(_spec, most=2**16),
        outputs=fields["outputs"].items(_tensor, most=2**16),
    )


def _conversion(reader: Reader) -> ConversionSharding:
    fields = reader.fields(field_names(ConversionSharding))
    return ConversionSharding(
        node=fields["node"].text(),
        output=fields["output"].integer(0, 2**16),
        group=fields["group"].integer(0, 1),
        spec=_spec(fields["spec"]),
        text=fields["text"].text(),
        from_first=fields["from_first"].boolean(),
    )


def _gradient(reader: Reader) -> GradientSharding:
    fields = reader.fields(field_names(GradientSharding))
    return GradientSharding(
        parameter=fields["parameter"].text(),
        node=fields["node"].text(),
        made=_spec(fields["made"]),
        made_text=fields["made_text"].text(),
        held=_spec(fields["held"]),
        held_text=fields["held_text"].text(),
    )


def _stage(reader: Reader) -> StagePlan:
    fields = reader.fields(field_names(StagePlan))
    return StagePlan(
        mesh_shape=fields["mesh_shape"].items(
            lambda size: size.integer(1, MAX_RANKS), least=1, most=_MAX_AXES
        ),
        ranks=fields["ranks"].items(
            lambda rank: rank.integer(0, MAX_RANKS - 1), least=1, most=MAX_RANKS
        ),
        ops=fields["ops"].items(_op),
        conversions=fields["conversions"].items(_conversion),
        gradients=fields["gradients"].items(_gradient),
    )


def _count(reader: Reader) -> CollectiveCount:
    fields = reader.fields(field_names(CollectiveCount))
    return CollectiveCount(
        count=fields["count"].integer(1, 2**40),
        bytes=fields["bytes"].number(),
        ring_bytes_per_device=fields["ring_bytes_per_device"].number(),
        cost_us=fields["cost_us"].number(),
    )


def _memory(reader: Reader) -> MemoryAtPeak:
    fields = reader.fields(field_names(MemoryAtPeak))
    return MemoryAtPeak(**{k: v.integer(0, MAX_BYTES) for k, v in fields.items()})


def _sample(reader: Reader) -> MemorySample:
    fields = reader.fields(field_names(MemorySample))
    return MemorySample(
        moment=fields["moment"].integer(0, 2**40),
        phase=cast(Any, fields["phase"].choice("forward", "backward", "update")),
        memory=_memory(fields["memory"]),
    )


def _certificate(reader: Reader) -> Certificate:
    fields = reader.fields(field_names(Certificate))
    return Certificate(
        cost_us=fields["cost_us"].number(),
        compute_us=fields["compute_us"].number(),
        communication_us=fields["communication_us"].number(),
        forward_us=fields["forward_us"].number(),
        backward_us=fields["backward_us"].number(),
        update_us=fields["update_us"].number(),
        lower_bound_us=fields["lower_bound_us"].number(),
        gap=fields["gap"].number(0, 1),
        status=cast(Any, fields["status"].choice("optimal", "feasible", "time_limit")),
        peak_memory_bytes=fields["peak_memory_bytes"].integer(0, MAX_BYTES),
        peak_node=fields["peak_node"].text(),
        at_peak=_memory(fields["at_peak"]),
        collectives=fields["collectives"].mapping(_COLLECTIVES, _count),
        memory_timeline=fields["memory_timeline"].items(_sample, most=4096),
    )


def contradiction(what: str, *values: str) -> PlanError:
    """The error for a file that contradicts itself."""
    return PlanError(
        f"a plan file contradicts itself: {what}.",
        code="E323",
        values=values,
        advice="a file that Plan.save wrote, unchanged",
    )


def _check_stages(plan: Plan) -> None:
    if plan.microbatches_in_flight > plan.num_microbatches:
        raise contradiction(
            "more microbatches are in flight than there are",
            f"{plan.microbatches_in_flight} of {plan.num_microbatches}",
        )
    seen_nodes: set[str] = set()
    for number, stage in enumerate(plan.stages):
        where = f"stage {number}"
        if math.prod(stage.mesh_shape) != len(stage.ranks):
            raise contradiction(
                "a mesh has not as many ranks as its axes make",
                f"{where}: mesh {stage.mesh_shape}, {len(stage.ranks)} ranks",
            )
        if len(set(stage.ranks)) != len(stage.ranks):
            raise contradiction("a rank occurs twice", where)
        if max(stage.ranks) >= plan.cluster.num_devices and not plan.cluster.abstract_axes:
            raise contradiction(
                "it uses more ranks than its cluster has",
                f"{where}: rank {max(stage.ranks)} of {plan.cluster.num_devices}",
            )
        for op in stage.ops:
            if op.node in seen_nodes:
                raise contradiction("a node occurs twice", f"{where}: {op.node}")
            seen_nodes.add(op.node)
            if (op.op == "input") != bool(op.input_kind):
                raise contradiction("an input has no kind", f"{where}: {op.node}")
            for spec in (*op.operands, *(output.spec for output in op.outputs)):
                _check_spec(spec, stage, f"{where}: {op.node}")
        _check_conversions(stage, where)
        for gradient in stage.gradients:
            for spec in (gradient.made, gradient.held):
                _check_spec(spec, stage, f"{where}: gradient of {gradient.parameter}")


def _check_spec(spec: Spec, stage: StagePlan, where: str) -> None:
    if len(spec) != len(stage.mesh_shape):
        raise contradiction("a spec has not one word per mesh axis", where, f"spec: {spec}")
    orders: dict[str, set[int]] = {}
    for word in spec:
        if word.startswith("S"):
            atom, _, order = word.partition(".")
            known = orders.setdefault(atom, set())
            if int(order or 0) in known:
                raise contradiction("two axes split an atom in one place", where, f"spec: {spec}")
            known.add(int(order or 0))
    if any(known != set(range(len(known))) for known in orders.values()):
        raise contradiction("the axes of an atom are not in order", where, f"spec: {spec}")


def _check_conversions(stage: StagePlan, where: str) -> None:
    outputs = {op.node: len(op.outputs) for op in stage.ops}
    first: dict[tuple[str, int], Spec] = {}
    for conversion in stage.conversions:
        here = f"{where}: {conversion.node}"
        if conversion.output >= outputs.get(conversion.node, 0):
            raise contradiction("a conversion is of a value that does not exist", here)
        _check_spec(conversion.spec, stage, here)
        value = (conversion.node, conversion.output)
        if conversion.group == 0:
            if value in first or conversion.from_first:
                raise contradiction("a first conversion is not the first", here)
            first[value] = conversion.spec
        elif value not in first:
            raise contradiction("a second conversion has no first", here)
        elif conversion.from_first and first[value] != conversion.spec:
            raise contradiction("a kept conversion has another spec than the first", here)


def _check_certificate(cert: Certificate) -> None:
    parts = cert.compute_us + cert.communication_us
    if not math.isclose(cert.cost_us, parts, rel_tol=1e-9, abs_tol=1e-9):
        raise contradiction("the cost is not the sum of its parts", f"{cert.cost_us} and {parts}")
    phases = cert.forward_us + cert.backward_us + cert.update_us
    if not math.isclose(cert.cost_us, phases, rel_tol=1e-9, abs_tol=1e-9):
        raise contradiction("the cost is not the sum of its phases", f"{cert.cost_us} and {phases}")
    if cert.lower_bound_us > cert.cost_us:
        raise contradiction(
            "the lower bound is above the cost", f"{cert.lower_bound_us} and {cert.cost_us}"
        )
    if (cert.status == "optimal") != (cert.gap == 0):
        raise contradiction("status and gap disagree", f"{cert.status}, gap {cert.gap}")
    if cert.cost_us > 0:
        gap = (cert.cost_us - cert.lower_bound_us) / cert.cost_us
        if not math.isclose(gap, cert.gap, rel_tol=1e-3, abs_tol=1e-3):
            raise contradiction("the gap is not that of cost and bound", f"{cert.gap} and {gap}")
    if cert.at_peak.total != cert.peak_memory_bytes:
        raise contradiction(
            "the peak is not the sum of its parts",
            f"{cert.peak_memory_bytes} and {cert.at_peak.total}",
        )
    if any(sample.memory.total > cert.peak_memory_bytes for sample in cert.memory_timeline):
        raise contradiction("the memory is above its peak", f"peak {cert.peak_memory_bytes}")
    if any(a.moment >= b.moment for a, b in pairwise(cert.memory_timeline)):
        raise contradiction("the moments of the memory are not in order")
    paid = sum(count.cost_us for count in cert.collectives.values())
    if not math.isclose(paid, cert.communication_us, rel_tol=1e-6, abs_tol=1e-6):
        raise contradiction(
            "the communication is not that of the collectives", f"{cert.communication_us}, {paid}"
        )
