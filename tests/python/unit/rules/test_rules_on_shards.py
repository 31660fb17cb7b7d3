"""Every rule against the op itself: each strategy, run on shards, must give the whole result."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from tests.python.unit.rules.rule_oracle import Sample, check_sample
from tests.python.unit.rules.samples import all_samples

from shardwright import _core

MESHES = [(2,), (4,), (2, 2)]
# Their values are not defined, so there is nothing to compare.
WITHOUT_VALUES = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
}


# Their values are those of all microbatches or of another stage: tests of pipelines execute them.
OF_PIPELINES = {
    "shardwright.accumulate.default",
    "shardwright.collect.default",
    "shardwright.send.default",
}


def samples_by_op() -> dict[str, list[Sample]]:
    grouped = defaultdict(list)
    for sample in all_samples():
        grouped[sample.name].append(sample)
    return dict(grouped)


SAMPLES = samples_by_op()


@pytest.mark.parametrize("op", sorted(SAMPLES))
@torch.no_grad()
def test_every_strategy_gives_the_result_of_the_whole_op(op: str) -> None:
    registry = _core.RuleRegistry()
    for sample in SAMPLES[op]:
        check_sample(sample, registry, MESHES)


def test_every_builtin_rule_has_a_sample() -> None:
    uncovered = set(_core.RuleRegistry().ops()) - set(SAMPLES) - WITHOUT_VALUES
    uncovered -= OF_PIPELINES | {"input"}
    assert not uncovered
