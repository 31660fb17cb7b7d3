"""The check on shards is itself checked: rules that are wrong in a plausible way must fail it."""

from __future__ import annotations

import pytest
import torch
from tests.python.unit.rules.rule_oracle import Sample, check_sample

from shardwright import _core

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0, 3.0, 4.0], [2.0, 0.5, -1.0, 8.0]], dtype=torch.float64)
WRONG_RULES = [
    # A normalized dim is not parallel.
    (aten._softmax.default, (X, -1, False), "a b -> a b", []),
    # A running sum is not parallel along its dim.
    (aten.cumsum.default, (X, 1), "a b -> a b", []),
    # relu(a) + relu(b) is not relu(a + b).
    (aten.relu.default, (X,), "a b -> a b", [[0]]),
    # Adding a scalar is affine, not linear.
    (aten.add.Scalar, (X, 1), "a b -> a b", [[0]]),
    # A product is linear in each factor, not in both at once.
    (aten.mul.Tensor, (X, X), "a b, a b -> a b", [[0, 1]]),
    # A sum is linear in both terms at once, not in each.
    (aten.add.Tensor, (X, X), "a b, a b -> a b", [[0]]),
    # The mean of a half is not a summand of the mean.
    (aten.mean.dim, (X, [1]), "a b -> a", []),
    # The largest element is not a sum over shards.
    (aten.amax.default, (X, [1]), "a b -> a", []),
    # Positions within a shard are not positions within the whole.
    (aten.argmax.default, (X, 1), "a b -> a", []),
    # The added row would be added once per shard of the inner dim.
    (aten.addmm.default, (X[0, :2], X, X.T.contiguous()), "n, m k, k n -> m n", []),
]


@pytest.mark.parametrize(("op", "args", "notation", "linear"), WRONG_RULES)
def test_a_wrong_rule_fails(op, args, notation, linear) -> None:
    registry = _core.RuleRegistry()
    registry.add(str(op), notation, linear, {})
    with pytest.raises(AssertionError):
        check_sample(Sample(op, args, exact=False), registry, [(2,)])


def test_a_right_rule_in_notation_passes() -> None:
    registry = _core.RuleRegistry()
    registry.add("aten.mm.default", "m k, k n -> m n", [[0], [1]], {})
    sample = Sample(aten.mm.default, (X, X.T.contiguous()), exact=False)
    # Replicated, m, k, n, and two pending forms; m and n have size 2, k 4.
    assert check_sample(sample, registry, [(2,)]) == 6
