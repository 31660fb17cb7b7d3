"""Cutting, joining and DTensor placements against shards computed element by element."""

import random

import numpy as np
import pytest
import torch

from shardwright.lowering.layout import dim_placements, join_parts, local_part
from shardwright.lowering.table import Atoms, LocalTensor, Placement


def random_tensor(rng, mesh):
    """A tensor of random atoms and a spec whose axes shard random atoms in random order."""
    dims, sizes = [], []
    for _ in range(rng.randint(1, 3)):
        atoms = []
        for _ in range(rng.randint(1, 3)):
            atoms.append(len(sizes))
            sizes.append(rng.choice([2, 4, 8, 3]))
        dims.append(tuple(atoms))
    spec = [Placement("R")] * len(mesh)
    left = list(sizes)
    chosen = {}
    for axis in rng.sample(range(len(mesh)), len(mesh)):
        usable = [a for a, size in enumerate(left) if size % mesh[axis] == 0]
        if usable and rng.random() < 0.8:
            atom = rng.choice(usable)
            left[atom] //= mesh[axis]
            spec[axis] = Placement("S", atom, len(chosen.setdefault(atom, [])))
            chosen[atom].append(axis)
    shape = tuple(int(np.prod([sizes[a] for a in dim])) for dim in dims)
    local = tuple(int(np.prod([left[a] for a in dim])) for dim in dims)
    return LocalTensor(local, shape, "float64", Atoms(tuple(sizes), tuple(dims)), tuple(spec))


def owned(tensor, mesh, coordinate):
    """The shard of a rank, by asking for every element whether the rank holds it."""
    sizes, spec = tensor.atoms.sizes, tensor.spec
    whole = np.arange(int(np.prod(tensor.global_shape))).reshape(tensor.global_shape)
    for dim, atoms in enumerate(tensor.atoms.dims):
        keep = []
        for index in range(tensor.global_shape[dim]):
            digits, rest = {}, index
            for atom in reversed(atoms):
                rest, digits[atom] = divmod(rest, sizes[atom])
            good = True
            for atom in atoms:
                axes = sorted(
                    (a for a, p in enumerate(spec) if p.kind == "S" and p.atom == atom),
                    key=lambda a: spec[a].order,
                )
                part, count = 0, 1
                for axis in axes:
                    part, count = part * mesh[axis] + coordinate[axis], count * mesh[axis]
                good &= digits[atom] * count // sizes[atom] == part
            if good:
                keep.append(index)
        whole = np.take(whole, keep, axis=dim)
    return whole


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2), (2, 4)])
@pytest.mark.parametrize("seed", range(20))
def test_shards_are_the_elements_that_a_rank_owns(mesh, seed):
    tensor = random_tensor(random.Random(seed), mesh)
    whole = torch.arange(int(np.prod(tensor.global_shape))).reshape(tensor.global_shape)
    parts = []
    for coordinate in np.ndindex(*mesh):
        part = local_part(whole, tensor, mesh, coordinate)
        assert np.array_equal(part.numpy(), owned(tensor, mesh, coordinate))
        assert part.is_contiguous()
        parts.append(part)
    assert torch.equal(join_parts(parts, tensor, mesh), whole)


@pytest.mark.parametrize("mesh", [(2,), (2, 2), (2, 4)])
@pytest.mark.parametrize("seed", range(20))
def test_dim_placements_applied_axis_by_axis_give_the_same_shards(mesh, seed):
    tensor = random_tensor(random.Random(seed), mesh)
    whole = torch.arange(int(np.prod(tensor.global_shape))).reshape(tensor.global_shape)
    placements = dim_placements(tensor.atoms, tensor.spec, mesh)
    for coordinate in np.ndindex(*mesh):
        part = whole
        for axis, placement in enumerate(placements):
            if placement.kind == "S":
                cut = part.unflatten(placement.dim, (placement.blocks, mesh[axis], -1))
                part = cut.select(placement.dim + 1, coordinate[axis])
                part = part.flatten(placement.dim, placement.dim + 1)
        assert np.array_equal(part.numpy(), owned(tensor, mesh, coordinate))


def test_pending_sums_are_completed_in_order_of_ranks():
    spec = (Placement("P"), Placement("S", 0))
    tensor = LocalTensor((1,), (2,), "float64", Atoms((2,), ((0,),)), spec)
    parts = [torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0, 10.0, 20.0)]
    assert join_parts(parts, tensor, (2, 2)).tolist() == [11.0, 22.0]
