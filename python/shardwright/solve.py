"""The intra-operator solver on its own: problems in the public contest format, and ``solve``.

The planner calls the same solver from C++; this module is for problem files and for tests.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwright._core import solve_problem, solve_problem_file
from shardwright.errors import ConfigError, ProblemError, ShardwrightError
from shardwright.progress import Progress, search_line


@dataclass(frozen=True)
class SolveResult:
    """A certified answer of the solver.

    Attributes:
        file: Path of the problem file, or the problem's name.
        nodes: Number of nodes.
        edges: Number of edges.
        cost: Cost of the choice, recomputed by the certificate; None when there is none.
        lower_bound: Proven: no choice costs less; None when nothing was proven.
        gap: (cost - lower_bound) / max(1, |cost|); None without a cost or a bound.
        status: "optimal", "feasible", "infeasible" or "time_limit".
        seconds: Wall time of the search, without reading.
        choice: Strategy of every node; empty when there is none.
        peak_bytes: Most bytes alive at one time under the choice.
        proof: How infeasibility was shown, else "none".
        stop: "finished", "gap_reached", "time_limit" or "interrupted".
        smallest_peak_bytes: When infeasible, the smallest memory limit known to do.
        smallest_peak_bound_bytes: When infeasible, no smaller limit can do.
        phases: Seconds per phase of the search.
    """

    file: str
    nodes: int
    edges: int
    cost: int | None
    lower_bound: int | None
    gap: float | None
    status: str
    seconds: float
    choice: tuple[int, ...]
    peak_bytes: int | None
    proof: str
    stop: str
    smallest_peak_bytes: int | None
    smallest_peak_bound_bytes: int | None
    phases: Mapping[str, float]

    def to_json(self) -> str:
        """One line of JSON with every attribute."""
        return json.dumps(asdict(self), separators=(",", ":"))


def solve_ilp(
    problem: str | bytes | os.PathLike[str] | Mapping[str, Any],
    *,
    time_limit_s: float = 60.0,
    relative_gap: float = 0.0,
    on_progress: Progress | None = None,
) -> SolveResult:
    """Solves a problem of the intra-operator parallelism contest.

    Args:
        problem: Path of a ``.json`` or ``.json.gz`` file, or the same content as a dict: nodes
            with "intervals", "costs" and "usages", edges with "nodes" and flat "costs", and an
            optional "usage_limit"; with or without the outer "problem". Costs of 10^17 and more
            are forbidden.
        time_limit_s: Wall seconds after which the best verified choice is returned.
        relative_gap: Stop once the gap is at most this; 0 asks for a proof.
        on_progress: Called up to ten times per second with phase, cost, lower bound and seconds.

    Returns:
        The certified answer. Ctrl-C also ends the search with the best verified choice.

    Raises:
        ProblemError: The problem is malformed [E211, E212, E213].
        ConfigError: time_limit_s or relative_gap is not a number that can be used [E511].
    """
    _check_search_numbers(time_limit_s, relative_gap)
    if isinstance(problem, Mapping):
        arguments = _arguments_of(problem)
        answer = solve_problem(
            **arguments,
            time_limit_s=time_limit_s,
            relative_gap=relative_gap,
            on_progress=on_progress,
        )
        file = arguments["name"]
    else:
        file = os.fsdecode(problem)
        answer = solve_problem_file(
            os.fsencode(file),
            time_limit_s=time_limit_s,
            relative_gap=relative_gap,
            on_progress=on_progress,
        )
    answer["choice"] = tuple(answer["choice"])
    return SolveResult(file=file, **answer)


def _check_search_numbers(time_limit_s: float, relative_gap: float) -> None:
    _check_number("time_limit_s", time_limit_s, "a number of seconds above 0", positive=True)
    _check_number("relative_gap", relative_gap, "0 or more", positive=False)


def _check_number(name: str, value: Any, wanted: str, *, positive: bool) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or math.isnan(value) or value < 0 or (positive and value == 0):
        raise ConfigError(
            f"{name} cannot be used.", code="E511", values=[f"{name}={value!r}"], advice=wanted
        )


def _arguments_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``solve_problem`` for a problem in the contest format."""
    inner = problem.get("problem", problem)
    try:
        nodes = inner["nodes"]
        edges = inner.get("edges", {"nodes": [], "costs": []})
        intervals, costs, usages = nodes["intervals"], nodes["costs"], nodes["usages"]
        edge_nodes, edge_costs = edges["nodes"], edges["costs"]
        limit = inner.get("usage_limit")
        name = str(inner.get("name", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise ProblemError(
            "a problem lacks a part.",
            code="E212",
            values=[f"missing: {error}"],
            advice="give nodes (intervals, costs, usages) and edges (nodes, costs)",
        ) from error
    if limit is not None:
        limit = int(_integers("usage_limit", [limit])[0])
    return {
        "name": name,
        "intervals": _pairs("nodes/intervals", intervals),
        "node_costs": _lists("nodes/costs", costs),
        "usages": _lists("nodes/usages", usages),
        "edge_nodes": _pairs("edges/nodes", edge_nodes),
        "edge_costs": _lists("edges/costs", edge_costs),
        "usage_limit": limit,
    }


def _lists(where: str, rows: Sequence[Any]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [_integers(f"{where}/{i}", row) for i, row in enumerate(rows)]


def _pairs(where: str, rows: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    pairs = _lists(where, rows)
    for i, pair in enumerate(pairs):
        if pair.size != 2:
            raise ProblemError(
                "a pair of a problem has the wrong length.",
                code="E212",
                values=[f"{pair.size} numbers"],
                where=f"{where}/{i}",
                advice="intervals are [begin, end], edges join two nodes",
            )
    return np.concatenate(pairs) if pairs else np.zeros(0, dtype=np.int64)


def _integers(where: str, values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        array = np.asarray(values).reshape(-1)
    except (ValueError, OverflowError):
        array = np.asarray([None])
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise ProblemError(
            "a problem has something else where integers belong.",
            code="E212",
            values=[f"an array of {array.dtype}"],
            where=where,
            advice="costs, sizes and indices are 64-bit integers",
        )
    return array.astype(np.int64)


def add_solve_parser(subparsers: Any) -> None:
    """Adds the ``solve`` sub-command; its handler is ``run_solve``."""
    parser = subparsers.add_parser(
        "solve",
        help="solve problem files of the intra-operator parallelism contest",
        description="Solves problem files (.json, .json.gz) and prints a certified answer each.",
    )
    _add_solve_arguments(parser)
    parser.set_defaults(handler=_run)


def _add_solve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="problem file")
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="wall seconds per file (60)"
    )
    parser.add_argument(
        "--gap", type=float, default=0.0, metavar="G", help="stop at this relative gap (0)"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON per file")


def run_solve(argv: Sequence[str]) -> int:
    """Runs ``shardwright solve`` with the arguments after the sub-command's name.

    Returns:
        0, 1 when a file could not be read (its error goes to stderr, the others still run), or 130
        when interrupted: the best verified answer so far is printed, later files are left out.

    Raises:
        ConfigError: An option is not a number that can be used [E511].
    """
    parser = argparse.ArgumentParser(prog="shardwright solve")
    _add_solve_arguments(parser)
    return _run(parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    _check_search_numbers(arguments.time_limit, arguments.gap)
    code = 0
    for file in arguments.files:
        line = search_line()
        try:
            result = solve_ilp(
                file,
                time_limit_s=arguments.time_limit,
                relative_gap=arguments.gap,
                on_progress=line,
            )
        except ShardwrightError as error:
            print(error, file=sys.stderr)
            code = 1
            continue
        finally:
            if line:
                line.clear()
        print(result.to_json() if arguments.json else _describe(result), flush=True)
        if result.stop == "interrupted":
            return 130
    return code


def _describe(result: SolveResult) -> str:
    text = f"{result.file}: {result.status}, {result.nodes} nodes, {result.edges} edges"
    if result.cost is not None:
        text += f", cost {result.cost}"
    if result.lower_bound is not None and result.status != "optimal":
        text += f", bound {result.lower_bound}"
    if result.gap is not None and result.status != "optimal":
        text += f", gap {100 * result.gap:.4f} %"
    if result.smallest_peak_bytes is not None:
        text += f", smallest limit found {result.smallest_peak_bytes}"
    return f"{text}, {result.seconds:.2f} s"
