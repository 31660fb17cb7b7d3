"""Changes of a problem whose effect on the optimum is known without knowing the optimum."""

import copy
import math

import numpy as np
import pytest
from benchmarks.contest_evaluator import evaluate
from tests.python.oracles.random_contest import FORBIDDEN, random_problem

from shardwright.solve import solve_ilp

SHAPES = [((10, 40), (1, 5), 3), ((20, 60), (2, 4), 3), ((8, 20), (2, 8), 4)]


def base(seed):
    nodes, strategies, window = SHAPES[seed % 3]
    return random_problem(
        seed,
        nodes=nodes,
        strategies=strategies,
        window=window,
        forbidden_shares=(0.0, 0.03, 0.08),
        with_limit=seed % 4 > 0,
    )


def optimum(problem):
    """The proven optimum, or infinity when no choice fits; the choice is priced again."""
    result = solve_ilp(problem, time_limit_s=120)
    if result.status == "infeasible":
        return math.inf
    assert result.status == "optimal", problem["name"]
    found = evaluate(problem, result.choice)
    assert (found.cost, found.violations) == (result.cost, ())
    return result.cost


def mapped(costs, function):
    return [cost if cost >= FORBIDDEN else function(cost) for cost in costs]


def permuted(problem, node_order, strategy_orders):
    """Node i of the result is node node_order[i]; its strategy s is strategy_orders[..][s]."""
    nodes, edges = problem["nodes"], problem["edges"]
    place = {int(node): i for i, node in enumerate(node_order)}
    result = copy.deepcopy(problem)
    result["nodes"]["intervals"] = [nodes["intervals"][n] for n in node_order]
    for part in ("costs", "usages"):
        result["nodes"][part] = [
            [nodes[part][n][s] for s in strategy_orders[n]] for n in node_order
        ]
    result["edges"]["nodes"] = [[place[u], place[v]] for u, v in edges["nodes"]]
    result["edges"]["costs"] = [
        [
            table[a * len(nodes["costs"][v]) + b]
            for a in strategy_orders[u]
            for b in strategy_orders[v]
        ]
        for (u, v), table in zip(edges["nodes"], edges["costs"], strict=True)
    ]
    return result


def scaled(problem, random):
    factor = int(random.choice([2, 3, 1000]))
    result = copy.deepcopy(problem)
    for part in ("nodes", "edges"):
        result[part]["costs"] = [
            mapped(costs, lambda cost: factor * cost) for costs in problem[part]["costs"]
        ]
    return result, lambda cost: factor * cost


def constant_added(problem, random):
    """To every strategy of one node and to every entry of one edge."""
    result = copy.deepcopy(problem)
    added = 0
    for part in ("nodes", "edges"):
        if not problem[part]["costs"]:
            continue
        i = int(random.integers(len(problem[part]["costs"])))
        constant = int(random.integers(-1000, 1000))
        result[part]["costs"][i] = mapped(
            problem[part]["costs"][i], lambda cost, constant=constant: cost + constant
        )
        added += constant
    return result, lambda cost: cost + added


def cost_moved(problem, random):
    """From one strategy of a node to that strategy's row in one of its edges."""
    result = copy.deepcopy(problem)
    if problem["edges"]["nodes"]:
        e = int(random.integers(len(problem["edges"]["nodes"])))
        u, v = problem["edges"]["nodes"][e]
        s = int(random.integers(len(problem["nodes"]["costs"][u])))
        width = len(problem["nodes"]["costs"][v])
        if problem["nodes"]["costs"][u][s] < FORBIDDEN:
            result["nodes"]["costs"][u][s] -= 17
            row = slice(s * width, (s + 1) * width)
            table = result["edges"]["costs"][e]
            table[row] = mapped(table[row], lambda cost: cost + 17)
    return result, lambda cost: cost


def dominated_added(problem, random):
    """A strategy as another one everywhere, but no cheaper and no smaller."""
    result = copy.deepcopy(problem)
    nodes = result["nodes"]
    for n in random.choice(len(nodes["costs"]), 3, replace=False):
        n = int(n)
        size = len(nodes["costs"][n])
        s = int(random.integers(size))
        dearer, larger = int(random.integers(0, 3)), int(random.integers(0, 3))
        for (u, v), e in zip(
            result["edges"]["nodes"], range(len(result["edges"]["nodes"])), strict=True
        ):
            table = np.array(result["edges"]["costs"][e], dtype=object).reshape(
                len(nodes["costs"][u]), len(nodes["costs"][v])
            )
            if u == n:
                table = np.vstack([table, table[s : s + 1]])
            if v == n:
                table = np.hstack([table, table[:, s : s + 1]])
            result["edges"]["costs"][e] = [int(cost) for cost in table.reshape(-1)]
        nodes["costs"][n].append(mapped([nodes["costs"][n][s]], lambda c, d=dearer: c + d)[0])
        nodes["usages"][n].append(nodes["usages"][n][s] + larger)
    return result, lambda cost: cost


