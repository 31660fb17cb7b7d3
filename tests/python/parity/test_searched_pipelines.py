"""Stages as the search finds them, simulated, against the eager step on one device."""

import pytest
import torch
from tests.python.parity.clusters import slow_compute

from shardwright import zoo
from shardwright.capture import capture
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.parity import run_pipeline_parity
from shardwright.pipeline.planning import plan_pipeline
from shardwright.planning import SearchRequest
from shardwright.testing import build_step, default_dtype


def _searched(target, num_stages, num_devices, count, schedule, dtype, settings):
    def make_step():
        return getattr(zoo, target)(dtype=dtype, **settings)

    with default_dtype(dtype):
        step, args = build_step(make_step, dtype)
        graph = split_microbatches(capture(step, args), count)
        pipeline = plan_pipeline(
            graph,
            slow_compute(num_devices),
            StageConstraints(num_stages, schedule),
            SearchRequest(),
        )
        return pipeline, run_pipeline_parity(make_step, pipeline, steps=3, dtype=dtype)


@pytest.mark.parametrize(
    ("target", "num_stages", "num_devices", "schedule", "settings"),
    [
        ("gpt_integer", 2, 2, "1f1b", {}),
        ("gpt_integer", 3, 4, "zero_bubble", {"layers": 4}),
        ("gpt_integer", None, 4, "1f1b", {"layers": 4}),
        ("wide_resnet_integer", 2, 4, "gpipe", {}),
        ("wide_resnet_integer", 3, 4, "1f1b", {}),
    ],
)
def test_integers_agree_bit_for_bit(target, num_stages, num_devices, schedule, settings):
    pipeline, report = _searched(
        target, num_stages, num_devices, 4, schedule, torch.float32, settings
    )
    assert num_stages in (None, len(pipeline.plans))
    assert {name: error for name, error in report.errors.items() if error != 0} == {}
    assert pipeline.plan.certificate.status == "optimal"
    assert pipeline.plan.num_devices == num_devices


@pytest.mark.parametrize("target", ["gpt_tiny", "wide_resnet_tiny"])
def test_float64_agrees_to_rounding(target):
    pipeline, report = _searched(target, 3, 4, 2, "1f1b", torch.float64, {})
    # 1 + 1 + 2 devices, in some order.
    assert sorted(len(pipeline.ranks_of(stage)) for stage in range(3)) == [1, 1, 2]
    noise = [name for name in report.errors if name.endswith("attention.qkv.bias")]
    assert max(e for name, e in report.errors.items() if name not in noise) <= 1e-12
    assert max((report.errors[name] for name in noise), default=0.0) <= 1e-8
