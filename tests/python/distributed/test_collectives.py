"""The C++ collectives on real Gloo processes, and their operator contracts."""

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.python.distributed.process_group import init_gloo, run_ranks
from tests.python.parity.index_oracle import local_outer, random_case, shard

from shardwright.runtime import collectives

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def _local(array, dtype):
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def _check_case(seed, rank, size, group, dtype):
    ops = torch.ops.shardwright
    case = random_case(random.Random(seed), size)
    values = (
        np.random.default_rng(case.seed).integers(0, 8, (size, *case.shape())).astype(np.float64)
    )
    if dtype == torch.bool:
        values = values % 2
    whole, dim = values[0], case.src[0]
    outer = case.outer(case.src)
    mine = _local(shard(whole, case, case.src, rank), dtype)

    def same(result, expected):
        assert result.dtype == dtype
        assert result.is_contiguous()
        assert torch.equal(result, _local(expected, dtype)), (seed, dtype, result, expected)

    same(ops.all_gather(mine, dim, outer, size, group), whole)
    same(
        ops.shard_slice(_local(whole, dtype), dim, outer, size, rank),
        shard(whole, case, case.src, rank),
    )
    same(
        ops.all_to_all(
            mine, dim, local_outer(case, case.src, [case.src]), case.dst[0],
            local_outer(case, case.dst, [case.src]), size, group,
        ),
        shard(whole, case, case.dst, rank),
    )  # fmt: skip
    kinds = ["max", "min"] if dtype == torch.bool else ["sum", "max", "min"]
    for kind in kinds:
        total = {"sum": values.sum(0), "max": values.max(0), "min": values.min(0)}[kind]
        partial = _local(values[rank], dtype)
        before = partial.clone()
        same(ops.all_reduce(partial, kind, group), total)
        same(
            ops.reduce_scatter(partial, dim, outer, size, kind, group),
            shard(total, case, case.src, rank),
        )
        assert torch.equal(partial, before)
    same(ops.mask_partial(mine, True), shard(whole, case, case.src, rank))
    same(ops.mask_partial(mine, False), 0 * shard(whole, case, case.src, rank))


def _all_cases(rank, world):
    init_gloo(rank, world)
    group = dist.group.WORLD.group_name
    for seed in range(30):
        _check_case(seed, rank, world, group, DTYPES[seed % len(DTYPES)])
    # a transposed input, as a backward pass hands it over
    wide = torch.arange(8.0 * world).reshape(world, 8).t() + rank
    total = torch.ops.shardwright.all_reduce(wide, "sum", group)
    expected = world * torch.arange(8.0 * world).reshape(world, 8).t() + world * (world - 1) / 2
    assert torch.equal(total, expected)
    collectives.begin_step(7)
    torch.ops.shardwright.all_reduce(torch.ones(4), "sum", group)
    torch.ops.shardwright.all_gather(torch.ones(4), 0, 1, world, group)
    return collectives.ledger_entries(2)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 4])
def test_collectives_give_the_shards_of_the_target_spec(world):
    for entries in run_ranks(world, _all_cases):
        # ordinals count from 0 within step 7; bytes are the V of the cost formula
        assert [(e["step"], e["ordinal"], e["op"], e["bytes"], e["done"]) for e in entries] == [
            (7, 0, "all_reduce", 16, True),
            (7, 1, "all_gather", 16 * world, True),
        ]


@pytest.fixture
def single_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


def _samples(group):
    x = torch.arange(24.0).reshape(4, 6)
    ops = torch.ops.shardwright
    return [
        (ops.all_gather.default, (x, 0, 2, 1, group)),
        (ops.reduce_scatter.default, (x, 1, 3, 1, "sum", group)),
        (ops.all_reduce.default, (x.t(), "max", group)),
        (ops.all_to_all.default, (x, 0, 1, 1, 2, 1, group)),
        (ops.shard_slice.default, (x, 1, 1, 3, 2)),
        (ops.mask_partial.default, (x, False)),
        (ops.mask_partial.default, (x.t(), True)),
    ]


@pytest.mark.parametrize("index", range(7))
def test_operators_keep_torchs_contract(single_group, index):
    op, args = _samples(single_group)[index]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, args, test_utils=tests)


def test_fake_kernels_scale_the_right_dims():
    x = torch.empty(4, 6, device="meta")
    ops = torch.ops.shardwright
    assert ops.all_gather(x, 1, 1, 4, "none").shape == (4, 24)
    assert ops.reduce_scatter(x, 0, 1, 4, "sum", "none").shape == (1, 6)
    assert ops.all_to_all(x, 1, 1, 0, 1, 2, "none").shape == (2, 12)
    assert ops.shard_slice(x, 1, 1, 3, 0).shape == (4, 2)


def test_an_unknown_group_is_a_failure_in_the_ledger():
    collectives.begin_step(3)
    with pytest.raises(RuntimeError):
        torch.ops.shardwright.all_reduce(torch.ones(2), "sum", "no such group")
    failure = collectives.take_failure()
    assert failure is not None
    assert (failure["step"], failure["ordinal"], failure["op"]) == (3, 0, "all_reduce")
    assert failure["group"] == "no such group"
    assert collectives.take_failure() is None


def test_a_size_that_does_not_divide_is_an_error():
    with pytest.raises(RuntimeError, match="E902"):
        torch.ops.shardwright.shard_slice(torch.ones(5), 0, 1, 2, 0)
