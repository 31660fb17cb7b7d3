"""benchmarks/contest.py: rows, published figures, bars and what it does with bad files."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "benchmarks"))

from contest import findings_of, missed_bars, problem_files  # noqa: E402
from contest_evaluator import evaluate  # noqa: E402

# Two nodes alive together under 11 bytes; (1, 0) is forbidden: 0 + 3, holding 10 + 1 bytes.
PAIR = {
    "name": "pair",
    "nodes": {
        "intervals": [[0, 2], [1, 3]],
        "costs": [[0, 5], [0, 3]],
        "usages": [[10, 1], [10, 1]],
    },
    "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 10**18, 0]]},
    "usage_limit": 11,
}


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/contest.py"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = json.dumps({"problem": PAIR})
    (tmp_path / "plain.json").write_text(text)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text.encode()))
    known = {"instances": {"plain": {"published": {"cost": 4, "source": "a", "lower_bound": 2}}}}
    (tmp_path / "known").write_text(json.dumps(known))
    return tmp_path


def test_folder_is_solved_and_set_against_published_costs(folder: Path) -> None:
    out = folder / "rows"
    done = run(folder, "--time-limit", 5, "--known", folder / "known", "--check", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert record["command"].endswith(f"contest.py {folder.name} --time-limit 5")
    assert {"shardwright", "python"} <= record["versions"].keys()
    packed, plain = record["rows"]
    assert (packed["instance"], plain["instance"]) == ("packed", "plain")
    for row in (packed, plain):
        assert (row["cost"], row["lower_bound"], row["status"]) == (3, 3, "optimal")
        assert row["violations"] == []
        assert 0 <= row["cost_known_at_cpu_s"] <= row["cpu_s"] < 5
        assert row["memory_mib"] >= row["memory_before_mib"] > 0
    assert (plain["published_cost"], plain["difference"]) == (4, -0.25)
    assert "published_cost" not in packed
    assert packed["difference"] is None
    assert "-25.0000" in done.stdout


def test_bad_file_is_a_row_and_fails_the_check(folder: Path) -> None:
    (folder / "bad.json").write_text('{"problem": {"nodes": 5}}')
    done = run(folder, "--time-limit", 5, "--known", folder / "known", "--check")
    assert done.returncode == 1
    assert "E212" in done.stdout
    assert "optimal" in done.stdout


def test_missed_bar_and_contradicted_figures_fail_the_check(folder: Path) -> None:
    known = {"plain": {"bar": {"cost": 2, "cpu_s": 60}}, "packed": {"optimum": 4}}
    (folder / "known").write_text(json.dumps({"instances": known}))
    done = run(folder, "--time-limit", 5, "--known", folder / "known", "--check")
    assert done.returncode == 1
    assert "misses cost 2" in done.stdout
    assert "cost 3 is below the known bound 4" in done.stdout


def test_bars_hold_from_the_moment_cost_and_gap_were_reached() -> None:
    row = {
        "status": "feasible",
        "cost": 100,
        "lower_bound": 99,
        "gap": 0.01,
        "cpu_s": 9.0,
        "memory_mib": 300,
        "trajectory": [[1.0, None, 5], [2.0, 110, 50], [3.0, 100, 98], [8.0, 100, 99]],
    }
    assert missed_bars(row, {"bar": {"gap": 0.02, "cpu_s": 3}}) == []
    assert missed_bars(row, {"bar": {"gap": 0.01, "cpu_s": 3}}) == ["3 CPU s"]
    assert missed_bars(row, {"bar": {"cost": 100, "cpu_s": 2}}) == ["2 CPU s"]
    assert missed_bars(row, {"bar": {"gap": 0.001}}) == ["gap 0.10%"]
    assert missed_bars(row, {"bar": {"optimal": True}, "optimum": 100}) == ["optimal 100"]
    assert missed_bars(row, {"bar": {"memory_mib": 200}}) == ["200 MiB"]
    assert missed_bars(row, {}) == []
    assert findings_of(row, {"optimum": 100}) == []
    assert findings_of(row, {"optimum": 98}) == ["bound 99 is above the known cost 98"]


def test_files_are_found_in_folders_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("deep/b.json.gz", "a.json", "README.md", "c.txt"):
        (tmp_path / name).write_text("")
    assert [path.name for path in problem_files([tmp_path])] == ["a.json", "b.json.gz"]


def test_evaluator_prices_and_rejects_choices() -> None:
    assert evaluate(PAIR, [0, 1]).cost == 3
    assert evaluate(PAIR, [0, 1]).peak_bytes == 11
    assert evaluate(PAIR, [0, 1]).violations == ()
    assert evaluate(PAIR, [0, 0]).violations == ("peak 20 exceeds the limit 11",)
    assert evaluate(PAIR, [1, 0]).violations == ("edge 0 forbids the chosen pair",)
    assert evaluate(PAIR, [0, 2]).violations == ("node 1 has no strategy 2",)
