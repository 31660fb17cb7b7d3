"""What users do to model and optimizer between steps, in a plain process, against eager steps."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwright as sw


def step(model, optimizer, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def build(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def run_and_go_back(run):
    """Two steps, a copy of all state, two steps, back to the copy, two steps."""
    model, optimizer = build()
    losses = [run(model, optimizer, *batch(i)) for i in (0, 1)]
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    losses += [run(model, optimizer, *batch(i)) for i in (2, 3)]
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return losses + [run(model, optimizer, *batch(i)) for i in (2, 3)]


def alternate_models(run):
    pairs = [build(0), build(5)]
    return [run(*pair, *batch(i)) for i in range(3) for pair in pairs]


def replace_data(run):
    model, optimizer = build()
    losses = [run(model, optimizer, *batch(0))]
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5
    return losses + [run(model, optimizer, *batch(i)) for i in (1, 2)]


def freeze(run):
    model, optimizer = build()
    losses = [run(model, optimizer, *batch(0))]
    model[0].weight.requires_grad_(False)
    return losses + [run(model, optimizer, *batch(i)) for i in (1, 2)]


def switch_modes_and_shapes(run):
    model, optimizer = build()
    losses = []
    for number, (training, rows) in enumerate([(True, 8), (False, 8), (True, 4), (True, 8)]):
        model.train(training)
        x, y = batch(number)
        losses.append(run(model, optimizer, x[:rows], y[:rows]))
    return losses


@pytest.mark.parametrize(
    "scenario",
    [run_and_go_back, alternate_models, replace_data, freeze, switch_modes_and_shapes],
    ids=lambda scenario: scenario.__name__,
)
def test_losses_are_those_of_the_eager_step(scenario):
    ours, theirs = scenario(sw.parallelize(step)), scenario(step)
    assert [loss.item() for loss in ours] == pytest.approx([x.item() for x in theirs], rel=1e-5)


def test_a_second_optimizer_for_a_divided_model_is_refused():
    parallel = sw.parallelize(step)
    model, optimizer = build()
    parallel(model, optimizer, *batch(0))
    with pytest.raises(sw.ConfigError) as caught:
        parallel(model, torch.optim.AdamW(model.parameters(), lr=1e-2), *batch(1))
    assert caught.value.code == "E506"
    parallel(model, optimizer, *batch(1))  # what it holds still runs


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"memory_limit": [1]}, "E521"),
        ({"memory_limit": float("nan")}, "E521"),
        ({"memory_limit": "1KiB"}, "E203"),
        ({"mesh": 1.5}, "E522"),
        ({"mesh": "2x2"}, "E522"),
        ({"mesh": (2, 2)}, "E357"),
        ({"cluster": 3}, "E522"),
        ({"cluster": "p9"}, "E352"),
        ({"time_limit_s": "x"}, "E520"),
        ({"timeout": float("nan")}, "E505"),
    ],
)
def test_bad_options_leave_model_and_optimizer_as_they_were(options, code):
    model, optimizer = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(sw.ShardwrightError) as caught:
        sw.parallelize(**options)(step)(model, optimizer, *batch(0))
    assert caught.value.code == code
    assert not optimizer.state
    assert all(type(v) is torch.Tensor and torch.equal(v, before[k])
               for k, v in model.state_dict().items())  # fmt: skip
