"""Bytes that the search counts for stages, against the certificates of their plans."""

import dataclasses
import functools
import re

import pytest
import torch
from torch import nn

import shardwright as sw
from shardwright import _core, zoo
from shardwright.capture import capture
from shardwright.errors import InfeasibleError
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.planning import plan_options, plan_pipeline
from shardwright.pipeline.search import search_stages
from shardwright.planning import SearchRequest

# Measured over these cases: the plans' bytes are 0.889 to 1.00001 times the search's.
_LEAST, _MOST = 0.88, 1.0001


class UNet(nn.Module):
    """What each level makes on the way down is joined on the way up."""

    def __init__(self, width=8):
        super().__init__()
        sizes = [(4, 1), (1, 2), (2, 4), (4, 4), (8, 2), (4, 1), (2, 4)]
        self.convs = nn.ModuleList(
            nn.Conv2d(a if n == 0 else a * width, b if n == 6 else b * width, 3, padding=1)
            for n, (a, b) in enumerate(sizes)
        )

    def forward(self, x):
        made = []
        for conv in self.convs[:4]:
            x = torch.relu(conv(x))
            made.append(x)
        for conv, skip in zip(self.convs[4:], made[2::-1], strict=True):
            x = conv(torch.cat([torch.relu(x), skip], 1))
        return x


def _unet():
    with torch.device("meta"):
        model, images = UNet(), torch.randn(32, 4, 16, 16)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(model, optimizer, images):
        loss = (model(images) - images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, (model, optimizer, images)


def _gpt():
    return zoo.gpt(hidden=64, layers=4, heads=4, vocab=128, batch_size=16, seq_len=128)


def _wide_resnet():
    return zoo.wide_resnet(
        channels=16, width=2, stage_blocks=(1, 2), image_size=32, num_classes=64, batch_size=16
    )


@functools.cache
def _graph(make):
    return split_microbatches(capture(*make()), 4)


def _cluster(num_hosts):
    cluster = sw.Cluster.preset("p3.16xlarge", nodes=num_hosts, devices_per_host=2)
    slow = {dtype: flops / 50 for dtype, flops in cluster.peak_flops_per_us.items()}
    return dataclasses.replace(cluster, peak_flops_per_us=slow)


def _searched(monkeypatch, graph, cluster, constraints, limit):
    """What a search finds: options, and bytes by stage."""
    answers = []

    def search(*args, **kwargs):
        answers.append(found(*args, **kwargs))
        return answers[-1]

    found = _core.search_pipeline
    with monkeypatch.context() as patch:
        patch.setattr(_core, "search_pipeline", search)
        options = search_stages(graph, cluster, constraints, SearchRequest(limit))
    cuts = [(stage.num_devices, stage.recompute) for stage in options.stages]
    for answer in reversed(answers):
        stages = answer["stages"]
        sizes = [s["num_hosts"] * s["devices_per_host"] for s in stages]
        if cuts == list(zip(sizes, (s["recomputed"] for s in stages), strict=True)):
            return options, [stage["memory_bytes"] for stage in stages]
    raise AssertionError("no search found these stages")


@pytest.mark.parametrize("make", [_gpt, _wide_resnet, _unet])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
@pytest.mark.parametrize("share", [None, 0.8])
def test_the_search_counts_what_the_plans_need(monkeypatch, make, schedule, share):
    graph, cluster, constraints = _graph(make), _cluster(1), StageConstraints(2, schedule)
    options, counted = _searched(monkeypatch, graph, cluster, constraints, None)
    limit = None
    if share is not None:
        limit = int(share * max(counted))
        options, counted = _searched(monkeypatch, graph, cluster, constraints, limit)
    plan = plan_options(graph, options, cluster, SearchRequest(limit)).plan
    for stage, count in zip(plan.stages, counted, strict=True):
        assert _LEAST * count <= stage.plan.peak_memory_bytes <= _MOST * count


@pytest.mark.parametrize("make", [_gpt, _wide_resnet, _unet])
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_on_several_devices_plans_can_be_made_with_what_the_search_counts(
    monkeypatch, make, schedule
):
    """Without a limit plans may take more where that is as fast; the search's bytes are enough."""
    graph, cluster, constraints = _graph(make), _cluster(2), StageConstraints(2, schedule)
    options, counted = _searched(monkeypatch, graph, cluster, constraints, None)
    assert [stage.num_devices for stage in options.stages] == [2, 2]
    plan = plan_options(graph, options, cluster, SearchRequest(max(counted))).plan
    assert plan.peak_memory_bytes <= max(counted)


# Bytes within which every layer fits, but no stages do.
_TOO_SMALL = {_gpt: 1500000, _unet: 2500000}


@pytest.mark.parametrize("make", _TOO_SMALL)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_the_limit_that_would_do_does(make, schedule):
    graph, cluster, constraints = _graph(make), _cluster(1), StageConstraints(2, schedule)
    with pytest.raises(InfeasibleError) as raised:
        plan_pipeline(graph, cluster, constraints, SearchRequest(_TOO_SMALL[make]))
    assert raised.value.code == "E205"
    limit = int(re.search(r"(\d+) would do", str(raised.value)).group(1))
    pipeline = plan_pipeline(graph, cluster, constraints, SearchRequest(limit))
    assert pipeline.plan.peak_memory_bytes <= limit
