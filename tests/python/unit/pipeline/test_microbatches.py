"""Steps cut into microbatches, run op by op, against the user's eager step on the whole batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shardwright import zoo
from shardwright.capture import capture, read_inputs, sort_arguments, write_updates
from shardwright.errors import ConfigError, PlanError
from shardwright.pipeline.microbatches import split_microbatches

ACCUMULATE = torch.ops.shardwright.accumulate.default


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Net(nn.Module):
    """Two layers; samples do not meet."""

    def __init__(self, width=8, classes=5):
        super().__init__()
        self.first = nn.Linear(width, 12)
        self.second = nn.Linear(12, classes)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def _build(step, seed=0, model=Net, batch=8):
    torch.manual_seed(seed)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(batch, 8)
    targets = torch.randint(5, (batch,))
    return step, (net, optimizer, inputs, targets)


def _train(loss_of):
    def step(model, optimizer, inputs, targets):
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _captured_run(step, args, num_microbatches, steps=2, seed=0):
    """Results of every step of the graph in microbatches, which updates the arguments."""
    graph = split_microbatches(capture(step, args), num_microbatches)
    found = []
    for number in range(steps):
        arguments = sort_arguments(step, args, {})
        values = read_inputs(graph, arguments, seed=seed + number)
        found.append(write_updates(graph, arguments, graph.run_reference(values)))
    return found, graph


def _errors(build, num_microbatches, steps=2):
    """Largest absolute differences of results and of parameters from the eager step."""
    step, args = build()
    found, graph = _captured_run(step, args, num_microbatches, steps)
    step, reference = build()
    expected = [step(*reference) for _ in range(steps)]
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        ours = ours if isinstance(ours, tuple) else (ours,)
        theirs = theirs if isinstance(theirs, tuple) else (theirs,)
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            worst = max(worst, float((a - b).abs().max()))
    for (name, a), b in zip(
        args[0].state_dict().items(), reference[0].state_dict().values(), strict=True
    ):
        assert a.shape == b.shape, name
        worst = max(worst, float((a - b).abs().max()))
    return worst, graph


@pytest.mark.parametrize("target", ["mlp_integer", "gpt_integer", "wide_resnet_integer"])
@pytest.mark.parametrize("count", [2, 8])
def test_integers_are_equal_bit_for_bit(target, count):
    torch.set_default_dtype(torch.float32)
    worst, graph = _errors(lambda: getattr(zoo, target)(), count, steps=3)
    assert worst == 0.0
    assert graph.num_microbatches == count


@pytest.mark.parametrize("target", ["mlp_tiny", "llama_tiny", "moe_tiny"])
def test_float64_agrees_to_rounding(target):
    worst, _ = _errors(lambda: getattr(zoo, target)(dtype=torch.float64), 2)
    assert worst < 1e-12


LOSSES = {
    "mean": lambda m, x, y: F.cross_entropy(m(x), y),
    "sum": lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"),
    "smoothed": lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    "root": lambda m, x, y: F.mse_loss(m(x).sum(1), y.to(x.dtype)),
    "decayed": lambda m, x, y: (
        F.cross_entropy(m(x), y) + 0.01 * sum((p * p).sum() for p in m.parameters())
    ),
}


def _ignore(model, inputs, targets):
    return F.cross_entropy(model(inputs), targets)


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("count", [2, 4, 8])
def test_losses_and_gradients_are_those_of_the_whole_batch(loss, count):
    worst, _ = _errors(lambda: _build(_train(LOSSES[loss])), count)
    assert worst < 1e-13


def test_targets_that_do_not_count_are_counted_over_the_whole_batch():
    def build():
        step, (model, optimizer, inputs, targets) = _build(_train(_ignore))
        targets[torch.tensor([0, 1, 3])] = -100
        return step, (model, optimizer, inputs, targets)

    for count in (2, 4, 8):  # in 8 parts some have no target at all
        worst, graph = _errors(build, count)
        assert worst < 1e-13
        assert [s.leaf for s in graph.inputs if s.leaf] == ["targets"]


def test_clipping_uses_the_norm_of_the_whole_gradient():
    def step(model, optimizer, inputs, targets):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    worst, _ = _errors(lambda: _build(step), 4)
    assert worst < 1e-13


def test_a_tied_weight_is_accumulated_once():
    worst, graph = _errors(lambda: zoo.gpt_tiny(dtype=torch.float64), 2, steps=1)
    assert worst < 1e-9  # AdamW divides the gradient of key biases, pure rounding, by its size
    nodes = list(graph.graph_module.graph.nodes)
    shape = next(s.meta.shape for s in graph.inputs if s.name == "token_embedding.weight")
    assert sum(n.target is ACCUMULATE and n.meta["val"].shape == shape for n in nodes) == 1


def test_results_of_samples_are_joined():
    def step(model, optimizer, inputs, targets):
        logits = model(inputs)
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, logits, logits.t(), logits.argmax(1), loss.exp()

    worst, _ = _errors(lambda: _build(step), 4)
    assert worst < 1e-13


def test_sums_of_16_bit_gradients_are_kept_in_float32():
    torch.set_default_dtype(torch.bfloat16)
    step, args = _build(_train(LOSSES["mean"]))
    _, graph = _captured_run(step, args, 2, steps=1)
    sums = [n for n in graph.graph_module.graph.nodes if n.target is ACCUMULATE]
    assert len(sums) >= 4
    assert {n.meta["val"].dtype for n in sums} == {torch.float32}


class NormNet(nn.Module):
    """Batch norm between two layers, and one over images."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(12)
        self.second = nn.Conv1d(3, 5, 1)
        self.norm2 = nn.BatchNorm1d(5)

    def forward(self, x):
        h = self.norm(self.first(x)).reshape(-1, 3, 4)
        return self.norm2(self.second(h)).mean(2)


