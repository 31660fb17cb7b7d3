"""The optimizers of the zoo: AdamW with half-precision parameters, and the choice by name."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

OptimizerName = Literal["adamw", "sgd"]

_HALF_DTYPES = (torch.float16, torch.bfloat16)
_STATE_NAMES = ("step", "master", "exp_avg", "exp_avg_sq")


class MixedPrecisionAdamW(torch.optim.Optimizer):
    """AdamW for bf16 or fp16 parameters, with an fp32 master copy of each.

    Bytes per parameter with half-precision gradients: parameter 2, gradient 2, master 4, first
    moment 4, second moment 4, so 16 in all, as ZeRO counts them (Rajbhandari et al., SC 2020,
    section 3.1). The arithmetic is fp32 tensor operations only: nothing is read back to the host,
    and `lr`, `betas`, `eps` and `weight_decay` may be numbers or 0-d tensors. There is no loss
    scaling.

    The state exists as soon as the optimizer does, because the master copy cannot be rebuilt from
    zeros.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay per unit of learning rate.

    Raises:
        ValueError: If a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        """Creates the optimizer and the state of every parameter that takes a gradient."""
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not isinstance(value, torch.Tensor) and not value >= 0.0:
                raise ValueError(f"{name} must not be negative, got {value}")
        for beta in betas:
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"each of betas must be in [0, 1), got {betas}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                if param.requires_grad:
                    self._ensure_state(param)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        Args:
            closure: Computes the loss and its gradients anew, or None.

        Returns:
            What the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state as the base class does, but keeps it in fp32.

        The base class casts floating-point state to the parameter's type, which would round the
        master copy.

        Args:
            state_dict: A value returned by `state_dict()`.
        """
        super().load_state_dict(state_dict)
        saved_ids = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(saved_ids, params, strict=True):
            for name in _STATE_NAMES:
                saved = state_dict["state"].get(index, {}).get(name)
                if saved is not None:
                    kept = saved.detach().to(device=param.device, dtype=torch.float32, copy=True)
                    self.state[param][name] = kept

    def _ensure_state(self, param: nn.Parameter) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
            state["master"] = param.detach().to(dtype=torch.float32, copy=True)
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        return state

    def _update(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        assert param.grad is not None
        state = self._ensure_state(param)
        master, exp_avg, exp_avg_sq = state["master"], state["exp_avg"], state["exp_avg_sq"]
        lr, (beta1, beta2) = group["lr"], group["betas"]
        grad = param.grad.to(torch.float32)
        step = state["step"].add_(1.0)
        exp_avg.mul_(beta1).add_(grad * (1.0 - beta1))
        exp_avg_sq.mul_(beta2).add_(grad * grad * (1.0 - beta2))
        mean = exp_avg / (1.0 - beta1**step)
        root = (exp_avg_sq / (1.0 - beta2**step)).sqrt().add_(group["eps"])
        master.mul_(1.0 - lr * group["weight_decay"]).sub_(mean / root * lr)
        param.copy_(master)


def make_optimizer(model: nn.Module, name: OptimizerName, lr: float) -> torch.optim.Optimizer:
    """Returns the usual optimizer of that name for the model's parameters.

    Args:
        model: The model; its parameters' type decides between the two kinds of AdamW.
        name: `adamw` (with fp32 master copies if the parameters are half precision) or `sgd`
            (Nesterov momentum 0.9).
        lr: Learning rate.
    """
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
    if any(param.dtype in _HALF_DTYPES for param in model.parameters()):
        return MixedPrecisionAdamW(model.parameters(), lr=lr)
    return torch.optim.AdamW(model.parameters(), lr=lr)
