"""Ops that stand in for an op on a shard: schemas, fake kernels and edges of their ranges."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import shardwright.capture.ops
import shardwright.lowering.shard_ops

assert shardwright.capture.ops is not None
own = torch.ops.shardwright

CALLS = [
    (own.embedding_shard.default, (torch.rand(4, 6), torch.arange(8), -1, False, False, 4), {}),
    (
        own.embedding_dense_backward_shard.default,
        (torch.rand(8, 6), torch.arange(8), 4, 5, False, 4),
        {},
    ),
    (
        own.dropout_shard.default,
        (torch.rand(4, 6), torch.tensor(7), 1, 0.5, [8, 6], [4, 6], [4, 0]),
        {},
    ),
    (own.arange_shard.default, (0, 8, 1, 4, 4), {"dtype": torch.int64}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS)
def test_schema_and_fake_kernel_agree_with_the_real_kernel(op, args, kwargs) -> None:
    torch.library.opcheck(op, args, kwargs, test_utils=["test_schema", "test_faketensor"])


def test_arange_has_a_fake_result() -> None:
    with FakeTensorMode():
        result = own.arange_shard.default(0, 8, 1, 4, 4, dtype=torch.int64)
    assert tuple(result.shape) == (4,)
    assert result.dtype == torch.int64


def test_rows_of_other_ranks_are_zero() -> None:
    weight = torch.arange(8.0).view(4, 2)
    rows = own.embedding_shard.default(weight, torch.tensor([3, 4, 7, 8]), -1, False, False, 4)
    # Rows 4 to 7 of the table are rows 0 to 3 of the shard.
    assert rows.tolist() == [[0, 0], [0, 1], [6, 7], [0, 0]]


def test_padding_row_gets_no_gradient_wherever_it_lies() -> None:
    grad = torch.ones(3, 2)
    tokens = torch.tensor([4, 5, 1])
    shard = own.embedding_dense_backward_shard.default(grad, tokens, 4, 5, False, 4)
    assert shard.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


def test_dtype_of_arange_is_that_of_torch() -> None:
    assert own.arange_shard.default(0, 8, 2, 2, 2).tolist() == [4, 6]
    assert own.arange_shard.default(0, 8, 2, 2, 2).dtype == torch.int64
    assert own.arange_shard.default(0.0, 2, 0.5, 2, 2).dtype == torch.get_default_dtype()
