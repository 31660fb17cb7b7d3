"""A simulated schedule as a Chrome trace (chrome://tracing, Perfetto)."""

from __future__ import annotations

import json
import os
from typing import Any

from shardwright._core import Action, Schedule, Simulation

_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "backward input",
    "W": "backward weight",
    "SEND_F": "send forward",
    "SEND_B": "send backward",
}


def chrome_trace(schedule: Schedule, simulation: Simulation) -> dict[str, Any]:
    """The trace in the JSON object format: one process per pipeline rank, times in microseconds.

    Thread 0 of a rank computes; each link on which it sends has a thread of its own. An arrow
    leads from a transfer to the computation that needs it.
    """
    events: list[dict[str, Any]] = []
    links: dict[tuple[int, int, int], int] = {}
    for rank in range(schedule.num_ranks):
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        events.append(_named("thread_name", rank, 0, "compute"))
    for timed in simulation.actions:
        action = timed.action
        thread = 0
        if action.peer is not None:
            link = (timed.rank, action.stage, action.peer)
            if link not in links:
                links[link] = 1 + sum(known[0] == timed.rank for known in links)
                name = f"stage {action.stage} to {action.peer}"
                events.append(_named("thread_name", timed.rank, links[link], name))
            thread = links[link]
        events.append(
            {
                "ph": "X",
                "name": str(action),
                "cat": _NAMES[action.kind],
                "pid": timed.rank,
                "tid": thread,
                "ts": timed.start_us,
                "dur": timed.end_us - timed.start_us,
                "args": {"stage": action.stage, "microbatch": action.microbatch},
            }
        )
    events += _arrows(simulation, links)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(
    path: str | os.PathLike[str], schedule: Schedule, simulation: Simulation
) -> None:
    """Writes `chrome_trace` to a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(chrome_trace(schedule, simulation), file, separators=(",", ":"))


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _arrows(simulation: Simulation, links: dict[tuple[int, int, int], int]) -> list[dict[str, Any]]:
    """From the end of each transfer to the start of the computation that takes it."""
    starts: dict[tuple[int, bool, int], tuple[int, float]] = {}
    for timed in simulation.actions:
        action = timed.action
        if action.kind in ("F", "B", "I"):
            key = (action.stage, action.kind == "F", action.microbatch)
            starts[key] = (timed.rank, timed.start_us)
    arrows: list[dict[str, Any]] = []
    for timed in simulation.actions:
        action = timed.action
        if action.peer is None:
            continue
        rank, start = starts[(action.peer, action.kind == "SEND_F", action.microbatch)]
        common = {"cat": "transfer", "name": _arrow_name(action), "id": len(arrows)}
        thread = links[(timed.rank, action.stage, action.peer)]
        arrows.append({"ph": "s", "pid": timed.rank, "tid": thread, "ts": timed.start_us, **common})
        arrows.append({"ph": "f", "bp": "e", "pid": rank, "tid": 0, "ts": start, **common})
    return arrows


def _arrow_name(action: Action) -> str:
    return f"{action.stage} to {action.peer}, microbatch {action.microbatch}"
