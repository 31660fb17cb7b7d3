import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.cli import main, parse_mesh
from shardwright.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
PLAN_KEYS = {
    "time_us", "lower_bound_us", "gap", "status", "peak_memory_bytes", "mesh", "stages",
    "num_microbatches", "microbatches_in_flight", "collectives", "seconds",
}  # fmt: skip
TINY = ["--target", "shardwright.zoo:mlp_tiny"]


def command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "shardwright", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    words = ["--cluster", "local-cpu:4", "--mesh", "2x2", "--out", str(path)]
    assert main(["plan", *TINY, *words]) == 0
    return path


def refused(capsys: pytest.CaptureFixture[str], code: str, *words: str, exit_code: int = 2) -> str:
    """Runs a command that must fail with an error code, and returns what it wrote."""
    assert main(words) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert f"[{code}]" in err
    assert "Traceback" not in err
    return err


def test_plan_in_a_process_of_its_own_prints_one_json_object() -> None:
    done = command("plan", *TINY, "--cluster", "p3.16xlarge:1", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    numbers = json.loads(done.stdout)
    assert set(numbers) == PLAN_KEYS
    assert numbers["gap"] >= 0
    assert 0 < numbers["lower_bound_us"] <= numbers["time_us"]
    assert numbers["peak_memory_bytes"] > 0
    assert numbers["stages"][0]["ranks"] == list(range(8))
    assert {"capture", "solve"} <= set(numbers["seconds"])
    for count in numbers["collectives"].values():
        assert set(count) == {"count", "bytes", "ring_bytes_per_device", "cost_us"}


def test_mistake_in_a_process_of_its_own_exits_with_2_and_no_trace() -> None:
    done = command("plan", *TINY, "--cluster", "p9.99xlarge:8")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ClusterError [E352]: ")
    assert "  try: " in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_fits_exits_with_3_and_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(
        capsys, "E203", "plan", *TINY, "--cluster", "local-cpu:2", "--memory-limit", "1KiB",
        "--time-limit", "2",
        exit_code=3,
    )  # fmt: skip
    assert "smallest peak found" in error


def test_debug_shows_the_trace() -> None:
    from shardwright.errors import ClusterError

    with pytest.raises(ClusterError):
        main(["plan", *TINY, "--cluster", "nowhere", "--debug"])
    with pytest.raises(ClusterError):
        main(["--debug", "plan", *TINY, "--cluster", "nowhere"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("E531", ["plan", "--target", "no_colon", "--cluster", "local-cpu:2"]),
        ("E531", ["plan", "--target", "a-b:c", "--cluster", "local-cpu:2"]),
        ("E532", ["plan", "--target", "no.such.module:f", "--cluster", "local-cpu:2"]),
        ("E532", ["plan", "--target", "shardwright.zoo:no_such", "--cluster", "local-cpu:2"]),
        ("E533", ["plan", *TINY, "--set", "colour=1", "--cluster", "local-cpu:2"]),
        ("E534", ["plan", *TINY, "--set", "batch_size='x'", "--cluster", "local-cpu:2"]),
        ("E534", ["plan", "--target", "os:getcwd", "--cluster", "local-cpu:2"]),
        ("E535", ["plan", *TINY, "--set", "batch_size", "--cluster", "local-cpu:2"]),
        ("E535", ["plan", *TINY, "--set", "a=1", "--set", "a=2", "--cluster", "local-cpu:2"]),
        ("E536", ["plan", *TINY, "--cluster", "local-cpu:2", "--mesh", "2by1"]),
        ("E351", ["plan", *TINY, "--cluster", "local-cpu:2", "--mesh", "2x2"]),
        ("E352", ["plan", *TINY, "--cluster", "p9.99xlarge"]),
        ("E356", ["plan", *TINY, "--cluster", "p3.16xlarge:many"]),
        ("E353", ["plan", *TINY, "--cluster", "no_such_file.json"]),
        ("E521", ["plan", *TINY, "--cluster", "local-cpu:2", "--memory-limit", "nan"]),
        ("E537", ["plan", *TINY, "--cluster", "local-cpu:2", "--out", "/no/such/folder/p.json"]),
        ("E320", ["show", "/no/such/plan.json"]),
    ],
)
def test_mistakes_have_codes(
    code: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\n  try: " in refused(capsys, code, *words)


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["frobnicate"])
    assert stopped.value.code == 2
    assert "plan" in capsys.readouterr().err


def test_a_count_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *TINY, "--cluster", "local-cpu:2", "--num-microbatches", "many"])
    assert stopped.value.code == 2
    assert "'many' is neither a number nor auto" in capsys.readouterr().err


def test_settings_reach_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    # A batch of 6 cannot be cut in 4: the planner must see the setting.
    for batch_size in (6, 8):
        words = ["--set", f"batch_size={batch_size}", "--cluster", "local-cpu:1", "--json"]
        assert main(["plan", *TINY, *words]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["peak_memory_bytes"] < second["peak_memory_bytes"]


def test_show_prints_text_json_and_page(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    assert main(["show", str(saved), "--html", str(page)]) == 0
    assert "mesh 2 x 2" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")
    assert main(["show", str(saved), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert set(numbers) == PLAN_KEYS
    assert numbers["mesh"] == [2, 2]
    assert numbers["seconds"] == {}


def test_validate_accepts_its_own_step_and_refuses_another(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(saved), *TINY]) == 0
    assert capsys.readouterr().out.startswith("valid: ")
    refused(capsys, "E325", "validate", str(saved), *TINY, "--set", "batch_size=32")


def test_validate_refuses_a_plan_whose_claims_were_changed(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(saved.read_text())
    data["certificate"]["peak_memory_bytes"] += 4
    data["certificate"]["at_peak"]["other"] += 4
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(data))
    refused(capsys, "E324", "validate", str(changed), *TINY)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', "\x00\xff", "{" * 100])
def test_corrupt_plan_files_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "corrupt.json"
    path.write_text(text)
    assert main(["show", str(path)]) == 2
    assert "PlanError [E32" in capsys.readouterr().err


def test_diff_tells_same_from_different(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(saved), str(saved)]) == 0
    assert capsys.readouterr().out == "the plans are the same\n"
    other = tmp_path / "other.json"
    words = ["--cluster", "local-cpu:4", "--mesh", "4", "--out", str(other), "--json"]
    assert main(["plan", *TINY, *words]) == 0
    capsys.readouterr()
    assert main(["diff", str(saved), str(other)]) == 1
    assert "mesh: 2 x 2 -> 4" in capsys.readouterr().out.splitlines()


def test_doctor_finds_everything_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"torch", "planner", "solver", "runtime", "collectives"} <= set(findings)
    assert all(finding["ok"] for finding in findings.values())


def test_target_in_the_current_folder_is_found_and_its_failure_is_located(tmp_path: Path) -> None:
    (tmp_path / "my_steps.py").write_text("def broken():\n    raise ValueError('no such size')\n")
    done = command("plan", "--target", "my_steps:broken", "--cluster", "local-cpu:2", cwd=tmp_path)
    assert done.returncode == 2
    assert "[E534]" in done.stderr
    assert "ValueError: no such size" in done.stderr
    assert "  at: my_steps.py:2" in done.stderr


def test_mesh_text() -> None:
    assert parse_mesh(None) is None
    assert parse_mesh("8") == (8,)
    assert parse_mesh("2x4") == (2, 4)
    for text in ("", "x", "2x", "0x4", "-2", "2x4.5", "²"):
        with pytest.raises(ConfigError):
            parse_mesh(text)
