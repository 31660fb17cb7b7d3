"""Published pipelines of GPT, MoE and Wide-ResNet priced against those that the search finds.

    python benchmarks/pipelines.py --case gpt_350m --case gpt_2_6b
    python benchmarks/pipelines.py --out benchmarks/results/pipelines.json
    python benchmarks/pipelines.py --table

The published stages, submeshes, logical meshes and numbers of microbatches are those of Alpa's
measurements (OSDI 2022, tables 5 to 7 and the plans of its artifact). Specs inside the published
stages are left to our solver, which is not bound to Alpa's rule that the batch lies on the first
axis: their price is at most that of the plan that was run. Language models were run with
recomputation ("published_recomputed"); their stages are priced without it as well ("published").
All get the same limit of memory, that of the device, doubled until ours and a published plan fit;
--ignore-memory takes no limit at all.

Seconds are CPU seconds of this process, its threads and its children, and only comparable within
one run; times of plans do not depend on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.capture.step_graph import StepGraph
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import PipelineOptions, StageConstraints, StageOptions
from shardwright.pipeline.plan import PipelinePlan
from shardwright.pipeline.planning import plan_options, plan_pipeline
from shardwright.pipeline.recomputed_stages import with_all_recomputed
from shardwright.planning import SearchRequest

RESULTS = Path(__file__).parent / "results" / "pipelines.json"
# More than any device has, so that the limit never binds.
_NO_LIMIT = 2**60
_MOST_DOUBLINGS = 5


@dataclasses.dataclass(frozen=True)
class Published:
    """One published plan.

    Attributes:
        devices: of all stages.
        num_microbatches: per step.
        blocks: modules of the list `module` in every stage.
        meshes: logical mesh of every stage.
        batch: sequences or images per step.
        module: the list of layers or blocks.
    """

    devices: int
    num_microbatches: int
    blocks: tuple[int, ...]
    meshes: tuple[tuple[int, ...], ...]
    batch: int = 1024
    module: str = "layers"

    @property
    def is_recomputed(self) -> bool:
        """Whether backward computed forward's values anew, as for all language models."""
        return self.module == "layers"

    @property
    def cluster(self) -> sw.Cluster:
        """One host's first devices, or whole hosts."""
        per_host = min(self.devices, 8)
        return sw.Cluster.preset(
            "p3.16xlarge", nodes=self.devices // per_host, devices_per_host=per_host
        )

    @property
    def stages(self) -> tuple[StageOptions, ...]:
        """As the planner takes them; stages follow one another in the order of ranks."""
        stages, first_rank, first_block = [], 0, 0
        for blocks, mesh in zip(self.blocks, self.meshes, strict=True):
            devices = 1
            for size in mesh:
                devices *= size
            begin = f"{self.module}.{first_block}" if first_block else ""
            stages.append(StageOptions(devices, first_rank, begin, mesh=mesh))
            first_rank, first_block = first_rank + devices, first_block + blocks
        return tuple(stages)


def _images(
    devices: int,
    num_microbatches: int,
    blocks: tuple[int, ...],
    *meshes: tuple[int, ...],
    batch: int = zoo.WIDE_RESNET_PUBLISHED_GLOBAL_BATCH,
) -> Published:
    return Published(devices, num_microbatches, blocks, meshes, batch, "blocks")


