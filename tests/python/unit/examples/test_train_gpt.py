"""The plain path of examples/train_gpt.py: its data, its model and a short run."""

import json
import math
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from examples.train_gpt import GPT, batches, standard_library_source

EXAMPLE = Path(__file__).parents[4] / "examples" / "train_gpt.py"


def test_source_is_capped_and_reads_as_python():
    source = standard_library_source(limit_bytes=50_000)
    assert source.shape == (50_000,)
    assert "def __init__(self" in bytes(source.tolist()).decode("utf-8", errors="ignore")
    assert torch.equal(source, standard_library_source(limit_bytes=100_000)[:50_000])


def test_targets_are_the_tokens_shifted_by_one():
    source = torch.arange(200, dtype=torch.uint8)
    tokens, targets = next(batches(source, batch_size=4, seq_len=16, seed=0))
    assert tokens.shape == targets.shape == (4, 16)
    assert torch.equal(targets, tokens + 1)


def test_batches_depend_on_the_seed_alone():
    source = standard_library_source(limit_bytes=10_000)
    first, again, other = (
        [tokens for tokens, _ in islice(batches(source, 2, 8, seed), 3)] for seed in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_head_is_the_embedding():
    model = GPT(vocab=256, seq_len=8, hidden=32, layers=1, heads=4)
    assert model.head.weight is model.tokens.weight


def run_example(*arguments, **environment):
    """Runs the example in a process of its own that imports from where this one does."""
    return subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# A uniform guess over 256 bytes costs ln 256 = 5.545 nats.
def test_eager_run_learns_and_writes_its_losses(tmp_path):
    losses_out = tmp_path / "losses.json"
    small = ["--layers=1", "--hidden=64", "--heads=4", "--seq-len=32", "--batch-size=8"]
    result = run_example("--eager", "--steps=12", f"--losses-out={losses_out}", *small)
    assert result.returncode == 0, result.stderr
    losses = json.loads(losses_out.read_text())
    assert len(losses) == 12
    assert losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert losses[-1] < losses[0] - 0.5
    assert "step 10: loss" in result.stdout


def test_eager_run_refuses_several_processes():
    result = run_example("--eager", WORLD_SIZE="2", RANK="0")
    assert result.returncode == 2
    assert "--eager is for one process" in result.stderr
