"""Seconds from a captured step to a plan in stages: GPT of hidden size 8192 on 8 x p3.16xlarge.

    python benchmarks/pipeline_planning.py
    python benchmarks/pipeline_planning.py --out benchmarks/results/pipeline_planning.json

GPT-39B has 48 layers and plans in the 16 GiB of the device; 24 and 96 layers, in 64 GiB, show how
planning grows with depth. 1,024 microbatches. Wall seconds are of an idle machine only, and all of
them are only comparable within one run; times of plans do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.planning import plan_pipeline
from shardwright.planning import SearchRequest

# Layers, and memory per device in GiB.
_CASES = ((48, 16), (24, 64), (96, 64))
_MICROBATCHES = 1024


def row_of(layers: int, memory_gib: int) -> dict[str, object]:
    """One case: what planning took, in all and the cut into microbatches, and what came out."""
    step, args = zoo.gpt(hidden=8192, layers=layers, heads=64, batch_size=_MICROBATCHES)
    captured = capture(step, args)
    cluster = sw.Cluster.preset("p3.16xlarge", nodes=8)
    request = SearchRequest(memory_limit_bytes=memory_gib * 2**30, time_limit_s=600)
    started, cpu_started = time.perf_counter(), time.process_time()
    graph = split_microbatches(captured, _MICROBATCHES)
    cut = time.perf_counter() - started
    plan = plan_pipeline(graph, cluster, StageConstraints(None), request).plan
    return {
        "layers": layers,
        "memory_gib": memory_gib,
        "wall_s": round(time.perf_counter() - started, 2),
        "cut_wall_s": round(cut, 2),
        "cpu_s": round(time.process_time() - cpu_started, 2),
        "time_ms": round(plan.time_us / 1e3, 3),
        "model_time_ms": round((plan.certificate.model_time_us or 0) / 1e3, 3),
        "model_lower_bound_ms": round((plan.certificate.lower_bound_us or 0) / 1e3, 3),
        "devices": [len(stage.ranks) for stage in plan.stages],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="JSON with all rows")
    parser.add_argument("--machine", default="2 x86-64 cores", help="noted in the JSON")
    args = parser.parse_args()
    rows = []
    for layers, memory_gib in _CASES:
        rows.append(row_of(layers, memory_gib))
        print(json.dumps(rows[-1]), flush=True)
    record = {
        "command": "python benchmarks/pipeline_planning.py",
        "versions": {
            "shardwright": sw.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": args.machine,
        "ratio_96_over_24": round(rows[2]["wall_s"] / rows[1]["wall_s"], 2),  # type: ignore[operator]
        "rows": rows,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
