"""What a transfer must do, from its meaning: cutting, executing, counting, with code of its own."""

import itertools
from collections import defaultdict

import numpy as np

from shardwright import _core


class TransferError(AssertionError):
    """A transfer that does not do what it must; the text says what."""


def specs_of(atoms: _core.TensorAtoms, mesh_shape) -> list[list[_core.Placement]]:
    """Every valid spec without pending reductions."""
    options = [_core.Placement.replicate()]
    for atom in {atom for dim in atoms.dims for atom in dim}:
        options += [_core.Placement.shard(atom, order) for order in range(len(mesh_shape))]
    specs = (list(spec) for spec in itertools.product(options, repeat=len(mesh_shape)))
    return [spec for spec in specs if _core.is_valid_spec(atoms, spec, mesh_shape)]


def shards_of(whole: np.ndarray, atoms, spec, mesh: _core.Submesh) -> dict[int, np.ndarray]:
    """By rank its shard of a whole tensor, cut axis by axis of the mesh, outermost split first."""
    order = [atom for dim in atoms.dims for atom in dim]
    local_shape = _core.local_shape(atoms, spec, mesh.shape)
    shards = {}
    for position, rank in enumerate(mesh.ranks):
        coordinate = np.unravel_index(position, mesh.shape)
        grid = whole.reshape([atoms.sizes[atom] for atom in order])
        sharding = [(p.order, axis) for axis, p in enumerate(spec) if p.kind == "S"]
        for _, axis in sorted(sharding):
            place = order.index(spec[axis].atom)
            grid = np.split(grid, mesh.shape[axis], axis=place)[coordinate[axis]]
        shards[rank] = np.ascontiguousarray(grid.reshape(local_shape))
    return shards


def box(array: np.ndarray, region) -> tuple[slice, ...]:
    if len(region) != array.ndim:
        raise TransferError(f"a region of {len(region)} ranges in a shard of {array.ndim} atoms")
    for (begin, size), extent in zip(region, array.shape, strict=True):
        if begin < 0 or size < 1 or begin + size > extent:
            raise TransferError(f"the range {begin}, {size} leaves an atom of {extent}")
    return tuple(slice(begin, begin + size) for begin, size in region)


def check_transfer(atoms, source, source_mesh, target, target_mesh, steps) -> None:
    """Executes steps as blocking messages on elements that know who they are.

    Raises TransferError unless the steps end without deadlock, every target rank has its shard, no
    rank reads what it does not have yet or gets an element twice, and each host gets each element
    at most once from other hosts, and none that it has.
    """
    order = [atom for dim in atoms.dims for atom in dim]
    sizes = [atoms.sizes[atom] for atom in order]
    whole = np.arange(int(np.prod(sizes))).reshape(sizes)
    held = shards_of(whole, atoms, source, source_mesh)
    wanted = shards_of(whole, atoms, target, target_mesh)
    grid = lambda spec, mesh: shards_of(whole, one_atom_dims(atoms, order), spec, mesh)  # noqa: E731
    sources = grid(source, source_mesh)
    targets = {r: np.full_like(part, -1) for r, part in grid(target, target_mesh).items()}
    hosts = dict(zip(source_mesh.ranks, source_mesh.hosts, strict=True))
    hosts |= dict(zip(target_mesh.ranks, target_mesh.hosts, strict=True))
    on_host = defaultdict(set)
    for rank, part in held.items():
        on_host[hosts[rank]] |= set(part.ravel().tolist())
    arrived = defaultdict(set)

    for step in in_blocking_order(by_rank(steps)):
        from_rank, to_rank = step.source_rank, step.target_rank
        if (step.kind == "copy") != (from_rank == to_rank):
            raise TransferError(f"{step!r} is no {step.kind}")
        if step.crosses_hosts != (hosts[from_rank] != hosts[to_rank]):
            raise TransferError(f"{step!r} is wrong about crossing hosts")
        given = (sources if step.kind in ("copy", "send") else targets)[from_rank]
        count = 0
        for taken, put in step.copies:
            values = given[box(given, taken)].copy()
            window = targets[to_rank][box(targets[to_rank], put)]
            if values.shape != window.shape:
                raise TransferError(f"{step!r} takes {values.shape} and puts {window.shape}")
            if (values < 0).any():
                raise TransferError(f"{step!r} passes on what has not arrived")
            if (window >= 0).any():
                raise TransferError(f"{step!r} brings elements a second time")
            window[...] = values
            count += values.size
            if step.crosses_hosts:
                new = set(values.ravel().tolist())
                if new & (arrived[hosts[to_rank]] | on_host[hosts[to_rank]]):
                    raise TransferError(f"{step!r} brings host {hosts[to_rank]} what it has")
                arrived[hosts[to_rank]] |= new
        if count * 4 != step.bytes:
            raise TransferError(f"{step!r} counts other bytes than its copies")
    for rank, part in wanted.items():
        if not np.array_equal(targets[rank].reshape(part.shape), part):
            raise TransferError(f"rank {rank} does not have its shard")


def one_atom_dims(atoms, order):
    """The same tensor seen with one dim per atom."""
    return _core.TensorAtoms(atoms.sizes, [[atom] for atom in order])


def by_rank(steps):
    """What each rank does, in its order."""
    queues = defaultdict(list)
    for step in steps:
        for rank in {step.source_rank, step.target_rank}:
            queues[rank].append(step)
    return queues


def in_blocking_order(queues):
    """The steps as ranks reach them when each waits for the partner at every message."""
    queues = {rank: list(queue) for rank, queue in queues.items()}
    while any(queues.values()):
        ready = [
            step
            for rank in sorted(queues)
            for step in queues[rank][:1]
            if rank == step.source_rank and queues[step.target_rank][:1] == [step]
        ]
        if not ready:
            raise TransferError("the ranks wait for each other")
        for step in ready:
            queues[step.source_rank].pop(0)
            if step.target_rank != step.source_rank:
                queues[step.target_rank].pop(0)
            yield step
