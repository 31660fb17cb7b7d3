"""Script that torchrun starts: trains a small step and writes what rank 0 saw as JSON.

It leaves the process groups, which it did not make, to shardwright.
"""

import atexit
import json
import os
import sys
from pathlib import Path

import torch
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo


def main() -> None:
    torch.set_num_threads(1)
    out, world = Path(sys.argv[1]), int(sys.argv[2])
    step, args = zoo.mlp_integer()
    parallel = sw.parallelize(mesh=(world,), cluster=slow_compute(world), timeout=60)(step)
    losses = [parallel(*args).item() for _ in range(3)]
    state = args[0].state_dict()
    whole = {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in state.items()}
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        sums = {name: value.double().sum().item() for name, value in whole.items()}
        out.write_text(json.dumps({"losses": losses, "sums": sums}))
    if sys.argv[3:] == ["fail"]:
        parallel(*args, "one argument too many")


def report_groups() -> None:
    # In one write: lines of two processes must not mix.
    os.write(1, f"groups at exit: {torch.distributed.is_initialized()}\n".encode())


if __name__ == "__main__":
    atexit.register(report_groups)  # runs after what is registered later
    main()
