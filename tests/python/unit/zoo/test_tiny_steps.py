"""The tiny targets run on one CPU process, learn, and are the same on every call."""

import pytest
import torch

from shardwright import zoo

TINY = ["gpt_tiny", "llama_tiny", "mlp_tiny", "moe_tiny", "vit_tiny", "wide_resnet_tiny"]
LANGUAGE = ["gpt_tiny", "llama_tiny", "moe_tiny"]


def run(target, steps):
    """Returns the losses of so many steps on the target's one batch."""
    step, args = target
    return [step(*args).item() for _ in range(steps)]


# One batch, so the model can learn it by heart: 30 steps at least halve the loss.
@pytest.mark.parametrize("name", TINY)
def test_loss_halves_on_one_batch(name):
    losses = run(getattr(zoo, name)(), 30)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("name", TINY)
def test_same_seed_gives_same_losses_and_another_seed_does_not(name):
    make = getattr(zoo, name)
    assert run(make(), 3) == run(make(), 3)
    assert run(make(), 3) != run(make(seed=1), 3)


@pytest.mark.parametrize("name", TINY)
def test_building_leaves_the_random_state_alone(name):
    before = torch.random.get_rng_state()
    getattr(zoo, name)()
    assert torch.equal(torch.random.get_rng_state(), before)


# A uniform guess over 64 tokens costs ln 64 = 4.159 nats.
@pytest.mark.parametrize("name", LANGUAGE)
def test_first_loss_is_that_of_a_uniform_guess(name):
    assert run(getattr(zoo, name)(), 1)[0] == pytest.approx(4.159, abs=0.1)


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_learn_too(name, dtype):
    losses = run(getattr(zoo, name)(dtype=dtype), 30)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("name", TINY)
def test_steps_run_in_float64(name):
    step, args = getattr(zoo, name)(dtype=torch.float64)
    assert step(*args).dtype == torch.float64


# Not so for experts: a later token's first choice can take the seat of an earlier second choice.
@pytest.mark.parametrize("name", ["gpt_tiny", "llama_tiny"])
def test_later_tokens_do_not_change_earlier_logits(name):
    _, (model, _, tokens, _) = getattr(zoo, name)(batch_size=1)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 64
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_tied_head_stays_tied_through_a_step():
    step, args = zoo.gpt_tiny()
    step(*args)
    model = args[0]
    assert model.head.weight is model.token_embedding.weight


def test_either_optimizer_can_be_chosen():
    for name, kind in (("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        _, (_, optimizer, *_) = zoo.wide_resnet_tiny(optimizer=name)
        assert isinstance(optimizer, kind)


@pytest.mark.parametrize(
    "make",
    [
        lambda: zoo.gpt_tiny(hidden=30),
        lambda: zoo.llama_tiny(kv_heads=3),
        lambda: zoo.moe_tiny(layers=3),
        lambda: zoo.moe_tiny(group_size=48),
        lambda: zoo.vit_tiny(patch_size=5),
    ],
)
def test_dims_that_do_not_fit_are_refused(make):
    with pytest.raises(ValueError, match=r"multiple|even"):
        make()
