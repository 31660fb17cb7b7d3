"""The solver against trying every choice and against HiGHS, through the public interface."""

import gzip
import json

import pytest
from benchmarks.contest_evaluator import evaluate
from tests.python.oracles.highs import solve_with_highs
from tests.python.oracles.random_contest import optimum_by_trying, random_problem

from shardwright.solve import solve_ilp


def check_optimum(problem, optimum):
    result = solve_ilp(problem, time_limit_s=120)
    label = problem["name"]
    if optimum is None:
        assert result.status == "infeasible", label
        assert (result.cost, result.choice) == (None, ()), label
        return
    assert (result.status, result.cost) == ("optimal", optimum), label
    assert (result.lower_bound, result.gap) == (optimum, 0.0), label
    found = evaluate(problem, result.choice)
    assert found.violations == (), label
    assert (found.cost, found.peak_bytes) == (optimum, result.peak_bytes), label


def small(seed):
    return random_problem(seed, nodes=(3, 6), strategies=(1, 4), window=5, with_limit=seed % 3 > 0)


def test_small_problems_equal_trying_every_choice():
    optima = []
    for seed in range(200):
        problem = small(seed)
        optima.append(optimum_by_trying(problem))
        check_optimum(problem, optima[-1])
    assert 10 <= optima.count(None) <= 100


def test_files_give_the_same_answers_as_dicts(tmp_path):
    for seed in range(20):
        problem = small(seed)
        text = json.dumps({"problem": problem}).encode()
        path = tmp_path / f"{seed}.json.gz"
        path.write_bytes(gzip.compress(text) if seed % 2 else text)
        from_file, from_dict = solve_ilp(path), solve_ilp(problem)
        assert (from_file.status, from_file.cost) == (from_dict.status, from_dict.cost)
        assert from_file.choice == from_dict.choice
        assert from_file.cost == optimum_by_trying(problem)


@pytest.mark.slow
def test_two_thousand_small_problems_equal_trying_every_choice():
    for seed in range(1000, 3000):
        problem = small(seed)
        check_optimum(problem, optimum_by_trying(problem))


def medium(seed):
    """30 to 80 nodes; wider graphs have fewer strategies, so that HiGHS finishes too."""
    strategies, window = [((2, 6), 3), ((2, 5), 3), ((2, 4), 4), ((2, 3), 7)][seed % 4]
    return random_problem(
        seed,
        nodes=(30, 80),
        strategies=strategies,
        window=window,
        forbidden_shares=(0.0, 0.03, 0.1),
        with_limit=seed % 5 > 0,
    )


def check_against_highs(seeds):
    """Returns how many of the optima that HiGHS proves are proven here too; all must be found."""
    num_compared = num_proven = num_infeasible = 0
    for seed in seeds:
        problem = medium(seed)
        theirs = solve_with_highs(problem, time_limit_s=300)
        if not theirs.proven:
            continue
        num_compared += 1
        ours = solve_ilp(problem, time_limit_s=60)
        if theirs.cost is None:
            num_infeasible += 1
            assert ours.status == "infeasible", seed
        else:
            assert ours.cost == theirs.cost, seed
            assert ours.lower_bound <= theirs.cost, seed
            assert evaluate(problem, ours.choice).violations == (), seed
        num_proven += ours.status in {"optimal", "infeasible"}
    assert num_infeasible <= num_compared // 2
    return num_compared, num_proven


def test_medium_problems_equal_highs():
    assert check_against_highs(range(18)) == (18, 18)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_three_hundred_medium_problems_equal_highs(first):
    num_compared, num_proven = check_against_highs(range(first, first + 50))
    assert num_compared >= 49
    # The clock decides what a busy machine still proves.
    assert num_proven >= num_compared - 1
