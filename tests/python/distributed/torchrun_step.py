"""Script that torchrun starts: trains a small step and writes what rank 0 saw as JSON."""

import json
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
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
