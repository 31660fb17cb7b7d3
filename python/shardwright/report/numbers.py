"""A plan's figures for programs: what `shardwright plan --json` prints."""

from __future__ import annotations

from typing import Any

from shardwright.pipeline.plan import PipelinePlan
from shardwright.plan import Plan, plain


def plan_numbers(plan: Plan) -> dict[str, Any]:
    """The figures of a plan as plain JSON values.

    Returns:
        `time_us`, `lower_bound_us`, `gap`, `status`, `peak_memory_bytes`, `mesh`, `stages` (one
        object per stage with its `mesh`, `ranks` and number of `ops`), `num_microbatches`,
        `microbatches_in_flight`, `collectives` (by kind: `count`, `bytes`,
        `ring_bytes_per_device`, `cost_us`) and `seconds` (by phase of planning; empty for a loaded
        plan).
    """
    certificate = plan.certificate
    return {
        "time_us": certificate.cost_us,
        "lower_bound_us": certificate.lower_bound_us,
        "gap": certificate.gap,
        "status": certificate.status,
        "peak_memory_bytes": certificate.peak_memory_bytes,
        "mesh": list(plan.mesh_shape),
        "stages": [
            {"mesh": list(stage.mesh_shape), "ranks": list(stage.ranks), "ops": len(stage.ops)}
            for stage in plan.stages
        ],
        "num_microbatches": plan.num_microbatches,
        "microbatches_in_flight": plan.microbatches_in_flight,
        "collectives": {
            kind: {
                "count": count.count,
                "bytes": count.bytes,
                "ring_bytes_per_device": count.ring_bytes_per_device,
                "cost_us": count.cost_us,
            }
            for kind, count in certificate.collectives.items()
        },
        "seconds": {} if plan.stats is None else dict(plan.stats.seconds),
    }


def pipeline_numbers(plan: PipelinePlan) -> dict[str, Any]:
    """The figures of a plan of a step in stages as plain JSON values.

    Returns:
        `time_us`, `lower_bound_us` and `gap` (null without a bound), `status`,
        `peak_memory_bytes`, `schedule`, `num_microbatches`, `simulation` (parts of the step, bubble
        share, busy time of every stage), `transfers` (as in the plan's file) and `stages`: what
        `plan_numbers` gives of each, with its `begin`, `ranks`, `forward_us`, `backward_us`,
        `update_us`, `microbatches_in_flight` and `recomputed`.
    """
    stages = [
        {
            **plan_numbers(stage.plan),
            "begin": stage.begin,
            "ranks": list(stage.ranks),
            "forward_us": stage.forward_us,
            "backward_us": stage.backward_us,
            "update_us": stage.update_us,
            "microbatches_in_flight": stage.microbatches_in_flight,
            "recomputed": stage.recomputed,
        }
        for stage in plan.stages
    ]
    return {
        **plain(plan.certificate),
        "peak_memory_bytes": plan.peak_memory_bytes,
        "schedule": plan.schedule,
        "num_microbatches": plan.num_microbatches,
        "simulation": plain(plan.simulation),
        "transfers": [plain(transfer) for transfer in plan.transfers],
        "stages": stages,
    }