def edge_split(problem, random):
    """One edge as two parallel ones, whose entries add up to its own, and one of them turned."""
    result = copy.deepcopy(problem)
    for e in range(0, len(problem["edges"]["nodes"]), 3):
        u, v = problem["edges"]["nodes"][e]
        table = problem["edges"]["costs"][e]
        part = [int(p) for p in random.integers(-50, 50, len(table))]
        rest = [
            FORBIDDEN if cost >= FORBIDDEN else cost - p
            for cost, p in zip(table, part, strict=True)
        ]
        turned = np.array(part).reshape(-1, len(problem["nodes"]["costs"][v])).T.reshape(-1)
        result["edges"]["costs"][e] = rest
        result["edges"]["nodes"].append([v, u])
        result["edges"]["costs"].append([int(p) for p in turned])
    return result, lambda cost: cost


def edges_turned(problem, _random):
    result = copy.deepcopy(problem)
    for e, (u, v) in enumerate(problem["edges"]["nodes"]):
        table = np.array(problem["edges"]["costs"][e], dtype=object)
        table = table.reshape(-1, len(problem["nodes"]["costs"][v])).T.reshape(-1)
        result["edges"]["nodes"][e] = [v, u]
        result["edges"]["costs"][e] = [int(cost) for cost in table]
    return result, lambda cost: cost


def nodes_and_strategies_permuted(problem, random):
    order = [int(n) for n in random.permutation(len(problem["nodes"]["costs"]))]
    strategies = [
        [int(s) for s in random.permutation(len(row))] for row in problem["nodes"]["costs"]
    ]
    return permuted(problem, order, strategies), lambda cost: cost


def copied_later(problem, _random):
    """An independent copy that lives after everything else: the cost doubles."""
    result = copy.deepcopy(problem)
    n = len(problem["nodes"]["costs"])
    later = 1 + max(max(interval) for interval in problem["nodes"]["intervals"])
    later -= min(min(interval) for interval in problem["nodes"]["intervals"])
    for part in ("costs", "usages"):
        result["nodes"][part] += copy.deepcopy(problem["nodes"][part])
    result["nodes"]["intervals"] += [
        [b + later, e + later] for b, e in problem["nodes"]["intervals"]
    ]
    result["edges"]["nodes"] += [[u + n, v + n] for u, v in problem["edges"]["nodes"]]
    result["edges"]["costs"] += copy.deepcopy(problem["edges"]["costs"])
    return result, lambda cost: 2 * cost


def time_stretched(problem, random):
    """Program points move apart and away from zero; what overlaps stays the same."""
    factor, shift = int(random.choice([2, 7, 10**6])), int(random.choice([-(10**9), 0, 10**9]))
    result = copy.deepcopy(problem)
    result["nodes"]["intervals"] = [
        [factor * b + shift, factor * e + shift] for b, e in problem["nodes"]["intervals"]
    ]
    return result, lambda cost: cost


def time_reversed(problem, _random):
    result = copy.deepcopy(problem)
    result["nodes"]["intervals"] = [[-e, -b] for b, e in problem["nodes"]["intervals"]]
    return result, lambda cost: cost


def bytes_scaled(problem, _random):
    result = copy.deepcopy(problem)
    result["nodes"]["usages"] = [[977 * u for u in row] for row in problem["nodes"]["usages"]]
    if "usage_limit" in problem:
        # Up to one byte less than one more unit, the limit allows the same choices.
        result["usage_limit"] = 977 * problem["usage_limit"] + 976
    return result, lambda cost: cost


def strategies_forbidden_that_the_optimum_leaves(problem, random):
    """Some strategies that the choice found does not take."""
    result = copy.deepcopy(problem)
    choice = solve_ilp(problem, time_limit_s=120).choice
    for n, taken in enumerate(choice):
        for s in range(len(problem["nodes"]["costs"][n])):
            if s != taken and random.random() < 0.3:
                result["nodes"]["costs"][n][s] = FORBIDDEN
    return result, lambda cost: cost


CHANGES = [
    scaled,
    constant_added,
    cost_moved,
    dominated_added,
    edge_split,
    edges_turned,
    nodes_and_strategies_permuted,
    copied_later,
    time_stretched,
    time_reversed,
    bytes_scaled,
    strategies_forbidden_that_the_optimum_leaves,
]


def check_change(change, seeds):
    num_feasible = 0
    for seed in seeds:
        problem = base(seed)
        changed, expected = change(problem, np.random.default_rng(seed))
        before, after = optimum(problem), optimum(changed)
        assert after == expected(before), f"{change.__name__}, seed {seed}"
        num_feasible += before < math.inf
    assert num_feasible >= len(seeds) // 2


def check_limits(seeds):
    """Raising the limit never raises the cost; none at all is as good as any."""
    for seed in seeds:
        problem = base(seed)
        limit = problem.pop("usage_limit", 100)
        costs = [
            optimum({**problem, "usage_limit": int(limit * share)})
            for share in (0.5, 0.8, 0.95, 1.0, 1.01, 1.1, 1.5, 3.0)
        ]
        costs.append(optimum(problem))
        assert costs == sorted(costs, reverse=True), seed


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_moves_the_optimum_as_it_must(change):
    check_change(change, range(12))


def test_higher_limit_never_costs_more():
    check_limits(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_moves_the_optimum_as_it_must_often(change):
    check_change(change, range(100, 200))


@pytest.mark.slow
def test_higher_limit_never_costs_more_often():
    check_limits(range(100, 150))
