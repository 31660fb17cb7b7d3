"""Every conversion, executed on simulated ranks: the steps' meaning against the whole tensor.

The tensor holds random integers; pending sums are split into random integer parts. What each rank
holds after the last step must be bitwise what the target spec says, cut from the whole tensor atom
by atom.
"""

import itertools

import numpy as np
import pytest

from shardwright import Cluster, _core

MESHES = [(2,), (4,), (2, 2), (2, 4)]
# Sizes of atoms and their dims: a matrix, a fused QKV weight, one dim of three atoms, a transpose.
LAYOUTS = [
    ((8, 16), ((0,), (1,))),
    ((3, 8, 4), ((0, 1), (2,))),
    ((8, 2, 8), ((0, 1, 2),)),
    ((4, 8, 8), ((2,), (1, 0))),
]


def all_specs(atoms: _core.TensorAtoms, mesh_shape: tuple[int, ...]) -> list[list[_core.Placement]]:
    options = [_core.Placement.replicate(), _core.Placement.partial("sum")]
    for atom in range(len(atoms.sizes)):
        options += [_core.Placement.shard(atom, order) for order in range(len(mesh_shape))]
    specs = (list(spec) for spec in itertools.product(options, repeat=len(mesh_shape)))
    return [spec for spec in specs if _core.is_valid_spec(atoms, spec, mesh_shape)]


def part_of(
    spec: list[_core.Placement], atom: int, coordinate: list[int], mesh_shape
) -> tuple[int, int]:
    """Which part of an atom a rank holds, and of how many."""
    axes = [a for a, p in enumerate(spec) if p.kind == "S" and p.atom == atom]
    index, parts = 0, 1
    for axis in sorted(axes, key=lambda a: spec[a].order):
        index = index * mesh_shape[axis] + coordinate[axis]
        parts *= mesh_shape[axis]
    return index, parts


def shard_of(whole: np.ndarray, atoms, spec, coordinate, mesh_shape) -> np.ndarray:
    """One rank's shard, cut from the whole tensor by atom coordinates; shape as the local dims."""
    order = [atom for dim in atoms.dims for atom in dim]
    grid = whole.reshape([atoms.sizes[atom] for atom in order])
    for position, atom in enumerate(order):
        index, parts = part_of(spec, atom, coordinate, mesh_shape)
        size = atoms.sizes[atom] // parts
        grid = np.take(grid, range(index * size, (index + 1) * size), axis=position)
    return grid.reshape(_core.local_shape(atoms, spec, mesh_shape))


def place(whole: np.ndarray, atoms, spec, mesh, rng: np.random.Generator) -> list[np.ndarray]:
    """Local tensors of all ranks: shards, with pending sums split at random over their axes."""
    shape = tuple(mesh.shape)
    partial_axes = [axis for axis, p in enumerate(spec) if p.kind == "P"]
    parts: dict[tuple[int, ...], np.ndarray] = {}
    keys = list(itertools.product(*(range(shape[axis]) for axis in partial_axes)))
    rest = whole.copy()
    for key in keys[1:]:
        parts[key] = rng.integers(-50, 50, whole.shape)
        rest = rest - parts[key]
    parts[keys[0]] = rest
    result = []
    for rank in range(mesh.num_devices):
        coordinate = mesh.coordinate(rank)
        part = parts[tuple(coordinate[axis] for axis in partial_axes)]
        result.append(shard_of(part, atoms, spec, coordinate, shape))
    return result


def split(local: np.ndarray, atoms, spec, atom: int, mesh_shape) -> tuple[list[int], int]:
    """Shape of a local tensor with its dim cut before `atom`, and that cut's position."""
    for dim, members in enumerate(atoms.dims):
        if atom in members:
            outer = 1
            for member in members[: members.index(atom)]:
                outer *= (
                    atoms.sizes[member]
                    // part_of(spec, member, [0] * len(mesh_shape), mesh_shape)[1]
                )
            shape = list(local.shape)
            return [*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :]], dim + 1
    raise AssertionError(f"atom {atom} is in no dim")


