"""Starts processes of which some may never come back."""

import os
import queue as queues
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp
from tests.python.distributed.process_group import free_port, init_gloo


def _main(rank, world, port, function, args, init, queue) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    if init:
        init_gloo(rank, world)
    outcome = function(rank, world, *args)
    queue.put((rank, outcome))
    # Others may still need the store that rank 0 holds to reach their verdict.
    queue.close()
    queue.join_thread()
    time.sleep(4 if rank == 0 else 0)
    os._exit(0)


def run_some(
    world: int, function: Callable[..., Any], *args: Any, expected: list[int], init: bool = False,
    timeout_s: float = 100,
) -> list[Any]:  # fmt: skip
    """What the ranks in `expected` return; the others are killed in the end."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    workers = [
        context.Process(target=_main, args=(r, world, port, function, args, init, queue))
        for r in range(world)
    ]
    for worker in workers:
        worker.start()
    found: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    try:
        while set(found) != set(expected):
            assert time.monotonic() < deadline, f"only ranks {sorted(found)} came back"
            try:
                rank, outcome = queue.get(timeout=1)
                found[rank] = outcome
            except queues.Empty:
                crashed = [r for r in expected if r not in found and not workers[r].is_alive()]
                assert not crashed or not queue.empty(), f"ranks {crashed} crashed"
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return [found[rank] for rank in expected]
