"""Arithmetic of the heavy ops against torch's own flop counter."""

from __future__ import annotations

import pytest
import torch
from tests.python.unit.rules.rule_oracle import prepare
from tests.python.unit.rules.samples import all_samples
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from shardwright import _core

COUNTED_BY_TORCH = {
    "aten.mm.default",
    "aten.bmm.default",
    "aten.addmm.default",
    "aten.baddbmm.default",
    "aten.convolution.default",
    "aten.convolution_backward.default",
}


def planned_flops(sample) -> float:
    op = prepare(sample, _core.RuleRegistry())
    return op.sharded.rule(op.node)["flops"]


@pytest.mark.parametrize("name", sorted(COUNTED_BY_TORCH))
def test_products_and_convolutions_count_as_torch_counts(name: str) -> None:
    for sample in all_samples():
        if sample.name != name:
            continue
        with FlopCounterMode(display=False) as counter:
            sample.op(*sample.args, **sample.kwargs)
        assert counter.get_total_flops() > 0
        assert planned_flops(sample) == counter.get_total_flops()


def test_attention_counts_as_torch_counts() -> None:
    for sample in all_samples():
        shapes = [tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg for arg in sample.args]
        if sample.name == "shardwright.sdpa.default":
            expected = sdpa_flop_count(*shapes[:3])
        elif sample.name == "shardwright.sdpa_backward.default":
            expected = sdpa_backward_flop_count(*shapes[:4])
        else:
            continue
        assert planned_flops(sample) == expected
