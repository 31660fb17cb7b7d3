"""A plan's figures for programs: what `shardwright plan --json` prints."""

from __future__ import annotations

from typing import Any

from shardwright.plan import Plan


def plan_numbers(plan: Plan) -> dict[str, Any]:
    """The figures of a plan as plain JSON values.

    Returns:
        `time_us`, `lower_bound_us`, `gap`, `status`, `peak_memory_bytes`, `mesh`, `stages` (one
        object per stage with its `mesh`, `ranks` and number of `ops`), `num_microbatches`,
        `collectives` (by kind: `count`, `bytes`, `ring_bytes_per_device`, `cost_us`) and
        `seconds` (by phase of planning; empty for a loaded plan).
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
