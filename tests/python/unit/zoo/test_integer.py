"""The integer targets are exact in float32, whatever the order of summation.

Two independent checks: the same three steps in float32 and float64 agree bitwise, and a watch on
every dispatched operation shows that no sum could have been rounded in any order.
"""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright import zoo

aten = torch.ops.aten

INTEGER = ["mlp_integer", "gpt_integer", "wide_resnet_integer"]
# Operations that add up many terms; all others are seen by their result alone.
ADDING = {
    aten.mm,
    aten.bmm,
    aten.addmm,
    aten.convolution,
    aten.convolution_backward,
    aten.sum,
    aten.mean,
    aten.embedding_dense_backward,
}


def is_float(value):
    """Tells a floating-point tensor from other arguments."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def granule(tensor):
    """Returns the largest power of two up to 2^10 of which all elements are multiples."""
    step = 2.0**10
    while not torch.equal(tensor / step, (tensor / step).round()):
        step /= 2
    return step


class WidthWatch(TorchDispatchMode):
    """Records how many bits exact arithmetic needs: log2 of (sum of magnitudes / granule)."""

    def __init__(self):
        super().__init__()
        self.bits = 0.0

    def note(self, magnitudes, step):
        """Notes the largest of the magnitudes, in units of `step`."""
        largest = magnitudes.abs().max().item()
        if largest > 0:
            self.bits = max(self.bits, math.log2(largest / step))

    def note_sum(self, op, args, magnitudes):
        """Notes an operation that adds up, given its result on the arguments' magnitudes."""
        steps = [granule(a) for a in args if is_float(a)]
        if op is aten.convolution_backward:
            gradient, image, weight = steps
            for magnitude, step in zip(
                magnitudes, (gradient * weight, gradient * image, gradient), strict=True
            ):
                if magnitude is not None:
                    self.note(magnitude, step)
        elif op is aten.addmm:
            bias, left, right = steps
            self.note(magnitudes, min(bias, left * right))
        elif op is aten.mean:
            # The mean is its sum over a power of two, so the sum's bits are what matters.
            num_summed = args[0].numel() // magnitudes.numel()
            assert num_summed & (num_summed - 1) == 0
            self.note(magnitudes * num_summed, steps[0])
        else:
            self.note(magnitudes, math.prod(steps))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Runs the operation and looks at what it added up and at what came out."""
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        op = func.overloadpacket
        if op in ADDING:
            magnitudes = func(*(a.abs() if is_float(a) else a for a in args), **kwargs)
            self.note_sum(op, args, magnitudes)
        for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
            if is_float(output):
                self.note(output, granule(output))
        return outputs


def run(target, steps=3):
    """Returns every loss and every parameter and momentum after each step, in float64."""
    step, args = target
    model, optimizer, *_ = args
    seen = []
    for _ in range(steps):
        seen.append(step(*args).detach().to(torch.float64, copy=True))
        seen += [param.detach().to(torch.float64, copy=True) for param in model.parameters()]
        seen += [
            value.to(torch.float64, copy=True)
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
    return seen


@pytest.mark.parametrize("momentum", [0.0, 1.0])
@pytest.mark.parametrize("name", INTEGER)
def test_float32_equals_float64_bitwise(name, momentum):
    make = getattr(zoo, name)
    single = run(make(momentum=momentum, dtype=torch.float32))
    double = run(make(momentum=momentum, dtype=torch.float64))
    assert len(single) == len(double)
    assert all(torch.equal(a, b) for a, b in zip(single, double, strict=True))


# A float32 has 24 bits of significand; measured: at most 12, 19 and 18 bits.
@pytest.mark.parametrize("momentum", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", INTEGER)
def test_no_sum_can_round_in_any_order(name, seed, momentum):
    step, args = getattr(zoo, name)(seed=seed, momentum=momentum, dtype=torch.float64)
    for _ in range(3):
        with WidthWatch() as watch:
            step(*args)
        assert 0 < watch.bits < 24


# A comparison of steps that change nothing would prove nothing.
@pytest.mark.parametrize("name", INTEGER)
def test_every_parameter_moves_and_gradients_are_seen_in_every_step(name):
    step, args = getattr(zoo, name)()
    params = dict(args[0].named_parameters())
    never_moved = set(params)
    for _ in range(3):
        before = {key: param.detach().clone() for key, param in params.items()}
        step(*args)
        moved = {key for key, param in params.items() if not torch.equal(param, before[key])}
        assert len(moved) > len(params) / 2
        never_moved -= moved
    assert not never_moved


@pytest.mark.parametrize("name", INTEGER)
def test_weights_stay_integers(name):
    step, args = getattr(zoo, name)()
    for _ in range(3):
        step(*args)
    assert all(torch.equal(param, param.round()) for param in args[0].parameters())


@pytest.mark.parametrize("name", INTEGER)
def test_every_dim_divides_by_eight(name):
    _, (model, _, inputs, weights) = getattr(zoo, name)()
    spatial = (1, 3, 7, 16)
    for tensor in (inputs, weights, *model.parameters()):
        assert all(size % 8 == 0 for size in tensor.shape[:2])
        assert all(size % 8 == 0 or size in spatial for size in tensor.shape)


@pytest.mark.parametrize("name", INTEGER)
def test_a_momentum_that_would_round_is_refused(name):
    with pytest.raises(ValueError, match="momentum must be 0 or 1"):
        getattr(zoo, name)(momentum=0.9)
