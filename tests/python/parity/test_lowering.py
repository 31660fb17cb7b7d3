"""Lowered programs on simulated ranks against the captured graph run op by op."""

import pytest
import torch
import torch.nn.functional as F
from tests.python.parity.replicated_table import replicated_table, round_trip_table
from torch import nn

from shardwright.capture import capture, read_inputs, sort_arguments
from shardwright.lowering.program import Program
from shardwright.runtime.simulate import Simulation


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.up = nn.Linear(8, 16, bias=False)  # a bias before batch norm has only noise
        self.norm = nn.BatchNorm1d(16)
        self.down = nn.Linear(16, 8)

    def forward(self, tokens):
        hidden = F.relu(self.norm(self.up(self.embed(tokens))))
        return self.down(hidden) @ self.embed.weight.t()


def step(model, optimizer, tokens, targets):
    loss = F.cross_entropy(model(tokens), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def build(name="adamw"):
    torch.manual_seed(0)
    model = Net().double()
    optimizer = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-2),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(model.parameters(), lr=1e-2),
    }[name]()
    tokens = torch.randint(0, 16, (8,))
    return model, optimizer, tokens, torch.randint(0, 16, (8,))


def run_both(args, table_of, steps=2):
    """Largest difference of any output over some steps, and the simulation."""
    graph = capture(step, args)
    arguments = sort_arguments(step, args, {})
    simulation = Simulation(Program(graph, table_of(graph)))
    values = read_inputs(graph, arguments)
    kept = [
        i
        for i, s in enumerate(graph.inputs)
        if s.kind in ("parameter", "buffer", "optimizer_state")
    ]
    for i in kept:
        simulation.load(i, values[i])
    worst = 0.0
    for _ in range(steps):
        passing = {i: v for i, v in enumerate(values) if i not in kept}
        expected = graph.run_reference(values)
        (loss,) = simulation.step(passing)
        for spec, value in zip(graph.outputs, expected, strict=True):
            got = loss if spec.updates is None else simulation.whole(spec.updates)
            worst = max(worst, float((got - value).abs().max()))
            if spec.updates is not None:
                values[spec.updates] = value
                assert not simulation.replicas_differ(spec.updates)
    return worst, simulation


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "rmsprop"])
def test_a_replicated_program_is_the_captured_step(optimizer):
    worst, simulation = run_both(build(optimizer), lambda graph: replicated_table(graph, (2,)))
    assert worst < 1e-14
    assert not simulation.counts


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_conversions_that_cancel_change_nothing(mesh, seed):
    worst, simulation = run_both(
        build(), lambda graph: round_trip_table(graph, mesh, seed), steps=1
    )
    assert worst < 1e-14
    assert sum(simulation.counts.values()) > 5


def test_every_argument_of_the_generated_code_has_a_name_of_its_own():
    graph = capture(step, build())
    program = Program(graph, round_trip_table(graph, (2, 2), 1))
    for section in program.for_rank(0, ["a", "b"], torch.device("cpu")).sections:
        nodes = section.graph_module.graph.find_nodes(op="placeholder")
        assert len({node.target for node in nodes}) == len(section.section.takes)


def test_updates_run_in_place_and_phases_are_sections():
    args = build()
    graph = capture(step, args)
    program = Program(graph, replicated_table(graph, (1,)))
    assert [s.phase for s in program.sections] == ["forward", "backward", "update"]
    # 6 parameters, each with one fused update; the three batch norm buffers are copied back
    assert len(program.storage.in_place) == 6
    assert len(program.storage.copies) == 3
    code = program.for_rank(0, ["g"], torch.device("cpu")).code()
    assert code.count("shardwright.adam_update_.default(") == 6
    assert "values.clear()" in code
