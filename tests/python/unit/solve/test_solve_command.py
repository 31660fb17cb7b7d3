"""``shardwright solve`` as a process: interrupts, limits, exit codes, progress and determinism."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.contest_evaluator import evaluate
from tests.python.oracles.random_contest import random_problem

from shardwright.cli import main
from shardwright.progress import SearchLine, describe_progress, search_line

ROOT = Path(__file__).resolve().parents[4]
DATA = ROOT / "tests/data"
LINE = re.compile(
    r"\r\x1b\[K *([\d.]+) s  ([a-z ]+)  cost (-|\d+)  bound (-|-?\d+)(?:  gap ([\d.]+) %)?"
)


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """A problem that takes far longer than the tests."""
    path = tmp_path_factory.mktemp("hard") / "hard.json"
    problem = random_problem(
        1, nodes=(90, 90), strategies=(11, 12), window=11, forbidden_shares=(0.0,)
    )
    path.write_text(json.dumps({"problem": problem}))
    return path


def environment(**variables):
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "200", **variables}


class Command:
    """`shardwright solve`, or another command, with standard error on a terminal."""

    def __init__(self, *words, command="solve", **variables):
        self.master, terminal = pty.openpty()
        self.errors = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shardwright", command, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            env=environment(**variables),
            # A shell in the background ignores interrupts, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(terminal)

    def read_errors(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        try:
            self.errors += os.read(self.master, 65536).decode() if ready else ""
        except OSError:  # the other end is closed
            return False
        return True

    def wait_for(self, condition):
        deadline = time.monotonic() + 120
        while not condition(self.errors) and time.monotonic() < deadline:
            if not self.read_errors(0.1):
                break
        assert condition(self.errors), self.errors

    def finish(self):
        out, _ = self.process.communicate(timeout=120)
        while self.read_errors(0) and select.select([self.master], [], [], 0)[0]:
            pass
        os.close(self.master)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()]


def test_interrupt_from_another_process_returns_the_best_choice(hard):
    command = Command(hard, hard, "--time-limit", 300, "--json")
    command.wait_for(lambda errors: re.search(r"cost \d+  bound -?\d+  gap", errors))
    sent = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    code, answers = command.finish()
    assert code == 130
    assert time.monotonic() - sent < 10
    assert len(answers) == 1  # the second file is left out
    check_cut_short(answers[0], hard, "interrupted")
    assert "Traceback" not in command.errors


def test_time_limit_returns_the_best_choice_and_progress_is_shown(hard):
    command = Command(hard, "--time-limit", 3, "--json")
    code, answers = command.finish()
    assert code == 0
    check_cut_short(answers[0], hard, "time_limit")
    assert answers[0]["seconds"] < 6
    lines = LINE.findall(command.errors)
    assert 3 <= len(lines) <= 10 * answers[0]["seconds"] + 2
    assert len(command.errors.split("\r\x1b[K")) == len(lines) + 2  # one before, one clears
    assert command.errors.endswith("\r\x1b[K")
    seconds, phase, cost, bound, gap = lines[-1]
    assert 0 < float(seconds) <= answers[0]["seconds"] + 0.1
    assert phase in answers[0]["phases"]
    assert int(cost) >= answers[0]["cost"]
    assert int(bound) <= answers[0]["lower_bound"]
    assert float(gap) == pytest.approx(100 * (int(cost) - int(bound)) / int(cost), abs=1e-3)


def check_cut_short(answer, path, stop):
    assert answer["stop"] == stop
    assert answer["status"] in {"feasible", "time_limit"}
    assert answer["lower_bound"] <= answer["cost"]
    assert answer["gap"] == pytest.approx(1 - answer["lower_bound"] / answer["cost"])
    found = evaluate(json.loads(path.read_text())["problem"], answer["choice"])
    assert (found.cost, found.violations) == (answer["cost"], ())


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"TERM": "dumb"}])
def test_no_progress_on_other_ranks_and_plain_terminals(hard, variables):
    command = Command(hard, "--time-limit", 1, **variables)
    out, _ = command.process.communicate(timeout=120)
    command.read_errors(0)
    os.close(command.master)
    assert command.errors == ""
    assert "gap" in out


def test_plan_shows_the_state_of_its_search():
    words = ["--target", "shardwright.zoo:mlp_tiny", "--cluster", "local-cpu:4", "--json"]
    command = Command(*words, command="plan")
    code, answers = command.finish()
    assert code == 0
    assert answers[0]["gap"] == 0
    assert "planning shardwright.zoo:mlp_tiny" in command.errors
    assert re.search(r"[a-z]+  cost (-|[\d.]+ \S+)  bound (-|[\d.]+ \S+)", command.errors)


def test_no_progress_without_a_terminal(hard, capfd):
    assert main(["solve", str(hard), "--time-limit", "1"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert re.fullmatch(r".*hard.json: time_limit, 90 nodes, .* bound \d+, gap .* %, .* s\n", out)


def test_progress_line_says_what_is_known_and_not_more_often_than_it_may(monkeypatch):
    assert describe_progress("presolve", None, None, 0.04) == "   0.0 s  presolve  cost -  bound -"
    text = describe_progress("messages", 210, 200, 12.34)
    assert text == "  12.3 s  messages  cost 210  bound 200  gap 4.7619 %"
    assert describe_progress("x", 0, -1, 1).endswith("cost 0  bound -1  gap 100.0000 %")

    class Stream:
        text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    now = [0.0]
    monkeypatch.setattr("shardwright.progress.time.monotonic", lambda: now[0])
    stream = Stream()
    line = SearchLine(stream)
    for _ in range(1000):
        line("messages", 3, 2, now[0])
        now[0] += 0.005
    assert 40 <= stream.text.count("\r") <= 50
    line.clear()
    length = len(stream.text)
    line.clear()
    assert len(stream.text) == length
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("RANK", raising=False)
    assert search_line(stream) is not None
    monkeypatch.setenv("RANK", "3")
    assert search_line(stream) is None


@pytest.mark.parametrize("words", [["--time-limit", "0"], ["--time-limit", "nan"], ["--gap", "-1"]])
def test_options_out_of_range_exit_with_2(words, capsys):
    assert main(["solve", "none.json", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "[E511]" in err


def test_infeasible_is_an_answer(tmp_path, capsys):
    nodes = {"intervals": [[0, 1]], "costs": [[1]], "usages": [[5]]}
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"problem": {"nodes": nodes, "usage_limit": 4}}))
    assert main(["solve", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["cost"], answer["choice"]) == ("infeasible", None, [])
    assert answer["smallest_peak_bytes"] == 5


def test_same_answer_whatever_threads_hash_seed_and_processors(tmp_path):
    """The search decides by counted work, so only a limit that cuts it short may change it."""
    files = [DATA / "iopddl/asplos-2025-iopddl-B.json.gz", DATA / "whole_step/gpt24_8_s10.json.gz"]
    for seed in range(3):
        files.append(tmp_path / f"{seed}.json")
        problem = random_problem(
            seed, nodes=(40, 40), strategies=(2, 6), window=3, forbidden_shares=(0.05,)
        )
        files[-1].write_text(json.dumps({"problem": problem}))
    processors = sorted(os.sched_getaffinity(0))
    answers = set()
    for threads, processor_set, hash_seed in [
        ("1", processors, "0"),
        ("4", processors, "1"),
        ("4", processors[:1], "2"),
    ]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "shardwright",
                "solve",
                "--json",
                "--gap",
                "1e-3",
                *map(str, files),
            ],
            env=environment(
                OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, PYTHONHASHSEED=hash_seed
            ),
            preexec_fn=lambda allowed=processor_set: os.sched_setaffinity(0, allowed),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            assert line["stop"] in {"finished", "gap_reached"}
            del line["seconds"], line["phases"]
        answers.add(json.dumps(lines))
    assert len(answers) == 1
