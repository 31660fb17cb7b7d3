"""What reports say of a step in stages: rows for its stages and transfers, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.pipeline.module_names import module_names
from shardwright.pipeline.plan import BoundaryTransfer, PipelinePlan, PipelineStage
from shardwright.report.units import (
    bytes_text,
    count_text,
    gap_text,
    shape_text,
    share_text,
    time_text,
)

STAGE_HEADINGS = (
    ("stage", "l"), ("layers", "l"), ("submesh", "l"), ("ranks", "l"), ("mesh", "l"),
    ("forward", "r"), ("backward", "r"), ("update", "r"), ("memory", "r"), ("in flight", "r"),
    ("status", "l"),
)  # fmt: skip
TRANSFER_HEADINGS = (
    ("when", "l"), ("stages", "l"), ("values", "l"), ("specs", "l"), ("bytes", "r"),
    ("between hosts", "r"), ("time", "r"), ("per step", "r"),
)  # fmt: skip

# Of more values than this between two stages in one part of the step one row tells the sum.
_MOST_LISTED = 3


@dataclass(frozen=True)
class TransferRow:
    """Values that go from one stage to another in one part of the step.

    Attributes:
        transfers: what they are.
        times: how often per step.
    """

    transfers: tuple[BoundaryTransfer, ...]
    times: int

    @property
    def cost_us(self) -> float:
        """Of one time."""
        return sum(transfer.cost_us for transfer in self.transfers)

    def cells(self) -> list[str]:
        """As printed, in the order of `TRANSFER_HEADINGS`."""
        first = self.transfers[0]
        scalars = not any(transfer.shape for transfer in self.transfers)
        values, specs = count_text(len(self.transfers), "scalar" if scalars else "value"), ""
        if len(self.transfers) == 1:
            shape = "x".join(map(str, first.shape)) or "scalar"
            values = f"{first.parameter or first.value} {first.dtype} {shape}"
            specs = f"{first.source_spec} -> {first.target_spec}"
        return [
            first.when,
            f"{first.source} -> {first.target}",
            values,
            specs,
            bytes_text(sum(transfer.bytes for transfer in self.transfers)),
            bytes_text(sum(transfer.host_bytes for transfer in self.transfers)),
            time_text(self.cost_us),
            f"{self.times} x",
        ]


def stage_layers(stage: PipelineStage) -> str:
    """Modules whose forward the stage runs."""
    ops = stage.plan.stages[0].ops
    return module_names(op.module_path for op in ops if op.phase == "forward" and not op.input_kind)


def ranks_text(ranks: Sequence[int]) -> str:
    """`"0-3"`."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def submesh_text(stage: PipelineStage) -> str:
    """Hosts by devices: `"1 x 2"`."""
    cluster = stage.plan.cluster
    return f"{cluster.num_hosts} x {cluster.devices_per_host}"


def stage_cells(plan: PipelinePlan, number: int) -> list[str]:
    """A row of the table of stages, in the order of `STAGE_HEADINGS`."""
    stage = plan.stages[number]
    certificate = stage.plan.certificate
    gap = "" if certificate.gap == 0 else f", gap {gap_text(certificate.gap)}"
    return [
        str(number),
        stage_layers(stage) or "-",
        submesh_text(stage),
        ranks_text(stage.ranks),
        shape_text(stage.plan.mesh_shape),
        time_text(stage.forward_us),
        time_text(stage.backward_us),
        time_text(stage.update_us),
        bytes_text(stage.plan.peak_memory_bytes),
        str(stage.microbatches_in_flight),
        certificate.status.replace("_", " ") + gap + (", recomputed" if stage.recomputed else ""),
    ]