PUBLISHED = {
    "gpt_350m": Published(1, 512, (24,), ((1,),)),
    "gpt_760m": Published(2, 128, (12, 12), ((1,),) * 2),
    "gpt_1_3b": Published(4, 128, (12, 12), ((2,),) * 2),
    "gpt_2_6b": Published(8, 128, (8, 8, 16), ((2,), (2,), (4,))),
    "gpt_6_7b": Published(16, 64, (16, 16), ((2, 4),) * 2),
    "wide_resnet_250m": _images(1, 24, (16,), (1,)),
    "wide_resnet_500m": _images(2, 24, (16,), (2,)),
    "wide_resnet_1b": _images(4, 24, (16,), (4,)),
    "wide_resnet_2b": _images(8, 24, (8, 8), (4,), (4,)),
    "wide_resnet_4b": _images(16, 32, (5, 4, 7), (4,), (4,), (8,)),
    "moe_380m": Published(1, 512, (8,), ((1,),)),
    "moe_690m": Published(2, 32, (8,), ((2,),)),
    "moe_1_3b": Published(4, 32, (8, 8), ((2,),) * 2),
    "moe_2_4b": Published(8, 32, (8, 8), ((4,),) * 2),
    "moe_10b": Published(16, 16, (8, 8), ((8,),) * 2),
    "moe_27b": Published(32, 128, (2,) * 8, ((4,),) * 8),
    "gpt_15b": Published(32, 128, (12,) * 4, ((2, 4),) * 4),
    "gpt_39b": Published(64, 1024, (3,) * 16, ((4,),) * 16),
    "wide_resnet_6_8b": _images(32, 32, (5, 4, 4, 3), *((8,),) * 4),
    "moe_70b": Published(64, 64, (4,) * 8, ((8,),) * 8),
    # The other network of that name, of 50 layers, was measured, but its stages are not published.
    "wide_resnet_13b_depth_101": _images(
        64, 38, (4, 4, 4, 4, 4, 4, 5, 4), *((8,),) * 8, batch=1520
    ),
}


def captured(name: str, published: Published) -> StepGraph:
    """The step of the whole published batch."""
    step, args = getattr(zoo, name)(batch_size=published.batch)
    return capture(step, args)


def priced(
    graph: StepGraph, published: Published, request: SearchRequest, *, recomputed: bool = False
) -> PipelinePlan:
    """The published stages as our planner fills and prices them; `graph` is in microbatches."""
    options = PipelineOptions(published.stages)
    if recomputed:
        options = with_all_recomputed(graph, options)
    return plan_options(graph, options, published.cluster, request).plan


def cpu_seconds() -> float:
    """Of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Notes the CPU seconds of a phase, of its last run."""
    started = cpu_seconds()
    try:
        yield
    finally:
        seconds[phase] = round(cpu_seconds() - started, 2)


def described(plan: PipelinePlan) -> dict[str, object]:
    """What a row says of a plan."""
    return {
        "time_ms": round(plan.time_us / 1e3, 3),
        "bubble_share": round(plan.simulation.bubble_share, 4),
        "peak_memory_gib": round(plan.peak_memory_bytes / 2**30, 3),
        "stages": [
            {
                "begin": stage.begin,
                "ranks": [stage.ranks.start, stage.ranks.stop],
                "mesh": list(stage.plan.mesh_shape),
                "recomputed": stage.recomputed,
                "forward_us": round(stage.forward_us, 1),
                "backward_us": round(stage.backward_us, 1),
                "update_us": round(stage.update_us, 1),
            }
            for stage in plan.stages
        ],
    }


def searched(
    graph: StepGraph, cluster: sw.Cluster, request: SearchRequest, seconds: dict[str, float]
) -> PipelinePlan:
    """The pipeline that the search finds for a step in microbatches."""
    with timed(seconds, "plan"):
        return plan_pipeline(graph, cluster, StageConstraints(None), request).plan


def claimed(plan: PipelinePlan) -> dict[str, object]:
    """What a row says of a searched plan besides."""
    claim = plan.certificate
    return {
        "model_time_ms": round((claim.model_time_us or 0) / 1e3, 3),
        "model_lower_bound_ms": round((claim.lower_bound_us or 0) / 1e3, 3),
        "status": claim.status,
    }


