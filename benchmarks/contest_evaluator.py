"""Cost and peak memory of a choice, straight from a problem file of the contest.

An oracle: plain Python integers on the parsed JSON, no code of the solver. It follows the format's
definition, with costs of 10^17 and more as forbidden.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORBIDDEN = 10**17


@dataclass(frozen=True)
class Evaluated:
    """What a choice costs, and the rules it breaks."""

    cost: int
    peak_bytes: int
    violations: tuple[str, ...]


def read_problem(path: Path) -> dict[str, Any]:
    """The object ``problem`` of a .json or .json.gz file."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if compressed else path.open("rb") as file:
        problem: dict[str, Any] = json.load(file)["problem"]
    return problem


def evaluate(problem: Mapping[str, Any], choice: Sequence[int]) -> Evaluated:
    """Cost, peak and violations of one strategy per node."""
    nodes = problem["nodes"]
    edges = problem.get("edges", {"nodes": [], "costs": []})
    violations: list[str] = []
    total = 0
    change_at: dict[int, int] = {}
    for n, (costs, usages, (begin, end), strategy) in enumerate(
        zip(nodes["costs"], nodes["usages"], nodes["intervals"], choice, strict=True)
    ):
        if not 0 <= strategy < len(costs):
            return Evaluated(0, 0, (f"node {n} has no strategy {strategy}",))
        if costs[strategy] >= FORBIDDEN:
            violations.append(f"strategy {strategy} of node {n} is forbidden")
        total += costs[strategy]
        if end > begin:
            change_at[begin] = change_at.get(begin, 0) + usages[strategy]
            change_at[end] = change_at.get(end, 0) - usages[strategy]
    for e, ((u, v), costs) in enumerate(zip(edges["nodes"], edges["costs"], strict=True)):
        cost = costs[choice[u] * len(nodes["costs"][v]) + choice[v]]
        if cost >= FORBIDDEN:
            violations.append(f"edge {e} forbids the chosen pair")
        total += cost
    alive = peak = 0
    for time in sorted(change_at):
        alive += change_at[time]
        peak = max(peak, alive)
    limit = problem.get("usage_limit")
    if limit is not None and peak > limit:
        violations.append(f"peak {peak} exceeds the limit {limit}")
    return Evaluated(total, peak, tuple(violations))
