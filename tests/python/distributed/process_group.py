"""Starts small groups of real processes on loopback and collects what they return."""

import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _main(
    rank: int,
    world: int,
    port: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    queue: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    try:
        queue.put((rank, True, function(rank, world, *args)))
    except BaseException as error:
        queue.put((rank, False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def init_gloo(rank: int, world: int, timeout_s: float = 30) -> None:
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s)
    )


def run_ranks(
    world: int, function: Callable[..., Any], *args: Any, timeout_s: float = 120
) -> list[Any]:
    """`function(rank, world, *args)` in `world` processes -> what each returned.

    Raises AssertionError with the traceback of the first rank that raised.
    """
    context = mp.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    workers = [
        context.Process(target=_main, args=(rank, world, port, function, args, queue))
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    results: dict[int, Any] = {}
    try:
        for _ in range(world):
            rank, good, value = queue.get(timeout=timeout_s)
            assert good, f"rank {rank} of {world}:\n{value}"
            results[rank] = value
        for worker in workers:
            worker.join(timeout=30)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
            worker.join()
    return [results[rank] for rank in range(world)]
