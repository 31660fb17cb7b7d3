"""Plans zoo targets and prints, per mesh, the certified cost, the gap and where the time went.

    python benchmarks/planning.py --out benchmarks/results/planning.json
    python benchmarks/planning.py --case gpt_1_3b,batch_size=32:p3.16xlarge:1:2x4:80%

A case is TARGET[,NAME=NUMBER...]:PRESET:HOSTS:MESH:LIMIT, MESH as 8 or 2x4, LIMIT as "none",
a size such as 6GiB, or a share such as 80% of the peak of the plan without a limit. Seconds are CPU
seconds of this process and only comparable within one run; cost, bound and peak of the plan do not
depend on the machine. `search_cpu_s` is what sw.plan takes for a captured step (rules, strategies,
cost tables, solver, certificate, Python's Plan object) less `hand_over_cpu_s`, the making of the
op table in Python.
`resident_mib` is the peak of the whole process meanwhile, `search_mib` what the search added to it.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.capture.step_graph import StepGraph
from shardwright.graph_table import to_core_graph
from shardwright.planning import parse_bytes

_V100, _H100 = "p3.16xlarge:1", "p5.48xlarge:8"
_EIGHT = ("8", "2x4", "4x2")
_SMALL = (
    "gpt_1_3b,batch_size=8",
    "gpt_1_3b,batch_size=32",
    "moe_2_4b,batch_size=32",
    "wide_resnet_1b,batch_size=64",
)
_LLAMA = (
    "llama3_8b,batch_size=64",
    "llama3_8b,batch_size=8",
)
CASES = [
    *(f"{target}:{_V100}:{mesh}:none" for target in _SMALL for mesh in _EIGHT),
    *(f"{target}:{_H100}:{mesh}:none" for target in _LLAMA for mesh in ("64", "8x8")),
    *(f"{target}:{_V100}:{mesh}:85%" for target in _SMALL for mesh in ("8", "2x4")),
    *(f"{target}:{_H100}:{mesh}:85%" for target in _LLAMA for mesh in ("64", "8x8")),
]
# More than any device has, so that the limit never binds.
_NO_LIMIT = 2**60


@cache
def captured(target: str) -> tuple[StepGraph, float]:
    """Step graph of a target with its arguments, and the CPU seconds of its capture."""
    name, *arguments = target.split(",")
    options = {key: int(value) for key, value in (item.split("=") for item in arguments)}
    started = time.process_time()
    step, args = getattr(zoo, name)(**options)
    return capture(step, args), time.process_time() - started


@cache
def unlimited_peak(problem: str, time_limit_s: float) -> int:
    """Peak bytes of the plan of TARGET:PRESET:HOSTS:MESH without a limit."""
    target, preset, hosts, mesh = problem.split(":")
    plan = search(target, preset, hosts, mesh, _NO_LIMIT, time_limit_s)
    return plan.certificate.peak_memory_bytes


def search(
    target: str, preset: str, hosts: str, mesh: str, limit: int | str, time_limit_s: float
) -> sw.Plan:
    return sw.plan(
        captured(target)[0],
        cluster=sw.Cluster.preset(preset, nodes=int(hosts)),
        mesh=tuple(int(size) for size in mesh.split("x")),
        memory_limit=limit,
        time_limit_s=time_limit_s,
    )


def resident_mib(field: str) -> float:
    """VmRSS or VmHWM of this process; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Starts VmHWM anew (proc(5): 5 resets the peak)."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def plan_case(case: str, time_limit_s: float) -> dict[str, object]:
    """One row: capture, plan and the figures of its certificate."""
    target, preset, hosts, mesh, limit = case.split(":")
    graph, capture_s = captured(target)
    row: dict[str, object] = {
        "case": case,
        "capture_cpu_s": round(capture_s, 2),
        "nodes": len(graph.graph_module.graph.nodes),
    }
    bytes_: int | str = _NO_LIMIT if limit == "none" else limit
    if limit.endswith("%"):
        peak = unlimited_peak(case.rpartition(":")[0], time_limit_s)
        bytes_ = int(peak * float(limit[:-1]) / 100)
    if limit != "none":
        row["memory_limit_gib"] = round((parse_bytes(bytes_) or 0) / 2**30, 3)
    graph.hash()  # remembered by the graph; not part of the search
    gc.collect()
    forget_peak()
    before_mib = resident_mib("VmRSS")
    started = time.process_time()
    to_core_graph(graph)
    hand_over_s = time.process_time() - started
    started = time.process_time()
    try:
        plan = search(target, preset, hosts, mesh, bytes_, time_limit_s)
    except sw.InfeasibleError as error:
        return row | {"status": str(error).splitlines()[0]}
    plan_s = time.process_time() - started
    certificate = plan.certificate
    assert plan.stats is not None
    return row | {
        "hand_over_cpu_s": round(hand_over_s, 3),
        "search_cpu_s": round(max(0.0, plan_s - hand_over_s), 3),
        "wall_s_by_phase": {k: round(v, 3) for k, v in plan.stats.seconds.items()},
        "decisions": plan.stats.num_nodes,
        "resident_mib": round(resident_mib("VmHWM")),
        "search_mib": round(resident_mib("VmHWM") - before_mib),
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
    parser.add_argument(
        "--case", action="append", help="TARGET:PRESET:HOSTS:MESH:LIMIT, repeatable"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per search")
    parser.add_argument("--out", type=Path, help="where the rows go as JSON")
    parser.add_argument("--machine", default="2 shared x86-64 cores", help="noted in the JSON")
    args = parser.parse_args()

    rows = []
    table = Table("case", "search CPU s", "added MiB", "cost ms", "gap", "status", "peak GiB")
    for case in args.case or CASES:
        row = plan_case(case, args.time_limit)
        rows.append(row)
        gap = row.get("gap")
        table.add_row(
            case,
            str(row.get("search_cpu_s", "")),
            str(row.get("search_mib", "")),
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
            "machine": args.machine,
            "rows": rows,
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
