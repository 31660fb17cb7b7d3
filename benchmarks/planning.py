"""Plans zoo targets and prints, per mesh, the certified cost, the gap and where the time went.

    python benchmarks/planning.py --out benchmarks/results/planning.json
    python benchmarks/planning.py --case gpt_1_3b:p3.16xlarge:1:8

A case is TARGET:PRESET:HOSTS:MESH with MESH as 8 or 2x4. Seconds are wall time of this machine and
are only comparable within one run; cost, bound and peak memory do not depend on it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture

CASES = [
    "gpt_1_3b:p3.16xlarge:1:8",
    "gpt_1_3b:p3.16xlarge:1:2x4",
    "wide_resnet_1b:p3.16xlarge:1:8",
    "moe_1_3b:p3.16xlarge:1:8",
    "llama3_8b:p5.48xlarge:8:64",
]


def plan_case(case: str, time_limit_s: float) -> dict[str, object]:
    """One row: capture, plan and the figures of its certificate."""
    target, preset, hosts, mesh_text = case.split(":")
    mesh = tuple(int(size) for size in mesh_text.split("x"))
    started = time.perf_counter()
    step, args = getattr(zoo, target)()
    graph = capture(step, args)
    captured = time.perf_counter() - started
    started = time.perf_counter()
    row: dict[str, object] = {
        "case": case,
        "capture_s": round(captured, 2),
        "nodes": len(graph.graph_module.graph.nodes),
    }
    try:
        plan = sw.plan(
            graph,
            cluster=sw.Cluster.preset(preset, nodes=int(hosts)),
            mesh=mesh,
            time_limit_s=time_limit_s,
        )
    except sw.InfeasibleError as error:
        return row | {"status": str(error).splitlines()[0]}
    certificate = plan.certificate
    return row | {
        "plan_s": round(time.perf_counter() - started, 2),
        "cost_ms": round(certificate.cost_us / 1e3, 3),
        "lower_bound_ms": round(certificate.lower_bound_us / 1e3, 3),
        "gap": certificate.gap,
        "status": certificate.status,
        "peak_memory_gib": round(certificate.peak_memory_bytes / 2**30, 3),
        "collectives": {
            kind: count.count for kind, count in sorted(certificate.collectives.items())
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", help="TARGET:PRESET:HOSTS:MESH, repeatable")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per search")
    parser.add_argument("--out", type=Path, help="where the rows go as JSON")
    args = parser.parse_args()

    rows = []
    table = Table("case", "nodes", "capture s", "plan s", "cost ms", "gap", "status", "peak GiB")
    for case in args.case or CASES:
        row = plan_case(case, args.time_limit)
        rows.append(row)
        gap = row.get("gap")
        table.add_row(
            case,
            str(row["nodes"]),
            str(row["capture_s"]),
            str(row.get("plan_s", "")),
            str(row.get("cost_ms", "")),
            "" if gap is None else f"{gap:.3%}",
            str(row["status"]),
            str(row.get("peak_memory_gib", "")),
        )
    Console(width=140).print(table)
    if args.out:
        record = {
            "command": "python benchmarks/planning.py",
            "versions": {
                "shardwright": sw.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "machine": "2 shared x86-64 cores",
            "rows": rows,
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
