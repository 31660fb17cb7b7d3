"""Searched pipelines against published ones: never slower, and of the published shape.

Sources: Alpa (OSDI 2022), tables 5 to 7, and the plans of its artifact, for the stages that are
priced (benchmarks/pipelines.py has them); reference tables, section 3.4, for Wide-ResNet on eight
devices; their plans of 32 devices. docs/concepts/oracles.md says where and why ours differ.

All of it, slow tests too: pytest tests/python/oracles/test_pipeline_plans.py
"""

import json
from functools import cache

import pytest
from benchmarks.pipelines import PUBLISHED, RESULTS, captured, priced, summary

import shardwright as sw
from shardwright.capture import StepGraph
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.plan import PipelinePlan, PipelineStage
from shardwright.planning import SearchRequest

GIB = 2**30
# More than any stage needs: that all plans fit is the subject of benchmarks/pipelines.py.
NO_LIMIT = 2**60


@cache
def graph(name: str) -> StepGraph:
    published = PUBLISHED[name]
    return split_microbatches(captured(name, published), published.num_microbatches)


def found(name: str, limit: int = NO_LIMIT, num_stages: int | str = "auto") -> PipelinePlan:
    plan = sw.plan(
        graph(name),
        cluster=PUBLISHED[name].cluster,
        num_stages=num_stages,
        memory_limit=limit,
        time_limit_s=600,  # for all searches, also on busy machines
    )
    assert isinstance(plan, PipelinePlan)
    return plan


def layer_of(begin: str, graph: StepGraph, list_name: str) -> int:
    """Number of the block in which a stage begins."""
    if not begin:
        return 0
    node = next(n for n in graph.graph_module.graph.nodes if n.name == begin)
    parts = str(node.meta["module_path"]).split(".")
    return int(parts[parts.index(list_name) + 1])


def is_sharded(stage: PipelineStage, suffix: str) -> bool:
    """Whether any input of that name is divided."""
    inputs = stage.plan.inputs.items()
    return any("S" in tensor.text for name, tensor in inputs if name.endswith(suffix))


@pytest.mark.parametrize(
    "name",
    [
        "gpt_1_3b",
        "moe_690m",
        "wide_resnet_500m",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in PUBLISHED
            if name not in ("gpt_1_3b", "moe_690m", "wide_resnet_500m", "gpt_39b")
        ),
        # In the memory of its devices ours is faster (pipelines.json).
        pytest.param(
            "gpt_39b",
            marks=[
                pytest.mark.slow,
                pytest.mark.xfail(
                    strict=True,
                    raises=AssertionError,
                    reason="0.17 % slower without a limit: the model has the last stage, which is "
                    "the longest, wait for transfers that the shorter ones before it hide",
                ),
            ],
        ),
    ],
)  # fmt: skip
def test_no_published_pipeline_is_faster(name: str) -> None:
    request = SearchRequest(memory_limit_bytes=NO_LIMIT)
    published = priced(graph(name), PUBLISHED[name], request)
    assert [list(s.ranks) for s in published.stages] == [
        list(range(s.first_rank, s.first_rank + s.num_devices)) for s in PUBLISHED[name].stages
    ]
    assert found(name).time_us <= published.time_us * (1 + 1e-9)


# The comparisons under limits of memory, which take longer: their results are kept.
def test_no_published_pipeline_was_faster_within_the_memory() -> None:
    rows = {row["case"]: row for row in json.loads(RESULTS.read_text())["rows"]}
    page = (RESULTS.parents[2] / "docs/concepts/oracles.md").read_text()
    assert list(rows) == list(PUBLISHED)
    for row in rows.values():
        assert row["ratios"]
        assert max(row["ratios"].values()) <= 1
        assert {"command", "versions", "machine"} <= row.keys()
        assert summary(row) in page


# Published: 8 + 8 blocks on 4 + 4 devices, the first data parallel, the second with its weights
# divided: 1,715 M parameters with gradient and momentum in float32 are 19.2 GiB. Ours are two
# stages when it is asked for two; without recomputation two microbatches in flight need more than
# the 16 GiB of a device, with it they fit.
@pytest.mark.parametrize(
    ("limit", "recomputed"),
    [(24 * GIB, False), pytest.param(16 * GIB, True, marks=pytest.mark.slow)],
)
def test_wide_resnet_on_eight_devices_is_cut_as_published(limit: int, recomputed: bool) -> None:
    plan = found("wide_resnet_2b", limit, num_stages=2)
    first, last = plan.stages
    assert (len(first.ranks), len(last.ranks)) == (4, 4)
    assert layer_of(last.begin, graph("wide_resnet_2b"), "blocks") in (7, 8)
    # The first stage splits the batch over all of its devices and holds its weights whole.
    assert first.plan.mesh_shape == (4,)
    assert not is_sharded(first, "conv2.weight")
    assert sum(tensor.text == "S0 R R R" for tensor in first.plan.inputs.values()) >= 1
    # The last divides weights among its devices.
    assert is_sharded(last, "conv2.weight") or is_sharded(last, "conv3.weight")
    assert plan.peak_memory_bytes <= limit
    assert (first.recomputed, last.recomputed) == (recomputed, False)


# Published: 5, 4, 4 and 3 blocks on a host each. 241, 878, 1,389 and 4,207 M parameters with
# gradient and momentum in float32 are 2.7, 9.8, 15.5 and 47.0 GiB: the first stage can hold its
# weights whole, the last has to divide them. The first has nearly twice the work of the last (1.41
# and 0.81 s); asked for four stages, ours even that out on 16, 4, 8 and 4 devices. What the stages
# do with their devices is as published.
@pytest.mark.slow
def test_wide_resnet_on_32_devices_splits_batch_first_and_channels_last() -> None:
    name, limit = "wide_resnet_6_8b", 32 * GIB
    request = SearchRequest(memory_limit_bytes=limit)
    published = priced(graph(name), PUBLISHED[name], request)
    ours = found(name, limit, num_stages=4)
    assert len(ours.stages) == 4
    assert sum(len(stage.ranks) for stage in ours.stages) == 32
    assert ours.time_us < published.time_us
    for plan in (published, ours):
        first, last = plan.stages[0], plan.stages[-1]
        assert first.plan.inputs["images"].text in ("S0 R R R", "S01 R R R")
        assert not is_sharded(first, "conv2.weight")
        assert is_sharded(last, "conv2.weight")
        assert plan.peak_memory_bytes <= limit


# The layers of a GPT are alike: devices follow the work. Published: 2 + 2 + 4 of 8 devices for
# 2 + 2 + 4 of 8 equal parts of the layers; 2 + 2 of 4 for two halves.
@pytest.mark.parametrize("name", ["gpt_1_3b", pytest.param("gpt_2_6b", marks=pytest.mark.slow)])
def test_stages_of_gpt_have_devices_in_proportion_to_their_layers(name: str) -> None:
    plan = found(name)
    busy = plan.simulation.busy_us
    assert sum(len(stage.ranks) for stage in plan.stages) == PUBLISHED[name].devices
    assert min(busy) > 0.95 * max(busy)
    begins = [layer_of(s.begin, graph(name), "layers") for s in plan.stages]
    ends = [*begins[1:], sum(PUBLISHED[name].blocks)]
    per_device = sum(PUBLISHED[name].blocks) / PUBLISHED[name].devices
    # The head counts like some two layers; a stage may begin in the middle of one.
    for stage, begin, end in zip(plan.stages, begins, ends, strict=True):
        assert abs((end - begin) - per_device * len(stage.ranks)) <= 3
