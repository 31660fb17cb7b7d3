"""Layer clustering from Python."""

import pytest

import shardwright as sw
from shardwright._core import cluster_layers

# Four pairs of operations; the tensor inside a pair is large, the one between pairs small.
CHAIN = {
    "flops": [5] * 8,
    "operands": [[], *([k] for k in range(7))],
    "signatures": [1, 2] * 4,
    "values": [(k, 100 if k % 2 == 0 else 3) for k in range(8)],
}


def test_cuts_fall_where_little_crosses() -> None:
    found = cluster_layers(**CHAIN)
    assert found.begins == [0, 2, 4, 6]
    assert found.entering_bytes == [0, 3, 3, 3]
    assert found.flops == [10] * 4
    assert found.class_of_layer == [0, 1, 1, 1]


def test_number_and_marks() -> None:
    assert cluster_layers(**CHAIN, num_layers=2).begins == [0, 4]
    assert cluster_layers(**CHAIN, forced_begins=[1, 5]).begins == [0, 1, 5]


def test_what_cannot_be_cut() -> None:
    with pytest.raises(sw.ProblemError, match="E222"):
        cluster_layers(**CHAIN, num_layers=9)
    with pytest.raises(sw.ProblemError, match="E222"):
        cluster_layers(flops=[1], operands=[], signatures=[1], values=[])
