"""Steps whose backward computes forward again: what is cloned, and that nothing else changes."""

import functools
import itertools
import operator
from typing import NamedTuple

import pytest
import torch
from torch import nn

from shardwright import planning, zoo
from shardwright.capture import capture, read_inputs, sort_arguments
from shardwright.errors import ConfigError
from shardwright.pipeline.layers import find_layers
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.recompute import recompute_layers, with_recomputation
from shardwright.pipeline.stage_graphs import split_stages

TARGETS = {
    "gpt": lambda: zoo.gpt_tiny(dropout=0.25),
    "wide_resnet": zoo.wide_resnet_tiny,
    "moe": zoo.moe_tiny,
    "llama": zoo.llama_tiny,
}


class _Case(NamedTuple):
    plain: object
    again: object
    inputs: list


@functools.cache
def _case(target, count):
    step, args = TARGETS[target]()
    plain = split_microbatches(capture(step, args), count)
    inputs = read_inputs(plain, sort_arguments(step, args, {}), seed=7)
    return _Case(plain, with_recomputation(plain, "full"), inputs)


def _nodes(graph):
    return list(graph.graph_module.graph.nodes)


def _clones(graph):
    return [node for node in _nodes(graph) if node.meta.get("recomputed")]


ALL = pytest.mark.parametrize(
    ("target", "count"), list(itertools.product(TARGETS, (1, 2))), ids=lambda value: str(value)
)


@ALL
def test_every_result_and_new_value_is_the_same_bit_for_bit(target, count):
    # Same ops on same operands in the same order of sums: also masks and running statistics.
    case = _case(target, count)
    expected = case.plain.run_reference(case.inputs)
    found = case.again.run_reference(case.inputs)
    assert len(expected) == len(found)
    for left, right in zip(expected, found, strict=True):
        assert torch.equal(left, right)


@ALL
def test_least_memory_falls_and_forward_stays_as_it_was(target, count):
    case = _case(target, count)
    clones = _clones(case.again)
    assert clones
    assert {node.meta["phase"] for node in clones} == {"backward"}
    peaks = [
        planning.plan(graph, mesh=1, microbatches_in_flight=count).certificate
        for graph in (case.plain, case.again)
    ]
    assert peaks[1].at_peak.activations < peaks[0].at_peak.activations
    assert peaks[1].compute_us > peaks[0].compute_us
    names = [n.name for n in _nodes(case.plain)]
    kept = [n.name for n in _nodes(case.again) if not n.meta.get("recomputed")]
    assert kept == [name for name in names if name in set(kept)]


@ALL
def test_clones_come_right_before_the_first_that_reads_them(target, count):
    case = _case(target, count)
    layers = find_layers(case.plain)
    nodes = _nodes(case.again)
    position = {node: i for i, node in enumerate(nodes)}
    for clone in _clones(case.again):
        layer = layers.of(clone.name.removeprefix("recomputed_"))
        readers = [user for user in clone.users if not user.meta.get("recomputed")]
        of_layer = [n for n in nodes if n.meta.get("recomputed")
                    and layers.of(n.name.removeprefix("recomputed_")) == layer]  # fmt: skip
        first = min(
            (position[u] for n in of_layer for u in n.users if not u.meta.get("recomputed")),
        )
        assert position[of_layer[-1]] == first - 1
        assert all(layers.of(user.name) == layer for user in readers)
        assert all(user.meta["phase"] == "backward" for user in clone.users)


@ALL
def test_backward_reads_nothing_of_its_layer_but_what_it_must(target, count):
    # Of a recomputed layer only what other layers read in forward, and views, live into backward.
    case = _case(target, count)
    layers = find_layers(case.plain)

    def reads(node):
        for user in node.users:
            if user.target is operator.getitem:
                yield from reads(user)
            elif user.op == "call_function":
                yield user, layers.of(user.name.removeprefix("recomputed_"))

    kept = [
        node.name
        for node in _nodes(case.again)
        if node.op == "call_function" and node.meta["phase"] == "forward"
        if node.target is not operator.getitem and layers.of(node.name) >= 0
        if any(user.meta["phase"] == "backward" for user, _ in reads(node))
        if not any(value.alias_info for value in node.target._schema.returns)
        if {layer for user, layer in reads(node) if user.meta["phase"] == "forward"}
        <= {layers.of(node.name)}
    ]
    assert kept == []


def test_only_the_layers_asked_for_are_cloned():
    case = _case("gpt", 2)
    layers = find_layers(case.plain)
    for which in ([0], [len(layers) - 1], [0, 1]):
        graph = recompute_layers(case.plain, layers, which)
        found = {layers.of(node.name.removeprefix("recomputed_")) for node in _clones(graph)}
        assert found <= set(which)
    assert recompute_layers(case.plain, layers, []) is case.plain
    assert recompute_layers(case.plain, layers, [-1]) is case.plain


def test_the_hash_tells_recomputation_and_is_stable():
    case = _case("gpt", 2)
    before = case.plain.hash()
    assert case.again.hash() != before
    assert with_recomputation(case.plain, "full").hash() == case.again.hash()
    assert case.plain.hash() == before
    assert with_recomputation(case.plain, "none") is case.plain


class _Averaged(nn.Module):
    """Divides by a running mean that forward updates: clones of it would read the new one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        new = self.scale * 0.5 + hidden.detach().abs().mean(0)
        scaled = torch.exp(hidden * torch.sigmoid(self.scale * 3.0))
        self.scale.copy_(new)
        return self.second(scaled)


def test_what_forward_updates_is_read_once():
    torch.manual_seed(0)
    model = _Averaged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graph = capture(step, (model, optimizer, torch.randn(4, 8)))
    again = with_recomputation(graph, "full")
    assert _clones(again)
    readers = {
        node.name
        for placeholder in again.placeholders
        for node in placeholder.users
        if placeholder.name == "buffer_scale" and node.meta.get("recomputed")
    }
    assert readers == set()


def test_another_word_is_refused():
    with pytest.raises(ConfigError) as caught:
        with_recomputation(_case("gpt", 1).plain, "half")
    assert caught.value.code == "E520"


def test_what_only_weight_gradients_need_is_made_again_in_the_late_part():
    """Of x -> mm -> sin -> mul -> mm: what sin reads is needed first, what mul makes is not."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, x):
            return self.second(torch.sin(self.first(x)) * 2.0)

    model = nn.Sequential(nn.Linear(8, 8), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graph = split_microbatches(capture(step, (model, optimizer, torch.randn(4, 8))), 2)
    stage = split_stages(graph, ["1"], splits_backward=True).graphs[1]
    again = recompute_layers(stage, _OneLayer(), [0])
    rounds = {node.target: node.meta["round"] for node in _clones(again)}
    assert rounds[torch.ops.aten.mm.default] == 0
    assert rounds[torch.ops.aten.mul.Tensor] == 1


class _OneLayer:
    def of(self, node, /):
        return 0
