"""Where a step's layers begin, which of them repeat, and what each node belongs to."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.pipeline.layers import EVERY_LAYER, assign_layers, even_starts, find_layers
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.stage_graphs import split_stages


def _zoo(target, **settings):
    step, args = getattr(zoo, target)(**settings)
    return capture(step, args)


def _step(model, optimizer, inputs, targets):
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _captured(model, width=8):
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    return capture(_step, (model, optimizer, torch.ones(4, width), torch.ones(4, width)))


def _calls(graph):
    return [n for n in graph.graph_module.graph.nodes if n.op == "call_function"]


GPT = {"hidden": 256, "heads": 4, "vocab": 1024, "seq_len": 64}


def test_the_halves_of_transformer_blocks_are_layers():
    graph = _zoo("gpt", layers=4, **GPT)
    layers = find_layers(graph)
    # Embedding and first attention; then feed-forward and attention in turn; the last feed-forward
    # takes the final norm along, the head is one more.
    assert layers.classes == (0, 1, 2, 1, 2, 1, 2, 3, 4)
    assert layers.titles == (
        "token_embedding", "layers.0.feed_forward_norm",
        "layers.1.attention_norm", "layers.1.feed_forward_norm",
        "layers.2.attention_norm", "layers.2.feed_forward_norm",
        "layers.3.attention_norm", "layers.3.feed_forward_norm", "head",
    )  # fmt: skip
    # Between layers only the residual stream, in float16: 8 x 64 x 256 x 2 bytes.
    assert layers.entering_bytes == (0, *[8 * 64 * 256 * 2] * 8)
    # Products: the feed-forward's two of 512 x 256 x 1024; 2 per multiplication.
    assert layers.flops[1] == pytest.approx(2 * 2 * 512 * 256 * 1024, rel=0.02)


def test_every_second_block_of_a_mixture_of_experts_has_experts():
    layers = find_layers(
        _zoo("moe", hidden=128, layers=4, num_experts=4, heads=4, vocab=512, seq_len=64,
             group_size=64)
    )  # fmt: skip
    # Attention is class 2, a feed-forward with experts 1, one without 3 (the last with the norm).
    assert layers.classes == (0, 1, 2, 3, 2, 1, 2, 4, 5)


def test_layers_of_a_llama():
    layers = find_layers(
        _zoo("llama", hidden=256, layers=4, heads=8, kv_heads=4, inner=1024, vocab=512, seq_len=64,
             batch_size=8)
    )  # fmt: skip
    assert layers.classes == (0, 1, 2, 1, 2, 1, 2, 3, 4)


def test_layers_of_a_wide_resnet_are_its_blocks():
    layers = find_layers(_zoo("wide_resnet_1b", batch_size=8))
    # 3, 4, 6 and 3 blocks; the first of each group has a convolution on its shortcut.
    blocks = [title.split(".")[1] for title in layers.titles[1:]]
    assert set(blocks) == {str(i) for i in range(16)}
    same = {title.split(".")[1]: c for title, c in zip(layers.titles, layers.classes, strict=True)
            if title.startswith("blocks.")}  # fmt: skip
    assert same["4"] == same["5"] == same["6"]
    assert same["8"] == same["9"] == same["10"] == same["11"]
    assert len({same["1"], same["5"], same["9"]}) == 3


def test_a_number_of_layers_can_be_asked_for():
    graph = _zoo("gpt", layers=4, **GPT)
    for number in (1, 2, 5, 30):
        layers = find_layers(graph, number)
        assert len(layers) == number == len(layers.begins) + 1
        assert sum(layers.flops) == sum(find_layers(graph).flops)
    with pytest.raises(sw.ProblemError, match="E222"):
        find_layers(graph, 10_000)


def test_layers_of_all_nodes():
    graph = _zoo("gpt_tiny", layers=2)
    layers = find_layers(graph)
    last = len(layers) - 1
    for node, spec in zip(graph.placeholders, graph.inputs, strict=True):
        if spec.kind in ("batch", "hyper", "rng", "constant"):
            assert layers.of(node.name) == EVERY_LAYER
        elif spec.name == "token_embedding.weight":
            assert layers.of(node.name) == 0  # the head reads it too
    at = {name: layers.of(name) for name in layers.begins}
    assert list(at.values()) == list(range(1, last + 1))
    assert layers.layer_of == {n.name: i for n, i in assign_layers(graph, layers.begins).items()}
    for node in _calls(graph):
        layer = layers.of(node.name)
        before = [a for a in node.all_input_nodes if layers.of(a.name) != EVERY_LAYER]
        before = [a for a in before if a.op == "call_function"]
        if node.meta["phase"] == "forward" and layer != EVERY_LAYER:
            assert all(layers.of(a.name) <= layer for a in before)
        elif node.meta["phase"] == "backward" and layer != EVERY_LAYER:
            for a in before:
                assert (layers.of(a.name) >= layer) or a.meta["phase"] == "forward"
                if a.meta["phase"] == "forward":
                    assert layers.of(a.name) <= layer


@pytest.mark.parametrize("target", ["gpt_tiny", "moe_tiny", "wide_resnet_tiny"])
def test_microbatches_leave_layers_and_names_alone(target):
    graph = _zoo(target)
    split = split_microbatches(graph, 2)
    layers, of_parts = find_layers(graph), find_layers(split)
    assert of_parts.begins == layers.begins
    assert of_parts.classes == layers.classes
    common = layers.layer_of.keys() & of_parts.layer_of.keys()
    # Lost: functions of the batch that are computed from the whole of it.
    assert len(common) > 0.95 * len(layers.layer_of)
    phases = {n.name: n.meta["phase"] for n in _calls(split)}
    moved = {n for n in common if layers.of(n) != of_parts.of(n)}
    # A counter of steps, which no part reads any more, may move, and what runs once per step.
    moved = {n for n in moved if not n.endswith("num_batches_tracked")}
    assert {phases.get(n) for n in moved} <= {"update"}


def test_backward_ops_know_the_forward_op_they_differentiate():
    """Without names to go by: one line of code makes all layers."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(nn.Parameter(torch.ones(8, 8)) for _ in range(4))

        def forward(self, x):
            for weight in self.weights:
                x = torch.tanh(x @ weight)
            return x

    graph = _captured(Chain())
    starts = [n.name for n in _calls(graph) if n.target is torch.ops.aten.mm.default][1:4]
    layers = assign_layers(graph, starts)
    tanh_backward = [n for n in _calls(graph) if "tanh_backward" in str(n.target)]
    assert [layers[n] for n in tanh_backward] == [3, 2, 1, 0]
    owners = [layers[n] for n, s in zip(graph.placeholders, graph.inputs, strict=True)
              if s.kind == "parameter"]  # fmt: skip
    assert owners == [0, 1, 2, 3]


