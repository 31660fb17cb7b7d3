"""What `shardwright doctor` looks at: versions, the compiled parts, backends, devices, memory."""

from __future__ import annotations

import importlib
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwright.report.units import bytes_text, count_text
from shardwright.version import __version__


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: What it is.
        ok: Whether shardwright can work with it.
        found: What is there.
        advice: What to do when it is not ok.
    """

    name: str
    ok: bool
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Looks at everything; a check that fails by itself is a finding too."""
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("shardwright", _versions),
        ("torch", _torch),
        ("planner", _planner),
        ("solver", _solver),
        ("runtime", _runtime),
        ("collectives", _backends),
        ("devices", _devices),
        ("processors", _processors),
        ("folder for temporary files", _temporary_folder),
    )
    findings = []
    for name, check in checks:
        try:
            findings.append(check())
        except Exception as error:
            advice = "install the package again; docs/dev/building.md says how"
            findings.append(Finding(name, False, f"{type(error).__name__}: {error}", advice))
    return findings


def _versions() -> Finding:
    return Finding(
        "shardwright", True, f"{__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}",
    )  # fmt: skip


def _torch() -> Finding:
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return Finding("torch", version >= (2, 13), str(torch.__version__), "torch 2.13 or newer")


def _planner() -> Finding:
    from shardwright import _core

    info = _core.build_info()
    return Finding("planner", True, ", ".join(f"{key} {info[key]}" for key in sorted(info)))


def _solver() -> Finding:
    """Solves the smallest problem with a choice: two strategies, the second is cheaper."""
    from shardwright.solve import solve_ilp

    problem = {
        "nodes": {"intervals": [[0, 1]], "costs": [[2, 1]], "usages": [[0, 0]]},
        "edges": {"nodes": [], "costs": []},
    }
    result = solve_ilp(problem, time_limit_s=5)
    good = result.status == "optimal" and result.cost == 1
    return Finding(
        "solver", good, f"a problem of one node: {result.status}, cost {result.cost}",
        "install the package again; the solver does not work here",
    )  # fmt: skip


def _runtime() -> Finding:
    info = importlib.import_module("shardwright._runtime").build_info()
    return Finding("runtime", True, ", ".join(f"{key} {info[key]}" for key in sorted(info)))


def _backends() -> Finding:
    import torch.distributed as dist

    present = [
        name
        for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available()))
        if there
    ]
    return Finding(
        "collectives", "gloo" in present, ", ".join(present) or "none",
        "a build of torch with Gloo",
    )  # fmt: skip


def _devices() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("devices", True, "no GPU: plans can be made, steps run on CPU processes")
    names = [
        f"{torch.cuda.get_device_name(i)} "
        f"({bytes_text(torch.cuda.get_device_properties(i).total_memory)})"
        for i in range(torch.cuda.device_count())
    ]
    return Finding("devices", True, ", ".join(names))


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("processors", True, count_text(usable or 1, "core"))


def _temporary_folder() -> Finding:
    folder = Path(tempfile.gettempdir())
    with tempfile.TemporaryFile() as file:
        file.write(b"0" * 4096)
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    return Finding(
        "folder for temporary files", free > 2**20, f"{folder}, {bytes_text(free)} free",
        "free some space, or set TMPDIR",
    )  # fmt: skip
