"""How a step is cut into stages: who computes what, and what goes between them."""

import pytest
import torch
import torch.nn.functional as F
from tests.python.parity.clusters import slow_compute
from torch import nn

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.errors import ConfigError, PlanError
from shardwright.pipeline.layers import even_starts
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints, even_stages
from shardwright.pipeline.pricing import stage_schedule
from shardwright.pipeline.stage_graphs import split_stages


def _cut(target, num_microbatches, boundaries, **settings):
    step, args = getattr(zoo, target)(**settings)
    graph = split_microbatches(capture(step, args), num_microbatches)
    return graph, split_stages(graph, boundaries)


def _parameters(graph):
    return {spec.name for spec in graph.inputs if spec.kind == "parameter"}


def _calls(graph):
    return [n for n in graph.graph_module.graph.nodes if n.op == "call_function"]


def test_every_stage_has_its_layers_with_their_state():
    graph, stages = _cut("gpt_tiny", 2, ["layers.1"])
    first, second = (_parameters(g) for g in stages.graphs)
    assert first.isdisjoint(second)
    assert first | second == _parameters(graph)
    assert {n for n in first if n.startswith("layers.")} == {
        n for n in _parameters(graph) if n.startswith("layers.0.")
    }
    for part in stages.graphs:
        owners = {s.parameter for s in part.inputs if s.kind == "optimizer_state"}
        assert owners == _parameters(part)
        updated = {part.inputs[o.updates].name for o in part.outputs if o.updates is not None}
        assert _parameters(part) <= updated
    # The loss is made where the last layer is.
    assert stages.result_stages == (1,)


def test_a_tied_weight_is_sent_once_per_step_and_so_is_its_gradient():
    _, stages = _cut("gpt_tiny", 4, ["layers.1"])
    starts = [t for t in stages.transfers if t.when == "start"]
    assert [(t.source, t.target, t.parameter) for t in starts] == [(0, 1, "token_embedding.weight")]
    shape = (
        stages.graphs[0]
        .inputs[[s.name for s in stages.graphs[0].inputs].index("token_embedding.weight")]
        .meta.shape
    )
    nodes = {n.name: n for n in stages.whole.graph_module.graph.nodes}
    sent = [t for t in stages.transfers if t.when != "start"]
    weights = [t for t in sent if nodes[t.value].meta["val"].shape == shape]
    assert [(t.when, t.source, t.target) for t in weights] == [("update", 1, 0)]


def test_only_activations_and_their_gradients_travel_with_microbatches():
    _, stages = _cut("gpt_tiny", 4, ["layers.1"])
    nodes = {n.name: n for n in stages.whole.graph_module.graph.nodes}
    for when, way in (("forward", (0, 1)), ("backward", (1, 0))):
        found = [t for t in stages.transfers if t.when == when]
        assert {(t.source, t.target) for t in found} == {way}
        # The residual stream, and what a layer norm is differentiated by.
        assert len(found) <= 2
        assert all(nodes[t.value].meta["val"].is_floating_point() for t in found)


def test_the_norm_of_all_gradients_is_combined_from_scalars():
    _, stages = _cut("gpt_tiny", 2, ["layers.1"])
    nodes = {n.name: n for n in stages.whole.graph_module.graph.nodes}
    updates = [t for t in stages.transfers if t.when == "update"]
    scalars = [t for t in updates if nodes[t.value].meta["val"].dim() == 0]
    assert {(t.source, t.target) for t in scalars} == {(0, 1), (1, 0)}
    assert stages.num_rounds >= 3


def test_nodes_are_neither_lost_nor_computed_twice():
    """What is computed in several stages follows from the batch and constants alone."""
    graph, stages = _cut("gpt_tiny", 2, ["layers.1"])
    names = [
        n.name
        for part in stages.graphs
        for n in _calls(part)
        if n.target is not torch.ops.shardwright.send.default
    ]
    whole = {n.name for n in _calls(stages.whole)}
    assert set(names) == whole
    free = {s.kind for s in graph.inputs} - {"parameter", "buffer", "optimizer_state"}
    for name in {n for n in names if names.count(n) > 1}:
        node = next(n for n in _calls(stages.whole) if n.name == name)
        inputs = _inputs_of(node)
        kinds = {s.name: s.kind for s in stages.whole.inputs}
        placeholders = {
            p.name: kinds[s.name]
            for p, s in zip(stages.whole.placeholders, stages.whole.inputs, strict=True)
        }
        assert {placeholders[p] for p in inputs} <= free


@pytest.mark.parametrize("target", ["gpt_tiny", "wide_resnet_tiny"])
def test_backward_in_two_parts_begins_with_what_other_stages_need(target):
    step, args = getattr(zoo, target)()
    graph = split_microbatches(capture(step, args), 2)
    boundaries = even_starts(graph, 2)
    plain = split_stages(graph, boundaries)
    stages = split_stages(graph, boundaries, splits_backward=True)
    assert stages.transfers == plain.transfers
    for stage, part in enumerate(stages.graphs):
        rounds = [n.meta["round"] for n in _calls(part) if n.meta["phase"] == "backward"]
        assert rounds == sorted(rounds)
        sends = [n for n in _calls(part) if n.target is torch.ops.shardwright.send.default]
        needed = _ancestors([n for n in sends if n.meta["phase"] == "backward"])
        first = {n for n in _calls(part) if (n.meta["phase"], n.meta["round"]) == ("backward", 0)}
        assert first == {n for n in needed if n.op == "call_function"
                         and n.meta["phase"] == "backward"}  # fmt: skip
        assert bool(first) == (stage == 1)
    # The matrix products of weight gradients wait, and convolutions are taken apart for it.
    last = [n for n in _calls(stages.graphs[1]) if n.meta["phase"] == "backward"]
    kind = "aten.mm" if target == "gpt_tiny" else "aten.convolution_backward"
    heavy = [n for n in last if str(n.target).startswith(kind)]
    assert len([n for n in heavy if n.meta["round"] == 1]) == len(heavy) / 2


