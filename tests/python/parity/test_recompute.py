"""Steps that make forward again in backward, on simulated ranks, against the eager step."""

import json

import pytest
import torch
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.errors import PlanError
from shardwright.lowering.check import check_program
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.parity import check_pipeline_parity, run_pipeline_parity
from shardwright.pipeline.pipeline import lower_pipeline
from shardwright.pipeline.planning import plan_pipeline
from shardwright.planning import SearchRequest
from shardwright.testing import check_parity, default_dtype


def _assert_close(report):
    # The gradient of a bias of keys is zero but for rounding.
    noise = [name for name in report.errors if name.endswith("attention.qkv.bias")]
    assert max(e for name, e in report.errors.items() if name not in noise) <= 1e-12
    assert max((report.errors[name] for name in noise), default=0.0) <= 1e-8


def _in_float64(target):
    # AdamW divides the nearly zero gradients of experts that get few tokens by themselves, which
    # makes much of their rounding, with recomputation or without.
    settings = {"optimizer": "sgd"} if target == "moe_tiny" else {}
    return getattr(zoo, target)(dtype=torch.float64, **settings)


@pytest.mark.parametrize(
    ("target", "mesh", "count"),
    [
        ("mlp_integer", (2,), 1),
        ("gpt_integer", (2,), 2),
        ("gpt_integer", (2, 2), 1),
        ("wide_resnet_integer", (2,), 2),
    ],
)
def test_integers_agree_bit_for_bit_on_a_mesh(target, mesh, count):
    report = check_parity(
        lambda: getattr(zoo, target)(dtype=torch.float32),
        mesh=mesh,
        num_microbatches=count,
        recompute="full",
        dtype=torch.float32,
        cluster=slow_compute(4 if len(mesh) == 2 else 2),
    )
    assert {name: error for name, error in report.errors.items() if error != 0} == {}


@pytest.mark.parametrize("target", ["gpt_tiny", "wide_resnet_tiny", "moe_tiny", "llama_tiny"])
def test_float64_agrees_to_rounding_on_a_mesh(target):
    report = check_parity(
        lambda: _in_float64(target),
        mesh=(2,),
        num_microbatches=2,
        recompute="full",
        cluster=slow_compute(2),
    )
    _assert_close(report)


@pytest.mark.parametrize(
    ("target", "schedule"),
    [("gpt_integer", "1f1b"), ("wide_resnet_integer", "gpipe"), ("gpt_integer", "zero_bubble")],
)
def test_integers_agree_bit_for_bit_in_stages(target, schedule):
    report = check_pipeline_parity(
        lambda: getattr(zoo, target)(dtype=torch.float32),
        meshes=[(2,), (1,)],
        num_microbatches=4,
        schedule=schedule,
        recompute="full",
        dtype=torch.float32,
        cluster=slow_compute(3),
    )
    assert {name: error for name, error in report.errors.items() if error != 0} == {}


@pytest.mark.parametrize("target", ["gpt_tiny", "moe_tiny"])
def test_float64_agrees_to_rounding_in_stages(target):
    report = check_pipeline_parity(
        lambda: _in_float64(target),
        meshes=[(1,), (1,)],
        num_microbatches=2,
        recompute="full",
        cluster=slow_compute(2),
    )
    _assert_close(report)


def _gpt(dtype=torch.float32):
    return zoo.gpt_tiny(layers=4, seq_len=64, dtype=dtype, optimizer="sgd")


def test_a_pipeline_plan_brings_its_recomputation():
    with default_dtype(torch.float64):
        step, args = _gpt(torch.float64)
        plans = [
            sw.plan(
                step,
                *args,
                cluster="local-cpu:2",
                num_stages=2,
                num_microbatches=4,
                schedule="gpipe",
                recompute=recompute,
            )
            for recompute in ("none", "full")
        ]
        for kept, again in zip(plans[0].stages, plans[1].stages, strict=True):
            assert (kept.recomputed, again.recomputed) == (False, True)
            activations = [s.plan.certificate.at_peak.activations for s in (kept, again)]
            assert activations[1] < 0.6 * activations[0]
            assert again.plan.time_us > kept.plan.time_us
        loaded = sw.PipelinePlan.from_dict(json.loads(json.dumps(plans[1].to_dict())))
        graph = capture(step, args)
        loaded.validate(graph)
        pipeline = lower_pipeline(graph, loaded)
        for program in pipeline.programs:
            check_program(program)
    report = run_pipeline_parity(
        lambda: _gpt(torch.float64), pipeline, steps=1, dtype=torch.float64
    )
    _assert_close(report)


def test_one_stage_alone_can_recompute():
    step, args = _gpt()
    graph = capture(step, args)
    constraints = StageConstraints(2, stage_meshes=((1,), (1,)))
    machines = sw.Cluster.local_cpu(2)
    whole = plan_pipeline(graph, machines, constraints, SearchRequest(recompute="full"))
    assert all(
        any(node.meta.get("recomputed") for node in part.graph_module.graph.nodes)
        for part in whole.stages.graphs
    )


def test_a_plan_brings_its_recomputation(tmp_path):
    step, args = _gpt()
    graph = capture(step, args)
    plan = sw.plan(step, *args, mesh=1, recompute="full", num_microbatches=2)
    assert plan.recompute == "full"
    plan.validate(graph)
    plan.save(tmp_path / "plan.json")
    loaded = sw.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    train_step = sw.parallelize(plan=tmp_path / "plan.json", num_microbatches=2)(step)
    loss = train_step(*args)
    assert train_step.plan == plan
    again, fresh = _gpt()
    assert torch.allclose(loss, again(*fresh), rtol=1e-5)
    document = plan.to_dict()
    document["recompute"] = "none"
    with pytest.raises(PlanError) as caught:
        sw.Plan.from_dict(document).validate(graph)
    assert caught.value.code == "E325"


def test_a_plain_process_recomputes():
    step, args = _gpt()
    train_step = sw.parallelize(recompute="full")(step)
    loss = train_step(*args)
    assert train_step.plan.recompute == "full"
    again, fresh = _gpt()
    assert torch.allclose(loss, again(*fresh), rtol=1e-5)
