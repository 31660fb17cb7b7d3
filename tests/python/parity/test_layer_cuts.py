"""Stages that begin anywhere, and models without numbered layers, against the eager step."""

import pytest
import torch
import torch.nn.functional as F
from tests.python.parity.clusters import slow_compute
from torch import nn

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.pipeline.layers import find_layers
from shardwright.pipeline.parity import check_pipeline_parity


def _step(model, optimizer, inputs, targets):
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _maker(build):
    def make():
        torch.manual_seed(0)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return _step, (model, optimizer, torch.randn(8, 16), torch.randn(8, 16))

    return make


def _sequential():
    return nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 16)
    )


class UNet(nn.Module):
    """Two levels down and up; what each level makes on the way down is joined on the way up."""

    def __init__(self):
        super().__init__()
        self.down_a, self.down_b = nn.Linear(16, 8), nn.Linear(8, 4)
        self.middle = nn.Linear(4, 4)
        self.up_b, self.up_a = nn.Linear(4 + 4, 8), nn.Linear(8 + 8, 16)

    def forward(self, x):
        a = torch.tanh(self.down_a(x))
        b = torch.tanh(self.down_b(a))
        middle = torch.tanh(self.middle(b))
        up = torch.tanh(self.up_b(torch.cat([middle, b], -1)))
        return self.up_a(torch.cat([up, a], -1))


class Marked(nn.Module):
    """One weight for all; the second half begins in the middle of a line of code."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x):
        x = torch.tanh(x @ self.weight)
        sw.mark_layer()
        return torch.tanh(x @ self.weight)


@pytest.mark.parametrize(
    ("build", "meshes", "boundaries"),
    [
        (_sequential, [(1,), (2,), (1,)], None),
        (_sequential, [(1,), (1,)], ["3"]),
        (UNet, [(1,), (1,), (2,)], None),
        (UNet, [(1,), (1,), (1,)], ["down_b", "up_a"]),
        (Marked, [(1,), (2,)], None),
    ],
)
def test_models_without_numbered_layers(build, meshes, boundaries):
    report = check_pipeline_parity(
        _maker(build), meshes=meshes, num_microbatches=4, boundaries=boundaries,
        cluster=slow_compute(sum(mesh[0] for mesh in meshes)),
    )  # fmt: skip
    assert report.max_rel_error <= 1e-12


def _begins(make):
    """Layers of the step, and its ops in the middle of the first feed-forward and attention."""
    step, args = make()
    graph = capture(step, args)
    modules = ("layers.0.feed_forward", "layers.0.attention")
    inside = [
        n.name
        for n in graph.graph_module.graph.nodes
        if n.op == "call_function"
        and n.meta["phase"] == "forward"
        and n.meta["module_path"] in modules
    ]
    return list(find_layers(graph).begins), inside


def test_blocks_are_cut_into_attention_and_feed_forward():
    def make():
        return zoo.gpt_integer(dtype=torch.float32)

    begins, _ = _begins(make)
    assert len(begins) == 4
    report = check_pipeline_parity(
        make, meshes=[(1,)] * 5, num_microbatches=2, boundaries=begins, dtype=torch.float32,
        cluster=slow_compute(5),
    )  # fmt: skip
    assert report.max_rel_error == 0.0


def test_every_cut_inside_attention_and_feed_forward_is_right():
    def make():
        return zoo.gpt_integer(dtype=torch.float32, layers=1)

    _, inside = _begins(make)
    assert len(inside) >= 8
    for name in inside[::3]:
        report = check_pipeline_parity(
            make, meshes=[(1,), (1,)], num_microbatches=2, boundaries=[name], dtype=torch.float32,
            cluster=slow_compute(2), steps=2,
        )  # fmt: skip
        assert report.max_rel_error == 0.0, name