def _ancestors(nodes):
    found, waiting = set(), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _inputs_of(node):
    found, waiting = set(), [node]
    while waiting:
        item = waiting.pop()
        if item.op == "placeholder":
            found.add(item.name)
        waiting += item.all_input_nodes
    return found


class Skips(nn.Module):
    """Four layers; what the first makes is added before the last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        kept = None
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x if number < 3 else x + kept))
            kept = x if number == 0 else kept
        return x


def _skipping_step(model, optimizer, inputs, targets):
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_a_skip_connection_goes_from_stage_to_stage_directly():
    model = Skips()
    args = (model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(4, 8), torch.ones(4, 8))
    graph = split_microbatches(capture(_skipping_step, args), 2)
    stages = split_stages(graph, ["layers.1", "layers.2", "layers.3"])
    forward = {(t.source, t.target) for t in stages.transfers if t.when == "forward"}
    backward = {(t.source, t.target) for t in stages.transfers if t.when == "backward"}
    # The sum is taken between the layers 2 and 3, by the code of layer 2's stage; its gradient
    # comes from layer 3 and is needed by both terms.
    assert forward == {(0, 1), (1, 2), (2, 3), (0, 2)}
    assert backward == {(3, 2), (3, 1), (2, 1), (1, 0)}
    assert len({(t.value, t.target) for t in stages.transfers}) == len(stages.transfers)


def test_boundaries_that_are_none_are_refused():
    step, args = zoo.gpt_tiny()
    graph = capture(step, args)
    first = next(n.name for n in _calls(graph) if n.target is torch.ops.aten.embedding.default)
    for boundaries in (
        ["layers.7"], ["layers.1", "layers.0"], ["nothing"], ["batch_tokens"], [first],
        ["layers.1", "layers.1.attention_norm"],
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="stage") as caught:
            split_stages(graph, boundaries)
        assert caught.value.code == "E527"


def test_forward_after_backward_is_refused():
    def step(model, optimizer, inputs, targets):
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        scale = model.layers[0].weight.grad.detach().sum()
        F.mse_loss(model(inputs * scale), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = Skips()
    args = (model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(4, 8), torch.ones(4, 8))
    with pytest.raises(PlanError) as caught:
        split_stages(capture(step, args), ["layers.2"])
    assert caught.value.code == "E334"


@pytest.mark.parametrize(
    ("num_devices", "constraints"),
    [
        (3, StageConstraints(2)),
        (1, StageConstraints(2)),
        (4, StageConstraints(2, stage_ranks=(1, 2))),
        (4, StageConstraints(2, stage_ranks=(4, 0))),
    ],
)
def test_devices_that_cannot_be_shared_out_are_refused(num_devices, constraints):
    with pytest.raises(ConfigError) as caught:
        constraints.devices_of_groups(num_devices)
    assert caught.value.code == "E528"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"num_stages": 0}, "E520"),
        ({"num_microbatches": 0}, "E520"),
        ({"num_stages": 2, "schedule": "dualpipe"}, "E528"),
        ({"num_stages": 2, "mesh": (2,)}, "E528"),
        ({"num_stages": 4, "stages_per_rank": 0}, "E520"),
        ({"num_stages": 4, "stages_per_rank": 2}, "E528"),
        ({"num_stages": 3, "stages_per_rank": 2, "schedule": "interleaved_1f1b"}, "E528"),
        ({"num_stages": 2, "stage_ranks": (1,)}, "E528"),
        ({"num_stages": 2, "stage_meshes": [(1,), (1,), (1,)]}, "E528"),
        ({"num_stages": 2, "stage_boundaries": ["layers.1", "layers.2"]}, "E528"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(options, code):
    with pytest.raises(ConfigError) as caught:
        sw.parallelize(**options)(_skipping_step)
    assert caught.value.code == code


def test_stages_that_share_ranks_take_turns():
    constraints = StageConstraints(4, "interleaved_1f1b", stage_ranks=(1, 2), stages_per_rank=2)
    step, args = zoo.gpt_tiny(layers=4)
    options = even_stages(split_microbatches(capture(step, args), 2), constraints, 3)
    assert [(s.first_rank, s.num_devices) for s in options.stages] == 2 * [(0, 1), (1, 2)]
    assert stage_schedule("interleaved_1f1b", [0, 1, 0, 1], 2, []).rank_of_stage == [0, 1, 0, 1]
    for first_ranks in ([0, 0, 1, 1], [0, 1, 0]):
        with pytest.raises(ConfigError) as caught:
            stage_schedule("interleaved_1f1b", first_ranks, 2, [])
        assert caught.value.code == "E528"


def test_stages_that_share_ranks_share_their_memory():
    step, args = zoo.gpt_tiny(layers=4)
    plan = sw.plan(
        step, *args, cluster=slow_compute(2), num_stages=4, schedule="interleaved_1f1b",
        stages_per_rank=2, num_microbatches=2, memory_limit="1GiB",
    )  # fmt: skip
    peaks = [stage.plan.peak_memory_bytes for stage in plan.stages]
    assert plan.peak_memory_bytes == max(peaks[0] + peaks[2], peaks[1] + peaks[3])
    assert [stage.plan.origin.memory_limit_bytes for stage in plan.stages] == 4 * [1 << 29]


def test_one_process_cannot_run_two_stages():
    step, args = zoo.mlp_tiny()
    with pytest.raises(ConfigError) as caught:
        sw.parallelize(num_stages=2)(step)(*args)
    assert caught.value.code == "E528"
