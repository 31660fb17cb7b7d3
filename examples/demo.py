"""Trains the GPT of train_gpt.py twice and compares the losses step by step.

First plain PyTorch in one process, then four processes as a 2 x 2 mesh under a searched plan.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

TRAIN = Path(__file__).with_name("train_gpt.py")


def train(command: list[str], losses_out: Path, num_threads: int) -> tuple[list[float], float]:
    """Runs the training and returns its losses and its seconds from start to end."""
    started = time.perf_counter()
    subprocess.run(
        [*command, "--losses-out", str(losses_out)],
        env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
        check=True,
    )
    return json.loads(losses_out.read_text()), time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="largest loss difference")
    args = parser.parse_args()
    options = [f"--steps={args.steps}", f"--batch-size={args.batch_size}"]
    options += [f"--layers={args.layers}"]

    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        console.rule("plain PyTorch, 1 process")
        single, single_seconds = train(
            [sys.executable, str(TRAIN), "--eager", *options],
            Path(folder, "single.json"),
            num_threads=os.cpu_count() or 1,
        )
        console.rule("shardwright, 4 processes, mesh 2 x 2")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
        sharded, sharded_seconds = train(
            [sys.executable, *torchrun, str(TRAIN), "--mesh=2x2", *options],
            Path(folder, "sharded.json"),
            num_threads=1,
        )

    table = Table("step", "1 process", "4 processes", "difference")
    differences = [abs(a - b) for a, b in zip(single, sharded, strict=True)]
    rows = list(zip(single, sharded, differences, strict=True))
    for step in sorted({*range(0, args.steps, 5), args.steps - 1}):
        one, four, difference = rows[step]
        table.add_row(str(step + 1), f"{one:.6f}", f"{four:.6f}", f"{difference:.1e}")
    console.print(table)
    console.print(f"seconds: {single_seconds:.0f} and {sharded_seconds:.0f}")

    same = max(differences) <= args.tolerance
    learned = sharded[-1] < sharded[0] - 1.0 or args.steps < 20
    console.print(
        f"largest difference of a loss: {max(differences):.1e} "
        f"({'within' if same else 'NOT within'} {args.tolerance:.0e})"
    )
    if not learned:
        console.print("the loss has not fallen by 1 nat")
    return 0 if same and learned else 1


if __name__ == "__main__":
    sys.exit(main())
