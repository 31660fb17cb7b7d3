"""Random problems in the contest's format, and their optimum by trying every choice."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

FORBIDDEN = 10**18
Problem = dict[str, Any]


def random_problem(
    seed: int,
    *,
    nodes: tuple[int, int],
    strategies: tuple[int, int],
    window: int,
    forbidden_shares: tuple[float, ...] = (0.0, 0.1, 0.3),
    with_limit: bool = True,
) -> Problem:
    """A graph whose edges join nodes at most `window` apart in program order.

    Costs, the share of forbidden entries, parallel edges, one-strategy nodes, never-alive nodes and
    the limit (from the least conceivable peak to half-way to the largest) are drawn from the seed.
    """
    random = np.random.default_rng([7, seed])
    n = int(random.integers(nodes[0], nodes[1] + 1))
    sizes = random.integers(strategies[0], strategies[1] + 1, n)
    sizes[random.random(n) < 0.1] = 1
    forbidden = random.choice(forbidden_shares)
    scale = int(random.choice([1, 10, 1000, 10**6]))
    lowest = int(random.choice([0, 0, -3]))

    def costs(count: int, share: float) -> list[int]:
        values = random.integers(lowest, 20, count) * scale
        values[random.random(count) < share] = FORBIDDEN
        return [int(value) for value in values]

    node_costs = [costs(size, forbidden / 4) for size in sizes]
    begins = np.arange(n) + random.integers(-1, 2, n)
    intervals = [[int(b), int(b + random.integers(-1, 2 * window + 2))] for b in begins]
    usages = [[int(u) for u in random.integers(0, 100, size)] for size in sizes]
    pairs = []
    for u in range(n):
        for v in range(u + 1, min(n, u + window + 1)):
            if random.random() < 0.6:
                pairs.append([u, v] if random.random() < 0.7 else [v, u])
    for _ in range(n // 8):
        pairs.append(pairs[int(random.integers(len(pairs)))] if pairs else [0, n - 1])
    problem: Problem = {
        "name": f"random {seed}",
        "nodes": {"intervals": intervals, "costs": node_costs, "usages": usages},
        "edges": {
            "nodes": pairs,
            "costs": [costs(int(sizes[u] * sizes[v]), forbidden) for u, v in pairs],
        },
    }
    if with_limit:
        least = peak_of(problem, [min(row) for row in usages])
        most = peak_of(problem, [max(row) for row in usages])
        problem["usage_limit"] = int(least + (most - least) * random.uniform(0.0, 0.5))
    return problem


def peak_of(problem: Problem, held: list[int]) -> int:
    """Most bytes alive at one time when node i holds held[i] during its interval."""
    intervals = problem["nodes"]["intervals"]
    return max(
        (
            sum(bytes_ for (b, e), bytes_ in zip(intervals, held, strict=True) if b <= time < e)
            for time, _ in intervals
        ),
        default=0,
    )


def rows_of(problem: Problem) -> list[list[int]]:
    """The nodes alive at each time at which one begins to live."""
    intervals = problem["nodes"]["intervals"]
    times = sorted({b for b, e in intervals if e > b})
    return [[i for i, (b, e) in enumerate(intervals) if b <= time < e] for time in times]


def optimum_by_trying(problem: Problem) -> int | None:
    """The least cost over all choices that fit, None when there is none."""
    nodes, edges = problem["nodes"], problem["edges"]
    choices = np.array(list(product(*[range(len(row)) for row in nodes["costs"]])))
    # 10^17 and more cannot come from finite costs; object arrays hold integers of any size.
    total = np.zeros(len(choices), dtype=object)
    allowed = np.ones(len(choices), dtype=bool)
    for i, row in enumerate(nodes["costs"]):
        picked = np.array(row, dtype=object)[choices[:, i]]
        total, allowed = total + picked, allowed & (picked < FORBIDDEN)
    for (u, v), table in zip(edges["nodes"], edges["costs"], strict=True):
        width = len(nodes["costs"][v])
        picked = np.array(table, dtype=object)[choices[:, u] * width + choices[:, v]]
        total, allowed = total + picked, allowed & (picked < FORBIDDEN)
    if "usage_limit" in problem:
        held = [np.array(row)[choices[:, i]] for i, row in enumerate(nodes["usages"])]
        for row in rows_of(problem):
            allowed &= sum(held[i] for i in row) <= problem["usage_limit"]
    return int(min(total[allowed])) if allowed.any() else None
