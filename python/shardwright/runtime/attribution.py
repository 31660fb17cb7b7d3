"""Who is to blame when a collective fails: signs of life of all ranks and the verdict on them.

Every rank publishes where it is (step, collective) to the process group's store, at most twice a
second and from a side thread. When a collective fails, the others' last words tell whether a rank
is gone, has stopped, lags behind or does something else.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import CollectiveError
from shardwright.lowering.program import CollectiveSite
from shardwright.runtime import collectives

_PERIOD_S = 0.5
_SILENCE_S = 2.0
# Survivors of a lost rank wait so long before they leave, so that the launcher sees the true first
# failure.
_LINGER_S = 1.0


@dataclass(frozen=True)
class Sign:
    """Last words of a rank.

    Attributes:
        rank: whose.
        count: how many signs it has given.
        step, ordinal: newest collective it started, -1 before the first; op: its kind.
        pid, host: of its process.
        status: "running", or how it left.
    """

    rank: int
    count: int
    step: int
    ordinal: int
    op: str
    pid: int
    host: str
    status: str

    @property
    def place(self) -> str:
        """Where it was, in words."""
        if self.ordinal < 0:
            return "before its first collective"
        kind = "transfer" if self.op == "transfer" else "collective"
        shown = "" if self.op == "transfer" else f" ({self.op})"
        return f"last seen at step {self.step}, {kind} {self.ordinal}{shown}"


class Heartbeat:
    """Publishes this rank's signs of life and reads the others'."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._lock = threading.Lock()
        self._count = 0
        self._status = "running"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardwright-heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to publish; ends when the interpreter does."""
        self._publish()
        self._thread.start()
        atexit.register(self.stop, "left")

    def note(self, status: str) -> None:
        """Publishes a change of this rank's state."""
        if status != self._status and not self._stop.is_set():
            self._status = status
            self._publish()

    def stop(self, status: str) -> None:
        """Publishes how this rank leaves, and no more."""
        if self._stop.is_set():
            return
        self._status = status
        self._stop.set()
        self._thread.join()
        self._publish()
        atexit.unregister(self.stop)

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            if not self._publish():
                return

    def _publish(self) -> bool:
        entry = collectives.last_ledger_entry() or {"step": -1, "ordinal": -1, "op": ""}
        with self._lock:
            self._count += 1
            sign = {
                "count": self._count,
                "step": entry["step"],
                "ordinal": entry["ordinal"],
                "op": entry["op"],
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "status": self._status,
            }
            try:
                self._store.set(_key(self.rank), json.dumps(sign))
            except RuntimeError:  # the store's server is gone
                return False
        return True

    def signs(self) -> dict[int, Sign]:
        """Last words of every rank that gave any; empty when the store is gone."""
        found = {}
        with self._lock:
            try:
                for rank in range(self.size):
                    if self._store.check([_key(rank)]):
                        found[rank] = Sign(rank=rank, **json.loads(self._store.get(_key(rank))))
            except RuntimeError:
                return {}
        return found


def _key(rank: int) -> str:
    return f"shardwright/sign/{rank}"


def process_is_gone(sign: Sign) -> bool:
    """Whether the process is known to have ended (only for this host)."""
    if sign.status.startswith("left"):
        return True
    if sign.host != socket.gethostname():
        return False
    try:
        text = Path(f"/proc/{sign.pid}/stat").read_text()
    except OSError:
        return not _exists(sign.pid)
    return text.rpartition(")")[2].split()[0] in ("Z", "X")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def judge(
    heartbeat: Heartbeat | None,
    failure: Mapping[str, Any],
    site: CollectiveSite | None,
    group: Sequence[int],
    sleep: Callable[[float], None] = time.sleep,
) -> CollectiveError:
    """The error to raise for a failed collective or transfer between stages.

    Args:
        heartbeat: signs of life; None when there are none.
        failure: from the ledger: step, ordinal, op, group, bytes, reason, and of a transfer the
            peer (-1: unknown) and the context, such as "stage 0 -> 1, microbatch 3".
        site: where in the program it is.
        group: ranks that take part.
        sleep: how to wait.
    """
    rank = heartbeat.rank if heartbeat is not None else -1
    timed_out = "imed out" in failure["reason"] or "imeout" in failure["reason"]
    verdict, advice, code = "the reason is unknown", "", "E404"
    if heartbeat is not None:
        verdict, advice, code = _verdict(heartbeat, failure, group, timed_out, sleep)
    values = [
        f"{_kind(failure)} {failure['ordinal']} of step {failure['step']}, "
        f"{failure['bytes']} bytes",
        f"ranks of the group: {', '.join(map(str, group))}" if group else "group unknown",
        f"verdict: {verdict}",
    ]
    if site is not None and site.module_path:
        values.insert(0, f"module {site.module_path}, graph node {site.node}")
    reason = failure["reason"].strip().splitlines()
    values.append(f"torch says: {reason[0][:200] if reason else ''}")
    who = f"rank {rank}: " if rank >= 0 else ""
    return CollectiveError(
        f"{who}{_named(failure)} failed: {verdict}.",
        code=code,
        values=values,
        where=site.source if site is not None else "",
        advice=advice,
    )


