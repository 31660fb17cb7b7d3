"""200 plans with one choice changed: schema or certificate refuses every one."""

import copy
import random
from typing import Any

import pytest

import shardwright as sw
from shardwright import zoo
from shardwright.capture import StepGraph, capture

WORDS = ("R", "S0", "S1", "S2", "P", "S0.1")


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    target, args = zoo.gpt_tiny()
    return capture(target, args)


@pytest.fixture(scope="module")
def right(graph: StepGraph) -> dict[str, Any]:
    cluster = sw.Cluster.abstract((2, 2), alpha_us=(1, 1), beta_us_per_byte=(1, 1))
    plan = sw.plan(graph, mesh=(2, 2), cluster=cluster, shard_all_products=True)
    assert sw.Plan.from_dict(plan.to_dict()).validate(graph).status == "optimal"
    return plan.to_dict()


def change_word(rng: random.Random, spec: list[str]) -> None:
    axis = rng.randrange(len(spec))
    spec[axis] = rng.choice([word for word in WORDS if word != spec[axis]])


def corrupt(data: dict[str, Any], rng: random.Random) -> None:
    stage = data["stages"][0]
    kind = rng.choice(["operand", "output", "conversion", "kept", "dropped", "swapped"])
    if kind == "operand":
        op = rng.choice([op for op in stage["ops"] if op["operands"]])
        change_word(rng, rng.choice(op["operands"]))
    elif kind == "output":
        op = rng.choice([op for op in stage["ops"] if op["outputs"]])
        change_word(rng, rng.choice(op["outputs"])["spec"])
    elif kind == "conversion":
        change_word(rng, rng.choice(stage["conversions"])["spec"])
    elif kind == "kept":
        conversion = rng.choice([c for c in stage["conversions"] if is_meaningful(c, stage)])
        conversion["from_first"] = not conversion["from_first"]
    elif kind == "dropped":
        stage["ops"].remove(rng.choice(stage["ops"]))
    else:
        first = rng.randrange(len(stage["ops"]) - 1)
        ops = stage["ops"]
        ops[first], ops[first + 1] = ops[first + 1], ops[first]


def is_meaningful(conversion: dict[str, Any], stage: dict[str, Any]) -> bool:
    """Whether keeping differs from making anew: not where both are the value itself."""
    op = next(op for op in stage["ops"] if op["node"] == conversion["node"])
    own = op["outputs"][conversion["output"]]["spec"]
    return bool(conversion["group"] == 0 or conversion["spec"] != own)


@pytest.mark.parametrize("block", range(10))
def test_changed_choice_is_refused(block: int, graph: StepGraph, right: dict[str, Any]) -> None:
    for seed in range(20 * block, 20 * block + 20):
        data = copy.deepcopy(right)
        corrupt(data, random.Random(seed))
        with pytest.raises(sw.PlanError) as caught:
            sw.Plan.from_dict(data).validate(graph)
        assert caught.value.code in {"E314", "E323", "E324"}
