"""Optimizers without update ops of their own are traced through their code."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardwright.capture import StepGraph

Check = Callable[..., StepGraph]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = ((model(x) - y).float() ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def maker(make_optimizer: Callable[..., Any], dtype: torch.dtype = torch.float64) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(dtype)
        batch = (seeded(4, 8).to(dtype), seeded(4, 8, seed=1).to(dtype))
        return step, (model, make_optimizer(model.parameters()), *batch)

    return make


TORCH_OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 1e-2, "foreach": True}),
    (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    (torch.optim.NAdam, {"lr": 1e-2, "weight_decay": 0.1}),
    (torch.optim.Adamax, {"lr": 1e-2}),
    (torch.optim.Adadelta, {"lr": 1.0}),
]


@pytest.mark.parametrize(
    ("optimizer", "options"), TORCH_OPTIMIZERS, ids=lambda x: getattr(x, "__name__", "")
)
def test_torch_optimizer(check_parity: Check, optimizer: Any, options: dict[str, Any]) -> None:
    # NAdam keeps a product of its momenta in fp32 and rounds its factors in another place.
    tolerance = 1e-7 if optimizer is torch.optim.NAdam else 1e-12
    make = maker(lambda params: optimizer(params, **options))
    graph = check_parity(make, steps=4, tolerance=tolerance)
    hyper = [spec.name for spec in graph.inputs if spec.kind == "hyper"]
    assert hyper == ["optimizer.param_groups[0].lr"]


def test_lr_change_takes_effect_without_capture(check_parity: Check) -> None:
    def between(model: Any, optimizer: Any, *batch: Any) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    check_parity(maker(lambda params: torch.optim.RMSprop(params, lr=0.1)), between=between)


class MasterWeights(torch.optim.Optimizer):
    """Adam as many write it by hand: fp32 copies, a Python step count and math.sqrt."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["master"] = p.detach().clone().float()
                    state["m"] = torch.zeros_like(state["master"])
                    state["v"] = torch.zeros_like(state["master"])
                state["step"] += 1
                grad = p.grad.float()
                state["m"].mul_(beta1).add_(grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                correction = math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
                state["master"].addcdiv_(
                    state["m"], state["v"].sqrt().add_(1e-8), value=-group["lr"] * correction
                )
                p.copy_(state["master"])


def test_hand_written_optimizer_with_master_weights(check_parity: Check) -> None:
    # fp32 arithmetic in another order: 1e-6; bf16 parameters may then round to the next value
    graph = check_parity(maker(MasterWeights, torch.bfloat16), steps=4, tolerance=1e-2)
    init = {s.key: s.init for s in graph.inputs if s.kind == "optimizer_state"}
    kinds = {key: value.kind for key, value in init.items() if value is not None}
    assert kinds == {"step": "full", "master": "parameter", "m": "full", "v": "full"}
    assert graph.guards == {"optimizer.param_groups[0].betas": (0.9, 0.99)}


class NeedsNumber(torch.optim.Optimizer):
    """Branches on its lr, so the lr cannot be an input."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if group["lr"] > 0:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])


def test_lr_that_must_be_a_number_becomes_a_guard(check_parity: Check) -> None:
    graph = check_parity(maker(NeedsNumber))
    assert graph.guards == {"optimizer.param_groups[0].lr": 1e-2}
    assert not [spec for spec in graph.inputs if spec.kind == "hyper"]
