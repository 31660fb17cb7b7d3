"""The simulated collectives against shards computed element by element."""

import random

import numpy as np
import pytest
import torch
from tests.python.parity.index_oracle import local_outer, random_case, shard

from shardwright.runtime.simulated_collectives import SIMULATED


def tensors(arrays):
    return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", range(60))
def test_every_collective_gives_the_shards_of_the_target_spec(size, seed):
    case = random_case(random.Random(seed), size)
    values = (
        np.random.default_rng(case.seed).integers(-8, 8, (size, *case.shape())).astype(np.float64)
    )
    whole, total = values[0], values.sum(0)
    ranks = range(size)
    dim, outer = case.src[0], case.outer(case.src)
    sharded = [shard(whole, case, case.src, r) for r in ranks]

    gathered = SIMULATED["all_gather"](tensors(sharded), ranks, (dim, outer, size))
    assert all(np.array_equal(g.numpy(), whole) for g in gathered)

    scattered = SIMULATED["reduce_scatter"](tensors(values), ranks, (dim, outer, size, "sum"))
    for rank in ranks:
        assert np.array_equal(scattered[rank].numpy(), shard(total, case, case.src, rank))

    reduced = SIMULATED["all_reduce"](tensors(values), ranks, ("max",))
    assert all(np.array_equal(r.numpy(), values.max(0)) for r in reduced)

    to_outer = local_outer(case, case.dst, [case.src])
    from_outer = local_outer(case, case.src, [case.src])
    exchanged = SIMULATED["all_to_all"](
        tensors(sharded), ranks, (dim, from_outer, case.dst[0], to_outer, size)
    )
    for rank in ranks:
        assert np.array_equal(exchanged[rank].numpy(), shard(whole, case, case.dst, rank))

    for rank in ranks:
        (part,) = SIMULATED["shard_slice"](tensors([whole]), [0], (dim, outer, size, rank))
        assert np.array_equal(part.numpy(), shard(whole, case, case.src, rank))


def test_sums_go_in_ascending_order_of_ranks():
    # (1 + 1e16) - 1e16 is 0 in float64, 1 + (1e16 - 1e16) is 1
    parts = [torch.tensor([x], dtype=torch.float64) for x in (1.0, 1e16, -1e16)]
    (total, *_) = SIMULATED["all_reduce"](parts, range(3), ("sum",))
    assert total.item() == 0.0


def test_halves_are_summed_in_float32():
    # 256 + 1 + 1 is 258; in bfloat16 each single addition of 1 to 256 would be lost
    parts = [torch.tensor([x], dtype=torch.bfloat16) for x in (256.0, 1.0, 1.0)]
    (total, *_) = SIMULATED["all_reduce"](parts, range(3), ("sum",))
    assert total.dtype == torch.bfloat16
    assert total.item() == 258.0
