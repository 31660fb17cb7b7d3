"""Where two plans differ: figures first, then shardings of inputs and ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.plan import Plan
from shardwright.report.units import bytes_text, shape_text, time_text

_MAX_LINES = 40


def difference_lines(first: Plan, second: Plan) -> list[str]:
    """One line per difference; empty when the plans are the same.

    Shardings are compared by name, so that plans of one model at different batch sizes compare too.
    """
    lines = _figures(first, second)
    lines += _specs("input", _input_specs(first), _input_specs(second))
    if first.graph_hash == second.graph_hash:
        lines += _specs("op", _op_specs(first), _op_specs(second))
    return lines


def _figures(first: Plan, second: Plan) -> list[str]:
    a, b = first.certificate, second.certificate
    pairs = [
        ("step", first.graph_hash[:12], second.graph_hash[:12]),
        ("cluster", str(first.cluster), str(second.cluster)),
        ("mesh", shape_text(first.mesh_shape), shape_text(second.mesh_shape)),
        ("microbatches", str(first.num_microbatches), str(second.num_microbatches)),
        ("time", time_text(a.cost_us), time_text(b.cost_us)),
        ("compute", time_text(a.compute_us), time_text(b.compute_us)),
        ("communication", time_text(a.communication_us), time_text(b.communication_us)),
        ("peak memory", bytes_text(a.peak_memory_bytes), bytes_text(b.peak_memory_bytes)),
        ("status", a.status, b.status),
    ]
    for kind in sorted({*a.collectives, *b.collectives}):
        counts = [c.collectives[kind].count if kind in c.collectives else 0 for c in (a, b)]
        pairs.append((kind.replace("_", "-"), str(counts[0]), str(counts[1])))
    return [f"{name}: {old} -> {new}" for name, old, new in pairs if old != new]


def _input_specs(plan: Plan) -> dict[str, str]:
    return {name: tensor.text for name, tensor in plan.inputs.items()}


def _op_specs(plan: Plan) -> dict[str, str]:
    return {
        op.node: " ".join(f"[{output.text}]" for output in op.outputs)
        for stage in plan.stages
        for op in stage.ops
        if not op.input_kind
    }


def _specs(noun: str, first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    changed = [
        f"{noun} {name}: {first[name]} -> {second[name]}"
        for name in first
        if name in second and first[name] != second[name]
    ]
    gone = [f"{noun} {name}: only in the first" for name in first if name not in second]
    new = [f"{noun} {name}: only in the second" for name in second if name not in first]
    return _shortened([*changed, *gone, *new], noun)


def _shortened(lines: Iterable[str], noun: str) -> list[str]:
    kept = list(lines)
    if len(kept) <= _MAX_LINES:
        return kept
    return [*kept[:_MAX_LINES], f"... and {len(kept) - _MAX_LINES} more {noun}s"]
