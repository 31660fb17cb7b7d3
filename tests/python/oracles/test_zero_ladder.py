"""The stages of ZeRO come one after the other as the memory limit is lowered, nothing else.

Source: reference tables, section 3.7 (Rajbhandari et al., SC 2020): 2 bytes of parameter, 2 of
gradient and 12 of optimizer state per parameter, divided by N from stage 3, 2 and 1 on. Two
microbatches are accumulated in the step: stage 1 adds up whole gradients and reduces them once,
stage 2 scatters them per microbatch.
"""

from functools import cache

import pytest
import torch
from tests.python.oracles.steps import byte_cluster, counts, empty
from torch import Tensor, nn

import shardwright as sw
from shardwright.capture import StepGraph, capture
from shardwright.zoo import MixedPrecisionAdamW

NUM_LAYERS, WIDTH = 64, 256
NUM_PARAMETERS = NUM_LAYERS * WIDTH**2


def step(model: nn.Module, optimizer: torch.optim.Optimizer, first: Tensor, second: Tensor) -> None:
    for x in (first, second):
        (model(x) ** 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@cache
def graph(num_devices: int) -> StepGraph:
    with torch.device("meta"):
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)]
    model = nn.Sequential(*layers).to(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(model.parameters(), lr=1e-3)
    # Enough tokens that splitting them beats splitting the weights.
    x = empty(WIDTH * max(4, num_devices // 4), WIDTH, dtype=torch.bfloat16)
    return capture(step, (model, optimizer, x, x))


def plan(num_devices: int, limit: float | None = None) -> sw.Plan:
    return sw.plan(
        graph(num_devices),
        mesh=(num_devices,),
        cluster=byte_cluster((num_devices,), alpha=1.0),
        shard_all_products=True,
        memory_limit=limit,
        time_limit_s=12,
    )


def state_per_parameter(plan: sw.Plan) -> float:
    """Bytes of parameters, accumulated gradients and optimizer state, per parameter.

    Where parameters are gathered once per step they count as whole. Stored whole and gathered
    after the update, or stored in parts and gathered before the first use and kept: at the same
    cost, which of the two a parameter gets is a tie.
    """
    stage = plan.stages[0]
    gathered_once = counts(plan).get("all_gather", 0) <= 1.05 * NUM_LAYERS
    total = 0.0
    for op in stage.ops:
        tensor = op.outputs[0]
        if len(tensor.shape) != 2:
            continue
        if op.input_kind == "optimizer_state":
            total += local_bytes(tensor.spec, plan, 4)
        elif op.input_kind == "parameter":
            total += local_bytes(("R", "R") if gathered_once else tensor.spec, plan, 2)
    for gradient in stage.gradients:
        total += local_bytes(gradient.made, plan, 2)
    return total / NUM_PARAMETERS


def local_bytes(spec: tuple[str, ...], plan: sw.Plan, element_bytes: int) -> float:
    shards = plan.mesh_shape[0] if spec[0].startswith("S") else 1
    return WIDTH**2 * element_bytes / shards


def activations_per_parameter(num_devices: int) -> float:
    """At the peak, in the second loss: each layer's input, two batches, the output and its loss."""
    tokens_per_layer = max(4, num_devices // 4) / num_devices  # of one device, in widths
    return 2 * tokens_per_layer * (1 + 4 / NUM_LAYERS)


def test_without_a_limit_everything_is_replicated_and_added_up_once() -> None:
    found = plan(8)
    assert found.certificate.status == "optimal"
    assert state_per_parameter(found) == 16
    assert counts(found) == {"all_reduce": NUM_LAYERS}


# Room beside state and activations, in bytes per parameter: for single layers that are gathered or
# reduced (2 / 64 bytes per parameter each), less than one more step of the ladder would save.
ROOM = {1: 0.01, 2: 0.03, 3: 0.08}

# Published gigabytes per device: parameters in billions, devices, and stages 1 to 3.
PUBLISHED = [(7.5, 64, 31.41, 16.64, 1.88), (1.3, 8, 7.15, 4.88, 2.6), (39, 64, 163.3, 86.5, 9.75)]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("num_devices", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_lower_limit_reaches_the_stage(num_devices: int, stage: int) -> None:
    divided = {1: 12, 2: 14, 3: 16}[stage]
    expected = 16 - divided + divided / num_devices
    limit = (expected + activations_per_parameter(num_devices) + ROOM[stage]) * NUM_PARAMETERS
    found = plan(num_devices, limit)
    assert found.peak_memory_bytes <= limit
    state = state_per_parameter(found)
    assert state == pytest.approx(expected, rel=0.02)
    for billions, devices, *stages in PUBLISHED:
        if devices == num_devices:
            assert state * billions == pytest.approx(stages[stage - 1], rel=0.02)
    collectives = counts(found)
    assert "all_reduce" not in collectives
    # Stage 1 scatters once per layer, the others in both microbatches.
    scatters = NUM_LAYERS if stage == 1 else 2 * NUM_LAYERS
    assert collectives["reduce_scatter"] == pytest.approx(scatters, rel=0.05)
    # Up to stage 2 the new parameter is gathered, in stage 3 each use gathers, four in all.
    gathers = 4 * NUM_LAYERS if stage == 3 else NUM_LAYERS
    assert collectives["all_gather"] == pytest.approx(gathers, rel=0.08)
