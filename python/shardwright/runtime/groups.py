"""The world a step runs in: one process alone, or torch's process groups along the mesh axes."""

from __future__ import annotations

import atexit
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardwright.errors import ClusterError, ConfigError

_CONTROL_TIMEOUT = timedelta(hours=2)
_LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """The processes that share a step.

    Attributes:
        rank, size: of this process and of all.
        control: Gloo group of all ranks for agreeing on things; its timeout is long, for rank 0
            may plan for a while.
        has_group: whether torch.distributed connects them; False only for one process alone.
    """

    rank: int
    size: int
    has_group: bool
    control: Any = None


@dataclass(frozen=True)
class MeshGroups:
    """Process groups along the axes of a mesh.

    Attributes:
        names: per axis the name of this rank's group, for the C++ operators.
        device_mesh: the same groups for DTensor; None for one process alone.
    """

    names: tuple[str, ...]
    device_mesh: DeviceMesh | None


def find_world(environment: Mapping[str, str], device: torch.device, timeout: timedelta) -> World:
    """The present world; starts torch.distributed when a launcher such as torchrun left word of it.

    Args:
        environment: environment variables.
        device: where the model lives; CPUs talk through Gloo, GPUs through NCCL.
        timeout: of every collective.

    Raises:
        ConfigError: E501 when WORLD_SIZE asks for several processes and the rest is missing.
    """
    if dist.is_available() and dist.is_initialized():
        return _connected_world()
    size = _integer(environment, "WORLD_SIZE", 1)
    if size == 1:
        return World(0, 1, has_group=False)
    missing = [name for name in _LAUNCH_VARIABLES if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {size}, but there is no process group and no way to make one.",
            code="E501",
            values=[f"not set: {', '.join(missing)}"],
            advice="start the script with torchrun, or call "
            "torch.distributed.init_process_group before the step; for one process unset "
            "WORLD_SIZE",
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    atexit.register(_take_down)
    return _connected_world()


def _take_down() -> None:
    """Ends the groups that were started here while the interpreter still runs.

    Their threads abort the process at times when they outlive it (pytorch issue 190489).
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_standing() -> None:
    """After an error: ending the groups would wait for what will never come."""
    atexit.unregister(_take_down)


def _connected_world() -> World:
    control = dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT, group_desc="shardwright")
    return World(dist.get_rank(), dist.get_world_size(), True, control)


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.strip().isdigit():
        raise ConfigError(
            f"{name} is not a number.", code="E501", values=[f"{name}={text}"],
            advice="start the script with torchrun",
        )  # fmt: skip
    return int(text)


def check_backend(world: World, device: torch.device) -> None:
    """Raises ConfigError E502 when the default group cannot move tensors of the device."""
    if not world.has_group:
        return
    backend = str(dist.get_backend())
    if device.type == "cpu" and backend == "nccl":
        raise ConfigError(
            "the model is on the CPU, but the process group is NCCL.",
            code="E502",
            advice="move the model to the GPU, or initialise the group with "
            '"gloo" or "cpu:gloo,cuda:nccl"',
        )


def check_mesh_size(mesh_shape: Sequence[int], num_processes: int) -> None:
    """Raises ClusterError E357 unless the mesh has as many devices as the world has processes."""
    devices = math.prod(mesh_shape)
    if devices != num_processes:
        relation = "more" if devices > num_processes else "fewer"
        raise ClusterError(
            f"the mesh has {relation} devices than there are processes.",
            code="E357",
            values=[
                f"mesh {tuple(mesh_shape)}: {devices} devices",
                f"processes: {num_processes}",
            ],
            advice=f"start {devices} processes (torchrun --nproc-per-node {devices}), or pass a "
            f"mesh of {num_processes} devices",
        )


def make_groups(
    stage_meshes: Sequence[Sequence[int]],
    first_ranks: Sequence[int],
    stage: int,
    world: World,
    device: torch.device,
    timeout: timedelta,
) -> MeshGroups:
    """Process groups along every axis of the mesh of this rank's stage.

    Every rank of the world must call it with the same meshes.

    Args:
        stage_meshes: shape of every stage's mesh.
        first_ranks: first rank of every stage; the others of its mesh follow, row-major.
        stage: of this rank.
        world: all ranks.
        device: where tensors live.
        timeout: of every collective.
    """
    own = tuple(stage_meshes[stage])
    if not world.has_group:
        return MeshGroups(tuple(f"alone{axis}" for axis in range(len(own))), None)
    grids = [
        torch.arange(first, first + math.prod(mesh)).view(tuple(mesh))
        for mesh, first in zip(stage_meshes, first_ranks, strict=True)
    ]
    groups = []
    for axis in range(max(len(mesh) for mesh in stage_meshes)):
        lines: list[list[int]] = []
        for grid in grids:
            if axis < grid.dim():
                lines += grid.movedim(axis, -1).reshape(-1, grid.shape[axis]).tolist()
        group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
            lines, timeout=timeout, group_desc=f"shardwright axis {axis}"
        )
        if axis < len(own):
            groups.append(group)
    names = tuple(f"axis{axis}" for axis in range(len(own)))
    device_mesh = DeviceMesh.from_group(
        groups if len(groups) > 1 else groups[0],
        device.type,
        mesh=grids[stage] if len(groups) > 1 else None,
        mesh_dim_names=names,
    )
    return MeshGroups(tuple(group.group_name for group in groups), device_mesh)