def apply_step(step, before, atoms, locals_: list[np.ndarray], mesh) -> list[np.ndarray]:
    shape = tuple(mesh.shape)
    result = []
    for rank in range(mesh.num_devices):
        group = mesh.group(rank, step.axis)
        me = group.index(rank)
        mine = locals_[rank]
        reduced = sum(locals_[peer] for peer in group)
        local_out = _core.local_shape(atoms, step.after, shape)

        def cut(tensor: np.ndarray, atom: int, index: int, n: int = len(group)) -> np.ndarray:
            view, position = split(tensor, atoms, before, atom, shape)
            return np.array_split(tensor.reshape(view), n, axis=position)[index]

        if step.kind == "all_gather":
            view, position = split(mine, atoms, before, step.atom, shape)
            out = np.concatenate([locals_[peer].reshape(view) for peer in group], axis=position)
        elif step.kind == "reduce_scatter":
            out = cut(reduced, step.atom, me)
        elif step.kind == "all_reduce":
            out = reduced
        elif step.kind == "all_to_all":
            # Each peer cuts what it has along to_atom and sends me my part; they line up at atom.
            after_cut = list(step.after)
            pieces = [cut(locals_[peer], step.to_atom, me) for peer in group]
            local = _core.local_shape(atoms, after_cut, shape)
            dims = [dim for dim, members in enumerate(atoms.dims) if step.atom in members]
            local[dims[0]] //= len(group)
            pieces = [piece.reshape(local) for piece in pieces]
            view, position = split(pieces[0], atoms, after_cut, step.atom, shape)
            out = np.concatenate([piece.reshape(view) for piece in pieces], axis=position)
        elif step.kind == "slice":
            out = cut(mine, step.atom, me)
        else:
            assert step.kind == "mask"
            out = mine if me == 0 else np.zeros_like(mine)
        result.append(out.reshape(local_out))
    return result


def total_of(locals_: list[np.ndarray], spec, mesh) -> list[np.ndarray]:
    """Pending sums added up over their axes, so that what each rank stands for can be compared."""
    for axis, placement in enumerate(spec):
        if placement.kind == "P":
            locals_ = [
                sum(locals_[peer] for peer in mesh.group(rank, axis))
                for rank in range(mesh.num_devices)
            ]
    return locals_


@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_steps_convert_every_spec_into_every_other(layout, mesh_shape) -> None:
    rng = np.random.default_rng(0)
    atoms = _core.TensorAtoms(*layout)
    cluster = Cluster.abstract(
        mesh_shape,
        alpha_us=[1.0] * len(mesh_shape),
        beta_us_per_byte=[0.5, 0.1][: len(mesh_shape)],
    )
    mesh = cluster.mesh(mesh_shape)
    dims = [int(np.prod([atoms.sizes[a] for a in dim])) for dim in atoms.dims]
    whole = rng.integers(-100, 100, dims)
    specs = all_specs(atoms, mesh_shape)
    no_pending = [_core.Placement.replicate()] * len(mesh_shape)
    kinds = set()
    for source, target in itertools.product(specs, specs):
        steps = _core.plan_reshard(atoms, "float32", source, target, mesh)
        assert steps is not None
        locals_, before = place(whole, atoms, source, mesh, rng), source
        for step in steps:
            locals_, before = apply_step(step, before, atoms, locals_, mesh), step.after
            kinds.add(step.kind)
        expected_spec = [n if p.kind == "P" else p for n, p in zip(no_pending, target, strict=True)]
        for rank, local in enumerate(total_of(locals_, target, mesh)):
            wanted = shard_of(whole, atoms, expected_spec, mesh.coordinate(rank), mesh_shape)
            np.testing.assert_array_equal(local, wanted)
    assert {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "mask"} <= kinds
