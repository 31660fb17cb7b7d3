"""The same script in a plain process and under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(script, *args, launcher=(), timeout=150, **environment):
    """Runs a script of this folder; returns the finished process."""
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    clean.update(
        PYTHONPATH=f"{ROOT / 'python'}{os.pathsep}{ROOT}",
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
        **environment,
    )
    command = [sys.executable, *launcher, str(Path(__file__).with_name(script)), *map(str, args)]
    return subprocess.run(
        command, env=clean, capture_output=True, text=True, timeout=timeout, check=False
    )


def torchrun(world):
    return (
        "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", str(world),
    )  # fmt: skip


@pytest.mark.distributed
def test_torchrun_gives_the_losses_of_a_plain_process(tmp_path):
    plain = run("torchrun_step.py", tmp_path / "one.json", 1)
    assert plain.returncode == 0, plain.stderr[-3000:]
    many = run("torchrun_step.py", tmp_path / "two.json", 2, launcher=torchrun(2))
    assert many.returncode == 0, many.stderr[-3000:]
    assert many.stdout.count("groups at exit: False") == 2
    assert json.loads((tmp_path / "one.json").read_text()) == json.loads(
        (tmp_path / "two.json").read_text()
    )


@pytest.mark.distributed
def test_groups_are_left_standing_after_an_error(tmp_path):
    failed = run("torchrun_step.py", tmp_path / "no.json", 2, "fail", launcher=torchrun(2))
    assert failed.returncode != 0
    assert "groups at exit: True" in failed.stdout


def test_world_size_without_a_launcher_is_a_coded_error(tmp_path):
    failed = run("torchrun_step.py", tmp_path / "no.json", 2, WORLD_SIZE="2")
    assert failed.returncode != 0
    assert "ConfigError [E501]" in failed.stderr
    assert "torchrun" in failed.stderr
    assert not (tmp_path / "no.json").exists()
