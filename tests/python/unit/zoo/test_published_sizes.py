"""Parameter counts of the published models, against published counts and against Alpa's formula."""

import pytest
import torch

from shardwright import zoo


def count_parameters(target):
    """Counts the parameters of the target's model, tied ones once."""
    _, (model, *_) = target
    return sum(param.numel() for param in model.parameters())


# The name of each size, as published (reference: OSDI 2022, section 8 and the artifact's suites).
@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("gpt_125m", 0.125, 0.01),
        ("gpt_350m", 0.350, 0.02),
        ("gpt_760m", 0.760, 0.01),
        ("gpt_1_3b", 1.3, 0.02),
        ("gpt_2_6b", 2.6, 0.02),
        ("gpt_6_7b", 6.7, 0.01),
        ("gpt_15b", 15.0, 0.03),
        ("gpt_39b", 39.0, 0.01),
        ("gpt_76b", 76.0, 0.01),
        ("moe_380m", 0.380, 0.02),
        ("moe_690m", 0.690, 0.01),
        ("moe_1_3b", 1.3, 0.04),
        ("moe_2_4b", 2.4, 0.01),
        ("moe_10b", 10.0, 0.02),
        ("moe_27b", 27.0, 0.02),
        ("moe_70b", 70.0, 0.01),
        ("wide_resnet_250m", 0.250, 0.02),
        ("wide_resnet_500m", 0.500, 0.02),
        ("wide_resnet_1b", 1.0, 0.01),
        ("wide_resnet_2b", 2.0, 0.02),
        ("wide_resnet_4b", 4.0, 0.01),
        ("wide_resnet_6_8b", 6.8, 0.02),
        ("wide_resnet_13b_depth_50", 13.267, 0.0001),
        ("wide_resnet_13b_depth_101", 12.63, 0.001),
    ],
)
def test_size_is_the_published_one(name, billions, tolerance):
    assert count_parameters(getattr(zoo, name)()) == pytest.approx(billions * 1e9, rel=tolerance)


# Published to the last parameter: torchvision's ViT weights and Meta's Llama 3 8B.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit_b_16", 86_567_656), ("vit_l_16", 304_326_632), ("llama3_8b", 8_030_261_248)],
)
def test_size_is_exact(name, parameters):
    assert count_parameters(getattr(zoo, name)()) == parameters


# By hand, for hidden h, vocabulary V and s positions: a block has 4 h^2 + 4 h (attention), 8 h^2 +
# 5 h (feed-forward) and 4 h (norms); around the blocks V h + s h + 2 h.
def test_gpt_6_7b_has_the_parameters_counted_by_hand():
    h, layers, vocab, seq = 4096, 32, 51200, 1024
    expected = layers * (12 * h * h + 13 * h) + vocab * h + seq * h + 2 * h
    assert count_parameters(zoo.gpt_6_7b()) == expected == 6_658_072_576


# A pair of blocks: two attentions of 4 h^2 + 4 h, four norms of 2 h, a feed-forward of 16 h^2 + 9 h
# and E experts of 16 h^2 with a gate of E h.
def test_moe_10b_has_the_parameters_counted_by_hand():
    h, experts, pairs, vocab, seq = 1536, 32, 8, 32000, 1024
    pair = 2 * (4 * h * h + 4 * h) + 4 * 2 * h + 16 * h * h + 9 * h + experts * (16 * h * h + h)
    expected = pairs * pair + vocab * h + seq * h + 2 * h
    assert count_parameters(zoo.moe_10b()) == expected


def test_an_untied_head_is_counted_apart():
    tied = count_parameters(zoo.gpt_125m())
    untied = count_parameters(zoo.gpt_125m(tied=False))
    assert untied - tied == 51200 * 768


@pytest.mark.parametrize("name", ["gpt_39b", "moe_70b", "wide_resnet_13b_depth_50", "llama3_8b"])
def test_the_largest_models_allocate_nothing(name):
    _, (model, optimizer, inputs, targets) = getattr(zoo, name)()
    tensors = [*model.parameters(), *model.buffers(), inputs, targets]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_the_published_global_batch_can_be_asked_for():
    _, (_, _, tokens, targets) = zoo.gpt_1_3b(batch_size=zoo.GPT_PUBLISHED_GLOBAL_BATCH)
    assert tokens.shape == targets.shape == (1024, 1024)
    _, (_, _, images, labels) = zoo.wide_resnet_4b(
        batch_size=zoo.WIDE_RESNET_PUBLISHED_GLOBAL_BATCH
    )
    assert images.shape == (1536, 3, 224, 224)
    assert labels.shape == (1536,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_parameter_type_can_be_chosen(dtype):
    _, (model, *_) = zoo.gpt_350m(dtype=dtype)
    assert {param.dtype for param in model.parameters()} == {dtype}


# The meta device has no values, so a step that runs there reads none on the way.
@pytest.mark.parametrize(
    "name",
    ["gpt_1_3b", "moe_27b", "wide_resnet_250m", "llama3_8b", "vit_b_16", "mlp"],
)
def test_a_whole_step_of_published_size_runs_without_values(name):
    step, args = getattr(zoo, name)()
    loss = step(*args)
    assert loss.device.type == "meta"
    assert loss.shape == ()