class Marked(nn.Module):
    """A mark after each of the first two activations of four products."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(8, 8)) for _ in range(4))

    def forward(self, x):
        for number, weight in enumerate(self.weights):
            x = torch.tanh(x @ weight)
            if number < 2:
                sw.mark_layer()
        return x


@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_marks_begin_layers_right_there(num_microbatches):
    graph = split_microbatches(_captured(Marked()), num_microbatches)
    layers = find_layers(graph)
    products = [n.name for n in _calls(graph) if n.target is torch.ops.aten.mm.default]
    assert layers.begins == tuple(products[1:3])
    assert find_layers(graph, 4).begins == tuple(products[1:4])
    with pytest.raises(sw.ProblemError, match="E222"):
        find_layers(graph, 2)
    assert even_starts(graph, 3) == layers.begins


def test_marks_are_nothing_to_eager_steps_and_to_the_graph():
    marked, plain = Marked(), Marked()
    inputs = torch.linspace(-1, 1, 32).reshape(4, 8)
    assert torch.equal(marked(inputs), plain(inputs))
    assert sw.mark_layer() is None
    graph = _captured(Marked())
    assert all("mark" not in str(n.target) for n in _calls(graph))


def test_marks_at_both_ends_and_in_a_row_make_no_empty_layers():
    class Eager(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            sw.mark_layer()
            x = self.a(x)
            sw.mark_layer()
            sw.mark_layer()
            x = self.b(x)
            sw.mark_layer()
            return x

    layers = find_layers(_captured(Eager()))
    assert [title.split(".")[0] for title in layers.titles] == ["a", "b", ""]  # last: the loss


def test_what_follows_from_fixed_tensors_is_of_every_layer_unless_it_meets_the_batch():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)
            self.register_buffer("frequencies", torch.arange(8.0))

        def forward(self, x):
            table = torch.cos(self.frequencies * 2)
            x = self.a(self.frozen(x)) * table
            return self.b(x) * table

    graph = _captured(Rotary())
    layers = assign_layers(graph, ["b"])
    by_op = {str(n.target): layers[n] for n in _calls(graph) if n.meta["phase"] == "forward"}
    assert by_op["aten.cos.default"] == EVERY_LAYER
    frozen = [n for n in _calls(graph) if n.meta["module_path"] == "frozen"]
    assert {layers[n] for n in frozen if n.target is torch.ops.aten.mm.default} == {0}
    stages = split_stages(graph, ["b"])
    # Each stage makes the table; the activation is sent forward and its gradient back.
    assert [t.when for t in stages.transfers] == ["backward", "forward"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_compute_again_where_they_are(use_reentrant):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
            self.second = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def forward(self, x):
            for block in (self.first, self.second):
                x = checkpoint(block, x.requires_grad_(), use_reentrant=use_reentrant)
            return x

    graph = _captured(Blocks())
    layers = assign_layers(graph, ["second"])
    tanh = [n for n in _calls(graph) if n.target is torch.ops.aten.tanh.default]
    again = [n for n in tanh if n.meta["phase"] == "backward"]
    assert [layers[n] for n in again] == [1, 0]
    stages = split_stages(graph, ["second"])
    assert [(t.when, t.source, t.target) for t in stages.transfers] == [
        ("backward", 1, 0), ("forward", 0, 1),
    ]  # fmt: skip


def test_even_stages_are_even_in_flops():
    # 5 blocks and a head of 0.5: as halves a (attention) = 1/3, f = 2/3 of a block. Of all cuts in
    # two the largest stage is smallest at 2.33 + 3.17 or at 3 + 2.5 blocks: the latter.
    graph = _zoo("gpt", layers=5, **{**GPT, "vocab": 1536})
    (start,) = even_starts(graph, 2)
    layers = find_layers(graph)
    cut = layers.begins.index(start) + 1
    parts = [sum(layers.flops[:cut]), sum(layers.flops[cut:])]
    others = [max(sum(layers.flops[:k]), sum(layers.flops[k:])) for k in range(1, len(layers))]
    assert max(parts) == min(others)
    assert layers.titles[cut] == "layers.3.attention_norm"


def test_more_stages_than_operations_are_refused():
    graph = _captured(nn.Linear(8, 8))
    with pytest.raises(sw.ConfigError) as caught:
        even_starts(graph, 100)
    assert caught.value.code == "E527"