@pytest.mark.parametrize("count", [2, 4])
def test_batch_norm_has_the_statistics_of_each_microbatch(count):
    """The oracle is the eager loop over microbatches that accumulates gradients."""
    step = _train(_ignore)
    _, args = _build(step, model=NormNet, batch=16)
    found, _ = _captured_run(step, args, count, steps=3)
    _, (model, optimizer, inputs, targets) = _build(step, model=NormNet, batch=16)
    for ours in found:
        total = 0.0
        for x, y in zip(inputs.chunk(count), targets.chunk(count), strict=True):
            loss = F.cross_entropy(model(x), y, reduction="sum") / 16
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        assert abs(ours.item() - total) < 1e-13
    expected = model.state_dict()
    for name, value in args[0].state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert float((value - expected[name]).abs().max()) < 1e-13, name


def test_microbatches_draw_masks_of_their_own_and_backward_draws_them_again():
    def step(model, optimizer, inputs, targets):
        dropped = F.dropout(inputs, 0.5)
        loss = (model.weight * dropped).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, dropped

    def build():
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(64))
        args = (
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            torch.ones(4, 64),
            torch.ones(4),
        )
        return step, args

    _, args = build()
    ((_, dropped),), _ = _captured_run(step, args, 4, steps=1, seed=5)
    rows = {tuple(row.tolist()) for row in dropped}
    assert len(rows) == 4
    assert {value for row in rows for value in row} == {0.0, 2.0}
    assert torch.equal(args[0].weight.detach(), -dropped.sum(0))
    _, again = build()
    ((_, repeated),), _ = _captured_run(step, again, 4, steps=1, seed=5)
    assert torch.equal(dropped, repeated)


def _refused(step, code, count=2, **options):
    step, args = _build(step, **options)
    with pytest.raises(PlanError) as caught:
        split_microbatches(capture(step, args), count)
    assert caught.value.code == code
    return caught.value


def test_samples_that_meet_are_refused_by_op_and_line():
    def contrast(model, inputs, targets):
        h = model(inputs)
        return (h @ h.t()).logsumexp(1).sum()

    def over_batch(model, inputs, targets):
        return model(inputs).softmax(0).square().sum()

    def squared_loss(model, inputs, targets):
        return F.cross_entropy(model(inputs), targets) ** 2

    def centred(model, inputs, targets):
        h = model(inputs)
        return (h - h.mean(0)).square().sum()

    for loss_of in (contrast, over_batch, squared_loss, centred):
        error = _refused(_train(loss_of), "E330")
        assert "test_microbatches.py" in error.where
        assert "node: " in error.values[0]


def test_an_input_that_lives_on_must_not_have_a_dim_of_the_batch():
    class PerSample(Net):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(8, 5))

        def forward(self, x):
            return super().forward(x) + self.shift

    error = _refused(_train(_ignore), "E330", model=PerSample)
    assert "shift" in error.values[0]


def test_a_constant_must_not_have_a_dim_of_the_batch():
    def loss_of(model, inputs, targets):
        return (model(inputs).sum(1) * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])).sum()

    assert "constant" in _refused(_train(loss_of), "E330").values[0]


def test_positions_in_the_batch_are_refused():
    def loss_of(model, inputs, targets):
        return (model(inputs).sum(1) * torch.arange(inputs.shape[0], dtype=inputs.dtype)).sum()

    _refused(_train(loss_of), "E331")


def test_a_second_forward_after_the_update_is_refused():
    def step(model, optimizer, inputs, targets):
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    _refused(step, "E332")


def test_a_batch_that_the_step_reshapes_must_divide_in_its_outer_part():
    def loss_of(model, inputs, targets):
        h = model(inputs.view(2, 4, 8))
        return (h - h.mean(1, keepdim=True)).square().sum()  # samples meet in groups of four

    assert _errors(lambda: _build(_train(loss_of)), 2)[0] < 1e-13
    _refused(_train(loss_of), "E333", count=4)


def test_microbatches_must_divide_the_batch():
    step, args = _build(_train(_ignore))
    for count in (3, 16):
        with pytest.raises(ConfigError) as caught:
            split_microbatches(capture(step, args), count)
        assert caught.value.code == "E526"


def test_the_graph_is_a_function_of_step_and_count():
    step, args = _build(_train(_ignore))
    graph = capture(step, args)
    hashes = {split_microbatches(graph, count).hash() for count in (1, 2, 4)}
    assert len(hashes) == 3
    assert split_microbatches(graph, 2).hash() == split_microbatches(graph, 2).hash()
