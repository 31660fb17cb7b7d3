"""The stage search on its own: which layers form a stage, and on which submesh it runs.

The planner's tables come from the intra-operator search; this module takes any.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwright._core import search_stages
from shardwright.errors import ConfigError, ProblemError


@dataclass(frozen=True)
class StageMemory:
    """Bytes that stages take on each device.

    Attributes:
        fixed_bytes: ``[i, j, s]`` as the times: parameters, gradients, optimizer state and
            whatever else does not grow with the microbatches in flight.
        microbatch_bytes: ``[i, j, s]``: what each microbatch in flight adds.
        limit_bytes: What a device has.
    """

    fixed_bytes: ArrayLike
    microbatch_bytes: ArrayLike
    limit_bytes: int


@dataclass(frozen=True)
class StageSolution:
    """Stages with a certified time.

    Attributes:
        time: Of one step, in the unit of the tables: the sum of the stages' times plus
            (num_microbatches - 1) times the longest, recomputed by the certificate.
        stages: ``(i, j, s)`` per stage: layers i to j - 1 on ``submeshes[s]``.
        lower_bound: Proven: no stages take less.
        gap: (time - lower_bound) / time.
        status: "optimal", or "feasible" when the time limit or Ctrl-C ended the search.
        variants: Index of the chosen variant per stage (0 where the tables have none).
        stage_times: Time of each stage per microbatch, with the transfers it is charged.
        stage_memory_bytes: Bytes per device of each stage; empty without ``memory``.
        num_devices: Devices used.
        seconds: Wall time of the search.
    """

    time: float
    stages: tuple[tuple[int, int, int], ...]
    lower_bound: float
    gap: float
    status: str
    variants: tuple[int, ...]
    stage_times: tuple[float, ...]
    stage_memory_bytes: tuple[int, ...]
    num_devices: int
    seconds: float


def solve_stages(
    stage_time: ArrayLike,
    submeshes: Sequence[tuple[int, int]],
    *,
    num_devices: int,
    num_microbatches: int,
    boundary_time: ArrayLike | None = None,
    memory: StageMemory | tuple[ArrayLike, ArrayLike, int] | None = None,
    schedule: str = "1f1b",
    overlap_transfers: bool = False,
    use_all_devices: bool = True,
    time_limit_s: float = 60.0,
) -> StageSolution:
    """Finds the stages of least time, exactly.

    Args:
        stage_time: ``[i, j, s]``: time of one microbatch, forward and backward, for layers i to
            j - 1 as one stage on ``submeshes[s]``; infinity where impossible. Shape
            [num_layers, num_layers + 1, num_submeshes]; only i < j is read. A fourth dim holds
            variants of a stage (with and without recomputation) to choose from.
        submeshes: (hosts, devices per host) of each shape. Within a host a power of two, over
            several hosts all devices of each, so that any choice can be placed.
        num_devices: Devices of the cluster; the stages' devices add up to exactly this.
        num_microbatches: Microbatches of one step.
        boundary_time: Time per microbatch of the transfers between layers, both directions
            together: ``[k]`` between layers k and k + 1 (num_layers - 1 entries), or with the
            submeshes on its two sides, ``[k, s, t]``. Default: free.
        memory: Bytes, as a `StageMemory` or a tuple of its three parts.
        schedule: "1f1b", "gpipe" or "zero_bubble"; decides how many microbatches are in flight.
        overlap_transfers: False: sender and receiver both wait, the transfer is part of the time
            of the stages on both sides. True: it takes a step of its own on its link.
        use_all_devices: False: the stages may leave devices idle.
        time_limit_s: Wall seconds after which the best stages so far are returned.

    Returns:
        The stages. Ctrl-C also ends the search with the best so far.

    Raises:
        ProblemError: The tables do not fit together [E221].
        InfeasibleError: No stages fit [E205].
        ConfigError: An option makes no sense, or the time ran out before any stages were found
            [E511].
        KeyboardInterrupt: On Ctrl-C before any stages were found.

    Source: the objective is Alpa's (OSDI 2022, section 5.1); boundaries are part of the state here.
    """
    if not time_limit_s > 0:  # NaN as well
        raise _config(f"time_limit_s={time_limit_s!r}", "a number of seconds above 0")
    shapes = [_shape(s) for s in submeshes]
    times = _ranges("stage_time", stage_time, len(shapes), np.float64)
    fixed, moving, limit = _memory(memory, times.shape)
    answer = search_stages(
        times=times,
        submeshes=shapes,
        num_devices=int(num_devices),
        use_all_devices=bool(use_all_devices),
        num_microbatches=int(num_microbatches),
        boundary_times=_boundaries(boundary_time, times.shape[0], len(shapes)),
        overlap_transfers=bool(overlap_transfers),
        schedule=schedule,
        fixed_bytes=fixed,
        microbatch_bytes=moving,
        memory_limit_bytes=limit,
        time_limit_s=float(time_limit_s),
    )
    if not answer["stages"]:
        raise _config(f"time_limit_s={time_limit_s!r}: no stages were found by then", "more time")
    time, bound = answer["time"], answer["lower_bound"]
    return StageSolution(
        time=time,
        stages=tuple((i, j, s) for i, j, s, _ in answer["stages"]),
        lower_bound=bound,
        gap=(time - bound) / time if time else 0.0,
        status=answer["status"],
        variants=tuple(variant for *_, variant in answer["stages"]),
        stage_times=tuple(answer["stage_times"]),
        stage_memory_bytes=tuple(answer["stage_memory_bytes"]),
        num_devices=answer["num_devices"],
        seconds=answer["seconds"],
    )


def _config(value: str, advice: str) -> ConfigError:
    return ConfigError(
        "an option of solve_stages cannot be used.", code="E511", values=[value], advice=advice
    )


def _problem(value: str, advice: str) -> ProblemError:
    return ProblemError(
        "the tables of a stage search do not fit together.",
        code="E221",
        values=[value],
        advice=advice,
    )


def _shape(submesh: Any) -> tuple[int, int]:
    try:
        hosts, devices = submesh
        return int(hosts), int(devices)
    except (TypeError, ValueError) as error:
        raise _problem(f"submesh {submesh!r}", "(hosts, devices per host)") from error


def _numbers(name: str, values: Any, dtype: type) -> NDArray[Any]:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "iuf":
            raise ValueError(array.dtype)
    except (TypeError, ValueError) as error:
        raise _problem(f"{name} is no array of numbers", "give a NumPy array") from error
    if dtype is np.int64 and array.dtype.kind == "f":
        # Whole bytes, rounded up; what is too large to be a size counts as more than any limit.
        array = np.ceil(np.clip(array, -1, 2.0**60))
    return array.astype(dtype)


def _ranges(name: str, values: Any, num_submeshes: int, dtype: type) -> NDArray[Any]:
    """The table as [num_layers, num_layers + 1, num_submeshes, variants]."""
    array = _numbers(name, values, dtype)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[0] == array.shape[1]:
        array = array[:-1]  # a square table: the last row begins after the last layer
    wanted = (array.shape[0], array.shape[0] + 1, num_submeshes) if array.ndim == 4 else ()
    if array.shape[:3] != wanted or 0 in array.shape:
        raise _problem(
            f"{name} of shape {np.shape(values)} for {num_submeshes} submeshes",
            "[num_layers, num_layers + 1, num_submeshes]",
        )
    return np.ascontiguousarray(array)


def _memory(
    memory: StageMemory | tuple[ArrayLike, ArrayLike, int] | None, shape: tuple[int, ...]
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, int | None]:
    if memory is None:
        return None, None, None
    if not isinstance(memory, StageMemory):
        try:
            memory = StageMemory(*memory)
        except TypeError as error:
            raise _problem(
                f"memory is a {type(memory).__name__}",
                "StageMemory(fixed_bytes, microbatch_bytes, limit_bytes)",
            ) from error
    limit = memory.limit_bytes
    if isinstance(limit, float) and (math.isnan(limit) or math.isinf(limit)):
        raise _problem(f"limit_bytes={limit!r}", "a number of bytes")
    tables = []
    for name in ("fixed_bytes", "microbatch_bytes"):
        table = _ranges(name, getattr(memory, name), shape[2], np.int64)
        if table.shape[3] == 1:
            table = np.broadcast_to(table, (*table.shape[:3], shape[3]))
        if table.shape != shape:
            raise _problem(f"{name} of shape {table.shape}", f"as stage_time: {shape}")
        tables.append(np.ascontiguousarray(table))
    return tables[0], tables[1], int(limit)


def _boundaries(values: Any, num_layers: int, num_submeshes: int) -> NDArray[Any] | None:
    """Costs by layer behind the boundary: entry 0 is not read."""
    if values is None:
        return None
    array = _numbers("boundary_time", values, np.float64)
    between = max(num_layers - 1, 0)
    if array.shape not in ((between,), (between, num_submeshes, num_submeshes)):
        raise _problem(
            f"boundary_time of shape {array.shape} for {num_layers} layers",
            f"[{between}], or [{between}, {num_submeshes}, {num_submeshes}]",
        )
    padding = np.zeros((1, *array.shape[1:]))
    return np.ascontiguousarray(np.concatenate([padding, array]))
