"""Where two plans differ: figures first, then shardings of inputs and ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.pipeline.plan import PipelinePlan
from shardwright.plan import Plan
from shardwright.report.units import bytes_text, shape_text, time_text

_MAX_LINES = 40


def difference_lines(first: Plan | PipelinePlan, second: Plan | PipelinePlan) -> list[str]:
    """One line per difference; empty when the plans are the same.

    Plans in stages are compared stage by stage, by their numbers.

    Shardings are compared by name, so that plans of one model at different batch sizes compare too.
    """
    if isinstance(first, PipelinePlan) and isinstance(second, PipelinePlan):
        return _pipeline_lines(first, second)
    if isinstance(first, PipelinePlan) or isinstance(second, PipelinePlan):
        return _common_lines(first, second)
    lines = _figures(first, second)
    lines += _specs("input", _input_specs(first), _input_specs(second))
    if first.graph_hash == second.graph_hash:
        lines += _specs("op", _op_specs(first), _op_specs(second))
    return lines


def _pipeline_lines(first: PipelinePlan, second: PipelinePlan) -> list[str]:
    lines = _common_lines(first, second)
    lines += _changed(
        [
            ("schedule", first.schedule, second.schedule),
            ("bubble", _bubble(first), _bubble(second)),
            ("status", first.certificate.status, second.certificate.status),
        ]
    )
    for number, (a, b) in enumerate(zip(first.stages, second.stages, strict=False)):
        found = _changed(
            [
                ("begin", a.begin, b.begin),
                ("first rank", str(a.first_rank), str(b.first_rank)),
                ("in flight", str(a.microbatches_in_flight), str(b.microbatches_in_flight)),
                ("recomputed", str(a.recomputed), str(b.recomputed)),
            ]
        )
        lines += [f"stage {number}: {line}" for line in [*found, *difference_lines(a.plan, b.plan)]]
    transfers = [
        {
            f"{t.when} of {t.parameter or t.value} from stage {t.source} to {t.target}": (
                f"{t.source_spec} -> {t.target_spec}, {bytes_text(t.bytes)}, {time_text(t.cost_us)}"
            )
            for t in plan.transfers
        }
        for plan in (first, second)
    ]
    return lines + _specs("transfer", *transfers)


def _common_lines(first: Plan | PipelinePlan, second: Plan | PipelinePlan) -> list[str]:
    """Figures that plans of either kind have."""
    stages = [len(plan.stages) for plan in (first, second)]
    memory = [plan.peak_memory_bytes for plan in (first, second)]
    return _changed(
        [
            ("step", first.graph_hash[:12], second.graph_hash[:12]),
            ("cluster", str(first.cluster), str(second.cluster)),
            ("stages", str(stages[0]), str(stages[1])),
            ("microbatches", str(first.num_microbatches), str(second.num_microbatches)),
            ("time", time_text(first.time_us), time_text(second.time_us)),
            ("peak memory", bytes_text(memory[0]), bytes_text(memory[1])),
        ]
    )


def _bubble(plan: PipelinePlan) -> str:
    return f"{100 * plan.simulation.bubble_share:.1f} %"


def _changed(pairs: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"{name}: {old} -> {new}" for name, old, new in pairs if old != new]


def _figures(first: Plan, second: Plan) -> list[str]:
    a, b = first.certificate, second.certificate
    pairs = [
        ("step", first.graph_hash[:12], second.graph_hash[:12]),
        ("cluster", str(first.cluster), str(second.cluster)),
        ("mesh", shape_text(first.mesh_shape), shape_text(second.mesh_shape)),
        ("microbatches", str(first.num_microbatches), str(second.num_microbatches)),
        (
            "microbatches in flight",
            str(first.microbatches_in_flight),
            str(second.microbatches_in_flight),
        ),
        ("time", time_text(a.cost_us), time_text(b.cost_us)),
        ("compute", time_text(a.compute_us), time_text(b.compute_us)),
        ("communication", time_text(a.communication_us), time_text(b.communication_us)),
        ("peak memory", bytes_text(a.peak_memory_bytes), bytes_text(b.peak_memory_bytes)),
        ("status", a.status, b.status),
    ]
    for kind in sorted({*a.collectives, *b.collectives}):
        counts = [c.collectives[kind].count if kind in c.collectives else 0 for c in (a, b)]
        pairs.append((kind.replace("_", "-"), str(counts[0]), str(counts[1])))
    return _changed(pairs)


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
