"""The optimizers of the zoo: AdamW with half-precision parameters, and the choice by name."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

import shardwright.capture.ops.updates  # noqa: F401  registers the update op

OptimizerName = Literal["adamw", "sgd"]

_HALF_DTYPES = (torch.float16, torch.bfloat16)
_STATE_NAMES = ("step", "master", "exp_avg", "exp_avg_sq")


class MixedPrecisionAdamW(torch.optim.Optimizer):
    """AdamW for bf16 or fp16 parameters, with an fp32 master copy of each.

    Bytes per parameter with half-precision gradients: parameter 2, gradient 2, master 4, first
    moment 4, second moment 4, so 16 in all, as ZeRO counts them (Rajbhandari et al., SC 2020,
    section 3.1). The arithmetic is fp32 tensor operations only: nothing is read back to the host,
    and `lr` may be a 0-d tensor. There is no loss scaling. Each parameter is one update op, in a
    captured step as in an eager one.

    A group has one step count, as in fused implementations; it is in the state of the group's first
    trainable parameter under `step`. The state exists as soon as the optimizer does, because the
    master copy cannot be rebuilt from zeros.

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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and creates the state of its parameters that take gradients.

        Args:
            param_group: As for any optimizer.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        trainable = [param for param in group["params"] if param.requires_grad]
        for param in trainable:
            self._moments(param)
        if trainable:
            self._step_count(group, trainable[0])

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
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._update(params, group)
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

    def _moments(self, param: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns master copy, first and second moment, and makes them if there are none yet."""
        state: dict[str, torch.Tensor] = self.state[param]
        if "master" not in state:
            state["master"] = param.detach().to(dtype=torch.float32, copy=True)
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        return state["master"], state["exp_avg"], state["exp_avg_sq"]

    def _step_count(self, group: dict[str, Any], holder: nn.Parameter) -> torch.Tensor:
        """Returns the group's step count, put into the state of `holder` if there is none yet."""
        for param in group["params"]:
            count: torch.Tensor | None = self.state.get(param, {}).get("step")
            if count is not None:
                return count
        count = torch.zeros((), dtype=torch.float32, device=holder.device)
        self.state[holder]["step"] = count
        return count

    def _update(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        step = self._step_count(group, params[0]).add_(1.0)
        # Both bias corrections are moved into the scalars: m / c1 / (sqrt(v / c2) + eps) is
        # sqrt(c2) / c1 * m / (sqrt(v) + eps * sqrt(c2)).
        root = (1.0 - beta2**step).sqrt()
        step_size = lr * root / (1.0 - beta1**step)
        eps = group["eps"] * root
        decay = 1.0 - lr * group["weight_decay"]
        if not isinstance(decay, torch.Tensor):
            decay = torch.full((), decay, dtype=torch.float64)
        for param in params:
            master, exp_avg, exp_avg_sq = self._moments(param)
            param.copy_(
                torch.ops.shardwright.adam_master_update_(
                    master, param.grad, exp_avg, exp_avg_sq, step_size, eps, decay,
                    beta1=beta1, beta2=beta2, dtype=param.dtype,
                )
            )  # fmt: skip


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
