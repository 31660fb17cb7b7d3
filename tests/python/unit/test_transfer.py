"""Transfers between meshes: every pair of specs against cutting the whole tensor."""

import itertools

import numpy as np
import pytest
import torch
from tests.python.unit.transfer_oracle import check_transfer, shards_of, specs_of

from shardwright import _core
from shardwright.runtime.simulated_transfer import simulate_transfer


def cluster(num_hosts: int, devices_per_host: int, nic=1.0, port=10.0) -> _core.Cluster:
    result = _core.Cluster()
    result.name = "test"
    result.num_hosts, result.devices_per_host = num_hosts, devices_per_host
    result.inter_host = _core.Link(nic, 7.0, 0.5)
    result.intra_host = _core.Link(port, 2.0, 0.25)
    return result


def submesh(shape, first_rank: int, on: _core.Cluster) -> _core.Submesh:
    count = int(np.prod(shape))
    return _core.Submesh.on_cluster(shape, range(first_rank, first_rank + count), on)


# Source and target shape, devices per host; the target's ranks follow the source's.
MESH_PAIRS = [
    ((2, 4), (2, 4), 4),
    ((2, 4), (3, 4), 4),
    ((1, 4), (2, 4), 4),
    ((2, 4), (1, 4), 4),
    ((2, 2), (2, 2), 8),  # both on one host
    ((1, 2), (1, 4), 4),  # the host is shared, the last two are on the next
    ((4,), (2, 3), 2),
]
# Sizes of atoms and their dims: a matrix, a fused QKV weight, a dim of two atoms turned round.
LAYOUTS = {
    "matrix": ((24, 48), ((0,), (1,))),
    "fused": ((3, 24, 2), ((0, 1), (2,))),
    "turned": ((24, 2, 24), ((2,), (1, 0))),
}


def cases() -> list:
    return [
        pytest.param(*shapes, layout, id=f"{shapes[0]}-{shapes[1]}-{layout}")
        for shapes in MESH_PAIRS
        for layout in LAYOUTS
    ]


def plan(atoms, pair, meshes, on, dtype="float32"):
    return _core.plan_transfer(atoms, dtype, pair[0], meshes[0], pair[1], meshes[1], on)


@pytest.mark.parametrize(("source_shape", "target_shape", "per_host", "layout"), cases())
def test_every_pair_of_specs_moves_each_byte_once_and_gives_the_shards(
    source_shape, target_shape, per_host, layout
):
    atoms = _core.TensorAtoms(*LAYOUTS[layout])
    on = cluster(8, per_host)
    source_mesh = submesh(source_shape, 0, on)
    target_mesh = submesh(target_shape, len(source_mesh.ranks), on)
    shape = [int(np.prod([atoms.sizes[a] for a in dim])) for dim in atoms.dims]
    whole = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    pairs = itertools.product(specs_of(atoms, source_shape), specs_of(atoms, target_shape))
    for source, target in pairs:
        found = plan(atoms, (source, target), (source_mesh, target_mesh), on)
        check_transfer(atoms, source, source_mesh, target, target_mesh, found.steps)
        given = shards_of(whole, atoms, source, source_mesh)
        result = simulate_transfer(found, {r: torch.from_numpy(s) for r, s in given.items()})
        expected = shards_of(whole, atoms, target, target_mesh)
        assert set(result) == set(expected)
        for rank, part in expected.items():
            assert np.array_equal(result[rank].numpy().view(np.int32), part.view(np.int32))


def random_submesh(rng: np.random.Generator, num_ranks: int, per_host: int) -> _core.Submesh:
    """Any ranks in any order, so that meshes share hosts and ranks and hosts are half used."""
    shape = [(1,), (2,), (3,), (4,), (2, 2), (2, 3), (1, 4), (2, 2, 2)][rng.integers(8)]
    ranks = rng.permutation(num_ranks)[: int(np.prod(shape))].tolist()
    return _core.Submesh(shape, ranks, [rank // per_host for rank in ranks])


def any_spec(rng: np.random.Generator, atoms, mesh: _core.Submesh):
    specs = specs_of(atoms, mesh.shape)
    return specs[rng.integers(len(specs))]


@pytest.mark.parametrize("seed", range(8))
def test_meshes_that_share_hosts_and_ranks_in_any_order(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        per_host = int(rng.integers(1, 5))
        on = cluster(12, per_host, nic=float(rng.choice([1.0, 10.0, 100.0])))
        meshes = [random_submesh(rng, 12, per_host) for _ in range(2)]
        sizes, dims = list(LAYOUTS.values())[rng.integers(len(LAYOUTS))]
        atoms = _core.TensorAtoms(sizes, dims)
        pair = [any_spec(rng, atoms, mesh) for mesh in meshes]
        found = plan(atoms, pair, meshes, on)
        check_transfer(atoms, pair[0], meshes[0], pair[1], meshes[1], found.steps)
        again = plan(atoms, pair, meshes, on)
        assert [repr(s) for s in again.steps] == [repr(s) for s in found.steps]
