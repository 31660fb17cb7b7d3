"""Solves a folder of contest problem files and prints the answers against what is published.

    python benchmarks/contest.py tests/data/iopddl tests/data/whole_step --check
    python benchmarks/contest.py FOLDER --time-limit 60 --out benchmarks/results/contest.json

Every file (.json, .json.gz) is solved in a process of its own, one after the other. CPU seconds are
those of reading and solving, CBC's worker included, the interpreter's start not; memory is the
process's peak resident set, interpreter and torch (about 250 MiB) included. Every choice is priced
again from the file by ``contest_evaluator.py``. Published costs, proven optima and the bars that
``--check`` holds the answers to are in ``contest_known.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from contest_evaluator import evaluate, read_problem
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
KNOWN = HERE / "contest_known.json"
DEFAULT_TIME_LIMIT_S = 60.0
# A worker that does not answer this long after its limit is ended and counts as failed.
GRACE_S = 120.0


def problem_files(paths: list[Path]) -> list[Path]:
    """The problem files among the given ones and in the given folders."""
    files: set[Path] = set()
    for path in paths:
        if path.is_dir():
            files.update(path.rglob("*.json"), path.rglob("*.json.gz"))
        else:
            files.add(path)
    return sorted(files, key=lambda file: (instance_name(file), file))


def instance_name(file: Path) -> str:
    """A file's name without .json or .json.gz."""
    return file.name.removesuffix(".gz").removesuffix(".json")


def solve_here(file: Path, time_limit_s: float, relative_gap: float, verify: bool) -> None:
    """The worker: solves one file in this process and prints its figures as JSON."""
    import shardwright as sw

    def cpu_s() -> float:
        usages = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    history: list[tuple[float, int | None, int | None]] = []

    def remember(_phase: str, cost: int | None, bound: int | None, _seconds: float) -> None:
        if not history or history[-1][1:] != (cost, bound):
            history.append((cpu_s() - cpu_before, cost, bound))

    memory_before = peak_memory_mib()
    wall_before, cpu_before = time.perf_counter(), cpu_s()
    result = sw.solve_ilp(
        file, time_limit_s=time_limit_s, relative_gap=relative_gap, on_progress=remember
    )
    cpu, wall, memory = cpu_s() - cpu_before, time.perf_counter() - wall_before, peak_memory_mib()
    row: dict[str, Any] = {
        "nodes": result.nodes,
        "edges": result.edges,
        "status": result.status,
        "stop": result.stop,
        "cost": result.cost,
        "lower_bound": result.lower_bound,
        "gap": result.gap,
        "plan_peak_bytes": result.peak_bytes,
        "cpu_s": round(cpu, 3),
        "wall_s": round(wall, 3),
        "cost_known_at_cpu_s": known_at(history, 1, result.cost, cpu),
        "bound_known_at_cpu_s": known_at(history, 2, result.lower_bound, cpu),
        "trajectory": [[round(entry[0], 3), *entry[1:]] for entry in history],
        "memory_mib": round(memory),
        "memory_before_mib": round(memory_before),
        "phases": {name: round(seconds, 3) for name, seconds in result.phases.items()},
        "versions": {"shardwright": sw.__version__, "python": platform.python_version()},
    }
    if verify and result.cost is not None:
        found = evaluate(read_problem(file), result.choice)
        row["violations"] = list(found.violations)
        if found.cost != result.cost:
            row["violations"].append(f"cost is {found.cost}, the answer says {result.cost}")
        if found.peak_bytes != result.peak_bytes:
            row["violations"].append(f"peak is {found.peak_bytes}, not {result.peak_bytes}")
    print(json.dumps(row))


def known_at(
    history: list[tuple[float, int | None, int | None]], column: int, final: int | None, end: float
) -> float | None:
    """CPU seconds at which the final value was first reported (10 reports per second at most)."""
    if final is None:
        return None
    return round(next((entry[0] for entry in history if entry[column] == final), end), 3)