def row_of(name: str, time_limit_s: float, ignore_memory: bool) -> dict[str, object]:
    """A row under the least doubling of the device's memory at which ours and a published fit."""
    published = PUBLISHED[name]
    cluster = published.cluster
    row: dict[str, object] = {
        "case": name,
        "devices": published.devices,
        "num_microbatches": published.num_microbatches,
    }
    seconds: dict[str, float] = {}
    with timed(seconds, "capture"):
        step = captured(name, published)
    with timed(seconds, "split_microbatches"):
        graph = split_microbatches(step, published.num_microbatches)
    limits = [cluster.memory_bytes << k for k in range(_MOST_DOUBLINGS)]
    kinds = ["published_recomputed"] if published.is_recomputed else []
    refused: dict[str, dict[str, str]] = {kind: {} for kind in [*kinds, "published", "found"]}
    for limit in [_NO_LIMIT] if ignore_memory else limits:
        row["memory_limit_gib"] = None if limit == _NO_LIMIT else limit / 2**30
        request = SearchRequest(memory_limit_bytes=limit, time_limit_s=time_limit_s)
        plans: dict[str, PipelinePlan] = {}
        for which in refused:
            try:
                if which == "found":
                    plans[which] = searched(graph, cluster, request, seconds)
                else:
                    again = which == "published_recomputed"
                    with timed(seconds, f"{which}_stage_plans"):
                        plans[which] = priced(graph, published, request, recomputed=again)
            except sw.InfeasibleError as error:
                refused[which][f"{limit / 2**30:.0f} GiB"] = str(error).splitlines()[0]
        if "found" in plans and len(plans) > 1:
            row |= {which: described(plan) for which, plan in plans.items()}
            row["claim"] = claimed(plans["found"])
            row["ratios"] = {
                which: round(plans["found"].time_us / plan.time_us, 4)
                for which, plan in plans.items()
                if which != "found"
            }
            break
        if "found" in plans and "found_in_less_memory" not in row:
            row["found_in_less_memory"] = described(plans["found"]) | {
                "memory_limit_gib": limit / 2**30
            }
    return row | {
        "refused": refused,
        "cpu_s": seconds,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def summary(row: dict[str, Any]) -> str:
    """A row as a line of the table in docs/concepts/oracles.md."""
    limit = row["memory_limit_gib"]
    ratios = [row["ratios"].get(which) for which in ("published_recomputed", "published")]
    devices = [stage["ranks"][1] - stage["ranks"][0] for stage in row["found"]["stages"]]
    columns = [
        row["case"],
        row["devices"],
        "none" if limit is None else f"{limit:g}",
        *("-" if ratio is None else f"{ratio:.4f}" for ratio in ratios),
        " + ".join(str(count) for count in devices),
    ]
    return "| " + " | ".join(str(column) for column in columns) + " |"


def provenance(name: str, args: argparse.Namespace) -> dict[str, object]:
    """How a row came about."""
    flags = f" --time-limit {args.time_limit:g}" + " --ignore-memory" * args.ignore_memory
    return {
        "command": f"python benchmarks/pipelines.py --case {name}{flags}",
        "versions": {
            "shardwright": sw.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": args.machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", choices=PUBLISHED, help="repeatable")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds per search")
    parser.add_argument("--ignore-memory", action="store_true", help="no limit of memory")
    parser.add_argument("--out", type=Path, help="JSON that the rows are added to, by case")
    parser.add_argument("--table", action="store_true", help="print the known rows, measure none")
    parser.add_argument("--machine", default="2 shared x86-64 cores", help="noted in the JSON")
    args = parser.parse_args()

    if args.table:
        for row in json.loads((args.out or RESULTS).read_text())["rows"]:
            print(summary(row))
        return
    for name in args.case or PUBLISHED:
        row = row_of(name, args.time_limit, args.ignore_memory)
        row |= provenance(name, args)
        print(json.dumps(row), flush=True)
        if args.out is None:
            continue
        rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        kept = {(r["case"], r["memory_limit_gib"] is None): r for r in rows}
        kept[name, row["memory_limit_gib"] is None] = row
        order = list(PUBLISHED)
        rows = sorted(kept.values(), key=lambda r: order.index(str(r["case"])))
        args.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