def transfer_rows(plan: PipelinePlan) -> list[TransferRow]:
    """In the order of the step; scalars and many values that go the same way are one row."""
    groups: dict[tuple[int, int, int, bool], list[BoundaryTransfer]] = {}
    order = ("start", "forward", "backward", "update")
    for transfer in plan.transfers:
        is_scalar = transfer.shape == ()
        key = (order.index(transfer.when), transfer.source, transfer.target, is_scalar)
        groups.setdefault(key, []).append(transfer)
    rows = []
    for (when, _, _, is_scalar), transfers in sorted(groups.items(), key=lambda item: item[0]):
        times = plan.num_microbatches if order[when] in ("forward", "backward") else 1
        if is_scalar:
            rows.append(TransferRow(tuple(transfers), times))
            continue
        if len(transfers) <= _MOST_LISTED:
            rows += [TransferRow((transfer,), times) for transfer in transfers]
            continue
        # What is large has a row of its own.
        largest = max(transfers, key=lambda transfer: transfer.bytes)
        rest = tuple(transfer for transfer in transfers if transfer is not largest)
        rows += [TransferRow((largest,), times), TransferRow(rest, times)]
    return rows


def title_line(plan: PipelinePlan) -> str:
    """Stages, schedule, microbatches and devices."""
    unused = plan.cluster.num_devices - plan.num_devices
    idle = f", {count_text(unused, 'device')} unused" if unused else ""
    return (
        f"{count_text(len(plan.stages), 'stage')}, {plan.schedule}, "
        f"{count_text(plan.num_microbatches, 'microbatch')}, "
        f"{count_text(plan.num_devices, 'device')}{idle}"
    )


def pipeline_words(plan: PipelinePlan) -> list[str]:
    """Sentences on where the time of a step goes."""
    simulation = plan.simulation
    loads = [stage.forward_us + stage.backward_us for stage in plan.stages]
    slowest = loads.index(max(loads))
    words = [
        f"{share_text(simulation.pipeline_us, plan.time_us)} of the step is forward and backward "
        f"of {count_text(plan.num_microbatches, 'microbatch')}; submeshes idle for "
        f"{100 * simulation.bubble_share:.1f} % of that (the bubble).",
    ]
    if len(plan.stages) > 1:
        words.append(
            f"Stage {slowest} is the slowest: {time_text(loads[slowest])} per microbatch, "
            f"{max(loads) * len(loads) / sum(loads):.2f} times the average."
            if sum(loads)
            else "No stage computes anything under this cost model."
        )
    moved = [row for row in transfer_rows(plan) if row.transfers[0].when in ("forward", "backward")]
    if moved:
        largest = max(moved, key=lambda row: row.cost_us)
        first = largest.transfers[0]
        words.append(
            f"The dearest transfer of a microbatch takes {time_text(largest.cost_us)}, from stage "
            f"{first.source} to {first.target}; transfers overlap computation."
        )
    recomputed = [str(n) for n, stage in enumerate(plan.stages) if stage.recomputed]
    if recomputed:
        words.append(f"Backward computes forward anew in stages {', '.join(recomputed)}.")
    return words


def pipeline_claims(plan: PipelinePlan) -> list[str]:
    """What is claimed of the pipeline, and what is not."""
    certificate = plan.certificate
    lines = [f"time {time_text(certificate.time_us)}, simulated from the stages' certificates"]
    claim, gap = certificate.claim, certificate.gap
    if claim is None or gap is None:
        lines.append("Not proven: these stages were not searched.")
    else:
        lines.append(
            f"in the model of the search (sum of all stages and transfers, and B - 1 times the "
            f"longest): {time_text(claim.model_time_us)}, lower bound "
            f"{time_text(claim.lower_bound_us)}, gap {gap_text(gap)}"
        )
        lines.append(
            {
                "optimal": "Proven: no other stages are better in that model.",
                "feasible": "Not proven best in that model: the search ended with a gap.",
                "time_limit": "Not proven best in that model: the time limit ended the search.",
            }[certificate.status]
        )
    proven = sum(stage.plan.certificate.status == "optimal" for stage in plan.stages)
    lines.append(
        f"{proven} of {count_text(len(plan.stages), 'stage')} proven optimal on its mesh, each "
        "taken by itself."
    )
    return lines


def time_parts(plan: PipelinePlan) -> list[tuple[str, float]]:
    """Parts of the step one after the other."""
    simulation = plan.simulation
    return [
        ("parameters sent", simulation.start_us),
        ("forward and backward", simulation.pipeline_us),
        ("update", simulation.update_us),
        ("exchange in the update", simulation.exchange_us),
    ]