def peak_memory_mib() -> float:
    """Peak resident set of this process or of its largest child."""
    own = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    try:
        # The resource usage also remembers the process that was forked to start this one.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        own = float(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        pass
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def solve_apart(
    file: Path, time_limit_s: float, relative_gap: float, verify: bool
) -> dict[str, Any]:
    """Runs the worker for one file; a crash or a hang becomes the row's error."""
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        str(file),
        "--worker",
        f"--time-limit={time_limit_s}",
        f"--gap={relative_gap}",
        *([] if verify else ["--no-verify"]),
    ]
    path = os.pathsep.join([str(HERE.parent / "python"), os.environ.get("PYTHONPATH", "")])
    worker = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
    )
    try:
        out, err = worker.communicate(timeout=time_limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        return {"error": f"no answer {GRACE_S:.0f} s after the limit"}
    except BaseException:
        os.killpg(worker.pid, signal.SIGKILL)
        raise
    if worker.returncode != 0:
        lines = [line for line in err.splitlines() if line.strip()]
        problem = next((line for line in lines if "Error [E" in line), lines[-1] if lines else "")
        return {"error": f"exit code {worker.returncode}: {problem}"}
    row: dict[str, Any] = json.loads(out)
    return row


def findings_of(row: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """What is wrong with an answer whatever the machine: a false cost, bound or optimum."""
    if "error" in row:
        return [row["error"]]
    findings = list(row.get("violations", []))
    cost, bound = row["cost"], row["lower_bound"]
    optimum = known.get("optimum")
    published = known.get("published", {})
    highest_floor = max(
        (value for value in (optimum, published.get("lower_bound")) if value is not None),
        default=None,
    )
    lowest_cost = min(
        (value for value in (optimum, published.get("cost")) if value is not None), default=None
    )
    if cost is not None and highest_floor is not None and cost < highest_floor:
        findings.append(f"cost {cost} is below the known bound {highest_floor}")
    if bound is not None and lowest_cost is not None and bound > lowest_cost:
        findings.append(f"bound {bound} is above the known cost {lowest_cost}")
    if cost is not None and bound is not None and bound > cost:
        findings.append(f"bound {bound} is above the cost {cost}")
    return findings


def missed_bars(row: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """The bars of an instance that its answer does not reach; without bars, a cost is wanted."""
    if "error" in row:
        return ["an answer"]
    bar = known.get("bar", {})
    missed = []
    if bar.get("optimal") and (row["status"] != "optimal" or row["cost"] != known["optimum"]):
        missed.append(f"optimal {known['optimum']}")
    if row["cost"] is None and row["status"] != "infeasible":
        missed.append("a valid choice")
    elif "cost" in bar and row["cost"] > bar["cost"]:
        missed.append(f"cost {bar['cost']}")
    if "gap" in bar and (row["gap"] is None or row["gap"] > bar["gap"]):
        missed.append(f"gap {bar['gap']:.2%}")
    if "cpu_s" in bar and not missed and reached_at_cpu_s(row, bar) > bar["cpu_s"]:
        missed.append(f"{bar['cpu_s']} CPU s")
    if "memory_mib" in bar and row["memory_mib"] > bar["memory_mib"]:
        missed.append(f"{bar['memory_mib']} MiB")
    return missed


def reached_at_cpu_s(row: dict[str, Any], bar: dict[str, Any]) -> float:
    """When cost and gap were first as good as the bar asks; a proof must also have ended."""
    if not bar.get("optimal"):
        for seconds, cost, bound in row["trajectory"]:
            if cost is None or cost > bar.get("cost", cost):
                continue
            if "gap" not in bar or (
                bound is not None and cost - bound <= bar["gap"] * max(1, abs(cost))
            ):
                return float(seconds)
    return float(row["cpu_s"])


def difference(cost: int | None, published: int | None) -> float | None:
    """(cost - published) / published."""
    if cost is None or not published:
        return None
    return (cost - published) / abs(published)


def table_of(rows: list[dict[str, Any]], checked: bool) -> Table:
    table = Table("instance", "status")
    numbers = ["cost", "bound", "gap %", "CPU s", "found at", "MiB", "published", "difference %"]
    for column in numbers:
        table.add_column(column, justify="right")
    if checked:
        table.add_column("bar")
    for row in rows:
        if "error" in row:
            cells = [row["instance"], row["error"], *[""] * len(numbers)]
        else:
            published = row.get("published_cost")
            cells = [
                row["instance"],
                row["status"],
                text(row["cost"]),
                text(row["lower_bound"]),
                "" if row["gap"] is None else f"{100 * row['gap']:.4f}",
                f"{row['cpu_s']:.2f}",
                "" if row["cost_known_at_cpu_s"] is None else f"{row['cost_known_at_cpu_s']:.2f}",
                text(row["memory_mib"]),
                text(published),
                "" if row["difference"] is None else f"{100 * row['difference']:+.4f}",
            ]
        if checked:
            complaints = row["findings"] + row["missed"]
            cells.append("misses " + ", ".join(complaints) if complaints else "kept")
        table.add_row(*cells)
    return table


def command_text(arguments: argparse.Namespace) -> str:
    """The command for the record, folders by their last name."""
    words = [path.resolve().name for path in arguments.paths]
    if arguments.time_limit:
        words.append(f"--time-limit {arguments.time_limit:g}")
    if arguments.gap:
        words.append(f"--gap {arguments.gap:g}")
    return " ".join(["python benchmarks/contest.py", *words])


def text(value: int | None) -> str:
    return "" if value is None else str(value)


def main() -> int:
    """Runs the benchmark.

    Returns:
        0; with ``--check``, 1 when an answer is wrong or misses a bar.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="file or folder")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help=f"wall seconds per file (the CPU seconds of its bar, or {DEFAULT_TIME_LIMIT_S:.0f})",
    )
    parser.add_argument("--gap", type=float, default=0.0, help="stop at this relative gap (0)")
    parser.add_argument("--known", type=Path, default=KNOWN, help="published costs and bars")
    parser.add_argument("--check", action="store_true", help="fail when a bar is missed")
    parser.add_argument(
        "--trajectory", action="store_true", help="also record CPU seconds, cost, bound over time"
    )
    parser.add_argument("--no-verify", action="store_true", help="do not price choices again")
    parser.add_argument(
        "--machine",
        default=f"{os.cpu_count()} {platform.machine()} cores",
        help="class of machine for the record",
    )
    parser.add_argument("--out", type=Path, help="where the rows go as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        solve_here(arguments.paths[0], arguments.time_limit, arguments.gap, not arguments.no_verify)
        return 0

    known_instances = json.loads(arguments.known.read_text(encoding="utf-8"))["instances"]
    files = problem_files(arguments.paths)
    if not files:
        parser.error("no .json or .json.gz file there")
    console = Console(stderr=True)
    versions: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for file in files:
        name = instance_name(file)
        known = known_instances.get(name, {})
        limit = arguments.time_limit or known.get("bar", {}).get("cpu_s", DEFAULT_TIME_LIMIT_S)
        limit = max(limit, 1.0)
        if console.is_terminal:
            console.print(f"{name}, at most {limit:.0f} s ...")
        row = {"instance": name, "time_limit_s": limit}
        row |= solve_apart(file, limit, arguments.gap, not arguments.no_verify)
        versions |= row.pop("versions", {})
        published = known.get("published", {})
        if published:
            row["published_cost"] = published["cost"]
            row["published_source"] = published["source"]
            row["published_lower_bound"] = published["lower_bound"]
        row["difference"] = difference(row.get("cost"), published.get("cost"))
        row["findings"] = findings_of(row, known)
        row["missed"] = missed_bars(row, known)
        if not arguments.trajectory:
            row.pop("trajectory", None)
        rows.append(row)
    Console(width=None if sys.stdout.isatty() else 180).print(table_of(rows, arguments.check))
    if arguments.out:
        record = {
            "command": command_text(arguments),
            "versions": versions,
            "machine": arguments.machine,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    failed = any(row["findings"] or row["missed"] for row in rows)
    return 1 if arguments.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
