"""Transfers between stages on real Gloo processes, against cutting the whole tensor."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.python.distributed.process_group import init_gloo, run_ranks
from tests.python.unit.transfer_oracle import shards_of, specs_of

import shardwright as sw
from shardwright import _core
from shardwright.runtime.stage_transfer import StageTransfer

pytestmark = pytest.mark.distributed

# Atom sizes and dims: a matrix, a fused weight, a dim of two atoms turned round.
LAYOUTS = [
    ((4, 8), ((0,), (1,))),
    ((3, 4, 2), ((0, 1), (2,))),
    ((4, 2, 4), ((2,), (1, 0))),
]


def cluster(intra: float) -> _core.Cluster:
    result = _core.Cluster()
    result.num_hosts, result.devices_per_host = 8, 1
    result.inter_host = _core.Link(1.0, 0.0, 0.0)
    result.intra_host = _core.Link(intra, 0.0, 0.0)
    return result


def mesh(shape, ranks, hosts):
    return _core.Submesh(shape, ranks, hosts if isinstance(hosts, list) else [hosts] * len(ranks))


def values(atoms, dtype, microbatch: int) -> np.ndarray:
    shape = [int(np.prod([atoms.sizes[a] for a in dim])) for dim in atoms.dims]
    bits = np.random.default_rng(microbatch).integers(0, 2, shape)
    return (np.arange(bits.size).reshape(shape) * (microbatch + 1) + bits).astype(dtype)


def every_pair(rank, world, source_ranks, source_shape, target_ranks, target_shape, hosts):
    init_gloo(rank, world)
    source_mesh = mesh(source_shape, source_ranks, hosts[0])
    target_mesh = mesh(target_shape, target_ranks, hosts[1])
    groups = {"group": dist.new_group(list(range(world)))}
    gather_group = dist.new_group(target_ranks)
    if rank in target_ranks:
        groups["gather_group"] = gather_group
    every = [
        (atoms, source, target)
        for atoms in (_core.TensorAtoms(*layout) for layout in LAYOUTS)
        for source in specs_of(atoms, source_shape)
        for target in specs_of(atoms, target_shape)
    ]
    kinds = set()
    for index, (atoms, source, target) in enumerate(every):
        # A slow port favours parts and gathers, a fast one whole tiles passed on.
        on = cluster([0.5, 50][index % 2])
        plan = _core.plan_transfer(atoms, "float32", source, source_mesh, target, target_mesh, on)
        kinds |= {step.kind for step in plan.steps}
        transfer = StageTransfer(
            plan, rank, torch.device("cpu"), stages=(0, 1), index=index, **groups
        )
        under_way = []
        for microbatch in range(2):
            whole = values(atoms, np.float32, microbatch)
            part = shards_of(whole, atoms, source, source_mesh).get(rank)
            shard = None if part is None else torch.from_numpy(part)
            under_way.append((whole, transfer.start(shard, microbatch)))
        for whole, pending in under_way:
            result = pending.wait()
            if rank not in target_ranks:
                assert result is None
                continue
            expected = shards_of(whole, atoms, target, target_mesh)[rank]
            assert result.is_contiguous()
            assert np.array_equal(result.numpy().view(np.int32), expected.view(np.int32))
    return kinds


# Source ranks and shape, target ranks and shape, hosts of both.
CASES = {
    "1->1": ([0], (1,), [1], (1,), (0, 1)),
    "1->2": ([0], (1,), [1, 2], (2,), (0, 1)),
    "2->1": ([0, 1], (2,), [2], (1,), (0, 1)),
    "2->2": ([0, 1], (2,), [2, 3], (1, 2), (0, 1)),
    "2->2 on one host": ([2, 0], (2,), [3, 1], (2,), (0, 0)),
    "2->2 with a rank in both": ([0, 1], (2,), [2, 1], (2,), (0, 0)),
    "1->3 on two hosts": ([0], (1,), [3, 1, 2], (3,), (0, [1, 2, 1])),
}
KINDS = {
    "1->2": {"send", "gather"},
    "2->2": {"send", "gather"},
    "2->2 with a rank in both": {"copy", "send"},
    "1->3 on two hosts": {"send", "relay", "gather"},
}


@pytest.mark.parametrize("name", CASES)
def test_every_pair_of_specs_arrives_bitwise(name):
    case = CASES[name]
    world = 1 + max(case[0] + case[2])
    kinds = set().union(*run_ranks(world, every_pair, *case))
    assert kinds == KINDS.get(name, {"send"})


def every_dtype(rank, world):
    init_gloo(rank, world)
    atoms = _core.TensorAtoms((4, 6), ((0,), (1,)))
    meshes = mesh((1,), [0], 0), mesh((1,), [1], 1)
    plain = [_core.Placement.replicate()]
    for index, name in enumerate(DTYPES):
        plan = _core.plan_transfer(atoms, name, plain, meshes[0], plain, meshes[1], cluster(1.0))
        transfer = StageTransfer(
            plan, rank, torch.device("cpu"), stages=(0, 1), index=index, group=dist.group.WORLD
        )
        whole = (torch.arange(24).view(4, 6) % 3).to(getattr(torch, name))
        # A shard that is no dense row-major tensor is packed all the same.
        shard = whole.t().contiguous().t() if rank == 0 else None
        result = transfer.start(shard, 0).wait()
        assert rank == 0 or torch.equal(result, whole), name


DTYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
]  # fmt: skip


def test_every_dtype_travels():
    run_ranks(2, every_dtype)


def misuse(rank, world):
    init_gloo(rank, world)
    atoms = _core.TensorAtoms((4, 6), ((0,), (1,)))
    meshes = mesh((1,), [0], 0), mesh((1,), [1], 1)
    plain = [_core.Placement.replicate()]
    plan = _core.plan_transfer(atoms, "float32", plain, meshes[0], plain, meshes[1], cluster(1.0))
    arguments = {"stages": (0, 1), "index": 0}
    codes = []
    alone = [dist.new_group([r]) for r in range(world)][rank]
    try:
        StageTransfer(plan, rank, torch.device("cpu"), group=alone, **arguments)
    except sw.InternalError as error:
        codes.append(error.code)
    transfer = StageTransfer(
        plan, rank, torch.device("cpu"), group=dist.group.WORLD, **arguments
    )  # fmt: skip
    for shard in (None, torch.zeros(4, 5), torch.zeros(4, 6, dtype=torch.float64)):
        if rank == 0:
            try:
                transfer.start(shard, 0)
            except sw.InternalError as error:
                codes.append(error.code)
    return codes


def test_groups_and_shards_that_do_not_fit_are_coded_errors():
    first, second = run_ranks(2, misuse)
    assert first == ["E902"] * 4
    assert second == ["E902"]
