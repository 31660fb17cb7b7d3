"""The solver through Python: dicts, files, limits, errors and the command line."""

import gzip
import json
import os
import signal
from pathlib import Path

import pytest

from shardwright.errors import ConfigError, ProblemError
from shardwright.solve import run_solve, solve_ilp

DATA = Path(__file__).parents[3] / "data"


def pair(limit=None):
    """Two nodes alive together; strategy 0 is cheap and large, 1 is dear and small."""
    problem = {
        "name": "pair",
        "nodes": {
            "intervals": [[0, 2], [1, 3]],
            "costs": [[0, 5], [0, 3]],
            "usages": [[10, 1], [10, 1]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 10**18, 0]]},
    }
    if limit is not None:
        problem["usage_limit"] = limit
    return problem


@pytest.mark.parametrize(
    ("limit", "cost", "choice"),
    [
        (None, 0, (0, 0)),
        (20, 0, (0, 0)),
        (11, 3, (0, 1)),  # (1, 0) is forbidden
        (2, 8, (1, 1)),
    ],
)
def test_dict_is_solved_under_each_limit(limit, cost, choice):
    result = solve_ilp(pair(limit))
    assert (result.status, result.cost, result.lower_bound, result.gap) == (
        "optimal",
        cost,
        cost,
        0.0,
    )
    assert result.choice == choice
    assert (result.nodes, result.edges, result.file) == (2, 1, "pair")


def test_infeasible_limit_names_the_smallest_that_would_do():
    result = solve_ilp({"problem": pair(1)})
    assert result.status == "infeasible"
    assert result.cost is None
    assert result.gap is None
    assert result.choice == ()
    assert result.smallest_peak_bytes == 2
    assert result.smallest_peak_bound_bytes == 2


def test_problem_without_edges_or_nodes():
    nodes = {"intervals": [[0, 0]], "costs": [[4, 2]], "usages": [[0, 0]]}
    assert solve_ilp({"nodes": nodes}).cost == 2
    assert solve_ilp({"nodes": {"intervals": [], "costs": [], "usages": []}}).cost == 0


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_file_is_read_plain_or_compressed(tmp_path, suffix):
    path = tmp_path / f"pair{suffix}"
    text = json.dumps({"problem": pair(11)}).encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    result = solve_ilp(path)
    assert result.cost == 3
    assert result.file == str(path)


@pytest.mark.parametrize(
    ("file", "optimum"),
    [
        ("iopddl/asplos-2025-iopddl-B.json.gz", 532843),
        ("iopddl/asplos-2025-iopddl-G.json.gz", 217039),
        ("whole_step/gpt24b8_8_inf.json.gz", 236362984),
    ],
)
def test_known_instances_are_proven(file, optimum):
    result = solve_ilp(DATA / file, time_limit_s=120)
    assert (result.status, result.cost) == ("optimal", optimum)


def test_binding_limit_on_a_whole_step_leaves_a_small_gap():
    result = solve_ilp(DATA / "whole_step/gpt24_8_s10.json.gz", time_limit_s=20)
    assert result.cost >= 731490297
    assert result.lower_bound <= 731490297
    assert result.gap <= 1e-3


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda p: p["nodes"].pop("costs"), "E212"),
        (lambda p: p.pop("nodes"), "E212"),
        (lambda p: p["nodes"]["costs"].append([1]), "E211"),
        (lambda p: p["nodes"]["costs"].__setitem__(0, [0.5, 1]), "E212"),
        (lambda p: p["nodes"]["costs"].__setitem__(0, []), "E211"),
        (lambda p: p["nodes"]["usages"].__setitem__(0, [-1, 0]), "E211"),
        (lambda p: p["nodes"]["intervals"].__setitem__(0, [1]), "E212"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [0, 2]), "E211"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [0, 1, 1]), "E212"),
        (lambda p: p["edges"]["costs"].__setitem__(0, [1, 2, 3]), "E211"),
        (lambda p: p["edges"]["costs"].__setitem__(0, [1, 2, 3, 10**30]), "E212"),
        (lambda p: p.__setitem__("usage_limit", float("nan")), "E212"),
        (lambda p: p.__setitem__("usage_limit", -4), "E211"),
    ],
)
def test_malformed_dict_is_a_coded_error(change, code):
    problem = pair(5)
    change(problem)
    with pytest.raises(ProblemError) as caught:
        solve_ilp(problem)
    assert caught.value.code == code


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "5", True])
def test_time_limit_must_be_a_positive_number(limit):
    with pytest.raises(ConfigError) as caught:
        solve_ilp(pair(), time_limit_s=limit)
    assert caught.value.code == "E511"


def test_missing_file_is_a_coded_error(tmp_path):
    with pytest.raises(ProblemError, match="E212") as caught:
        solve_ilp(tmp_path / "none.json")
    assert "none.json" in caught.value.where


def test_command_prints_one_line_of_json_per_file(tmp_path, capsys):
    paths = []
    for limit in (20, 11):
        paths.append(str(tmp_path / f"{limit}.json"))
        Path(paths[-1]).write_text(json.dumps({"problem": pair(limit)}))
    assert run_solve([*paths, "--time-limit", "5", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["cost"] for line in lines] == [0, 3]
    assert [line["file"] for line in lines] == paths
    wanted = {"file", "nodes", "edges", "cost", "lower_bound", "gap", "status", "seconds", "choice"}
    assert wanted <= lines[0].keys()


def test_command_reports_a_bad_file_and_solves_the_others(tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"problem": pair(11)}))
    bad.write_text('{"problem": {"nodes": 5}}')
    assert run_solve([str(bad), str(good)]) == 1
    out, err = capsys.readouterr()
    assert "optimal" in out
    assert "cost 3" in out
    assert "E212" in err
    assert "/problem/nodes" in err


def test_error_in_the_progress_callback_reaches_the_caller():
    def fail(*_):
        raise RuntimeError("from the callback")

    with pytest.raises(RuntimeError, match="from the callback"):
        solve_ilp(pair(11), on_progress=fail)


def test_ctrl_c_returns_the_best_choice():
    sent = []

    def interrupt_once(_phase, cost, lower_bound, _seconds):
        if not sent and cost is not None and lower_bound is not None:
            sent.append(cost)
            os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = solve_ilp(hard_problem(), time_limit_s=120, on_progress=interrupt_once)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert result.seconds < 60
    assert result.stop == "interrupted"
    assert result.status == "feasible"
    assert result.cost <= sent[0]
    assert result.gap == (result.cost - result.lower_bound) / result.cost


def hard_problem():
    """A dense random problem that takes far longer than the test."""
    import numpy as np

    random = np.random.default_rng(1)
    n, values = 80, 12
    edges = [(i, j) for i in range(n) for j in range(i + 1, min(n, i + 12))]
    return {
        "nodes": {
            "intervals": [[i, i + 30] for i in range(n)],
            "costs": random.integers(0, 1000, (n, values)),
            "usages": random.integers(0, 1000, (n, values)),
        },
        "edges": {
            "nodes": edges,
            "costs": random.integers(0, 1000, (len(edges), values * values)),
        },
        "usage_limit": 12_000,
    }