def _kind(failure: Mapping[str, Any]) -> str:
    return "transfer" if failure["op"] == "transfer" else "collective"


def _named(failure: Mapping[str, Any]) -> str:
    """What failed: "all_reduce", "transfer (stage 0 -> 1, microbatch 3) with rank 2"."""
    context, peer = failure.get("context", ""), failure.get("peer", -1)
    text = f"{failure['op']} ({context})" if context else str(failure["op"])
    return f"{text} with rank {peer}" if peer >= 0 else text


def _verdict(
    heartbeat: Heartbeat,
    failure: Mapping[str, Any],
    group: Sequence[int],
    timed_out: bool,
    sleep: Callable[[float], None],
) -> tuple[str, str, str]:
    """Words, advice and code for a failure."""
    before = heartbeat.signs()
    if not before:
        return (
            "the process group's store is gone, rank 0 or the launcher with it",
            "look at the first error that any rank printed",
            "E401",
        )
    others = [r for r in range(heartbeat.size) if r != heartbeat.rank]
    for _ in range(4):  # a process that was killed may take a moment to be seen as ended
        gone = [before[r] for r in others if r in before and process_is_gone(before[r])]
        if gone or timed_out:
            break
        sleep(0.1)
        before = heartbeat.signs() or before
    if gone:
        sleep(_LINGER_S)
        first = min(gone, key=lambda s: (s.step, s.ordinal))
        named = "; ".join(_left(s) for s in gone)
        return (
            named,
            f"look at what rank {first.rank} printed; restart from the last checkpoint "
            "(torchrun --max-restarts)",
            "E401",
        )
    mine = (failure["step"], failure["ordinal"])
    # Stages run programs of their own: places in them do not compare.
    is_transfer = _kind(failure) == "transfer"
    diverged = [
        before[r] for r in others
        if r in before and (before[r].step, before[r].ordinal) == mine
        and before[r].op not in ("", failure["op"]) and not is_transfer
    ]  # fmt: skip
    if diverged:
        named = "; ".join(f"rank {s.rank} is in {s.op} there" for s in diverged)
        return named, "the ranks do different things; compare their code and data", "E403"
    sleep(_SILENCE_S)
    after = heartbeat.signs() or before
    silent = [r for r in others if r not in after or after[r].count == before[r].count]
    absent = [
        r for r in group
        if r in after and r != heartbeat.rank and (after[r].step, after[r].ordinal) < mine
    ]  # fmt: skip
    if is_transfer:
        peer = failure.get("peer", -1)
        absent = [peer] if timed_out and peer in after else []
    if silent:
        named = "; ".join(
            f"rank {r} has stopped ({after[r].place})" if r in after else f"rank {r} never started"
            for r in silent
        )
        return named, "see whether that process is suspended or its host unreachable", "E402"
    if absent:
        named = "; ".join(f"rank {r} did not arrive ({after[r].place})" for r in absent)
        return named, "see what keeps it; a larger timeout=... only if it is just slow", "E402"
    if timed_out:
        return (
            "it timed out, all ranks are alive and at the same place",
            "a larger timeout=",
            "E402",
        )
    return "the connection broke, all ranks are alive", "see the network between the hosts", "E404"


def _left(sign: Sign) -> str:
    how = "" if sign.status == "running" else f" ({sign.status})"
    return f"rank {sign.rank} is gone{how}, {sign.place}"
