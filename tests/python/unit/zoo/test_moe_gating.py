"""Top-2 gating against a loop over tokens, and the expert layer against direct evaluation."""

import pytest
import torch

from shardwright.zoo.moe import ExpertLayer, top2_gating


def seat_one_by_one(gates, capacity):
    """Seats all first choices in order, then all second choices, with plain loops."""
    groups, tokens, experts = gates.shape
    combine = torch.zeros(groups, tokens, experts, capacity, dtype=gates.dtype)
    for g in range(groups):
        taken = [0] * experts
        seats = [[] for _ in range(tokens)]
        for choice in range(2):
            queue = [0] * experts
            for s in range(tokens):
                expert = int(gates[g, s].argsort(descending=True, stable=True)[choice])
                seat = queue[expert] + (taken[expert] if choice else 0)
                queue[expert] += 1
                if seat < capacity:
                    seats[s].append((expert, seat))
            if choice == 0:
                taken = [min(count, capacity) for count in queue]
        for s in range(tokens):
            total = sum(float(gates[g, s, expert]) for expert, _ in seats[s])
            for expert, seat in seats[s]:
                combine[g, s, expert, seat] = float(gates[g, s, expert]) / total
    return combine


@pytest.mark.parametrize("skew", [0.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_gating_equals_a_loop_over_tokens(seed, skew):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 16, 4, generator=generator, dtype=torch.float64)
    gates = torch.softmax(logits + skew * torch.tensor([1.0, 0.0, 0.0, 0.0]), dim=-1)
    combine, dispatch = top2_gating(gates, capacity=8)
    expected = seat_one_by_one(gates, capacity=8)
    torch.testing.assert_close(combine, expected, rtol=1e-12, atol=0)
    assert torch.equal(dispatch, (expected > 0).to(torch.float64))


def test_no_seat_is_taken_twice_and_weights_sum_to_one():
    generator = torch.Generator().manual_seed(7)
    gates = torch.softmax(torch.randn(3, 64, 8, generator=generator), dim=-1)
    combine, dispatch = top2_gating(gates, capacity=16)
    assert dispatch.sum(dim=1).max() == 1
    seated = dispatch.sum(dim=(2, 3))
    sums = combine.sum(dim=(2, 3))
    torch.testing.assert_close(sums, (seated > 0).to(sums.dtype))


# 300 tokens all want expert 0 first: bf16 cannot count past 256, the seats must still be distinct.
def test_bf16_gates_are_counted_exactly():
    gates = torch.tensor([0.5, 0.25, 0.25], dtype=torch.bfloat16).expand(1, 300, 3)
    _, dispatch = top2_gating(gates, capacity=300)
    assert torch.equal(dispatch[0, :, 0], torch.eye(300, dtype=torch.bfloat16))


# With room for everybody the layer is the gate-weighted sum of the two best experts.
def test_expert_layer_is_the_weighted_sum_of_two_experts():
    torch.manual_seed(0)
    layer = ExpertLayer(8, 16, num_experts=4, group_size=8).double()
    layer.capacity = 8
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    gates = torch.softmax(layer.gate(x), dim=-1)
    top = gates.topk(2, dim=-1)
    expected = torch.zeros_like(x)
    for b in range(2):
        for t in range(8):
            for gate, e in zip(top.values[b, t], top.indices[b, t], strict=True):
                y = torch.relu(x[b, t] @ layer.up[e]) @ layer.down[e]
                expected[b, t] += gate / top.values[b, t].sum() * y
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-12)
