"""Optimizers during capture: state and hyper-parameters as inputs, `step` as update ops.

Adam, AdamW and SGD become one `shardwright` update op per parameter whatever their foreach, fused
and capturable flags. Any other optimizer is traced through its own code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from shardwright.capture.arguments import StepArguments
from shardwright.capture.step_graph import StateInit
from shardwright.errors import CaptureError, InternalError

_HYPER_NAME = re.compile(r"^(?P<optimizer>.*)\.param_groups\[(?P<group>\d+)\]\.(?P<field>.+)$")
_ADAM_HYPER = {"lr": "lr", "beta1": "betas[0]", "beta2": "betas[1]",
               "weight_decay": "weight_decay", "eps": "eps"}  # fmt: skip
_SGD_HYPER = {key: key for key in ("lr", "momentum", "dampening", "weight_decay")}


@dataclass(frozen=True)
class HyperInput:
    """A hyper-parameter fed to the graph at every call as a 0-d float64 CPU tensor.

    Attributes:
        name: `optimizer.param_groups[0].lr`.
        optimizer, group: which one.
        key: `lr`, `beta1`, ...
    """

    name: str
    optimizer: str
    group: int
    key: str


@dataclass(frozen=True)
class StateInput:
    """Optimizer state fed to the graph.

    Attributes:
        optimizer, parameter, key: whose state.
        shape, dtype: of the unsharded state.
        init: how it begins when the optimizer does not hold it yet.
    """

    optimizer: str
    parameter: str
    key: str
    shape: torch.Size
    dtype: torch.dtype
    init: StateInit

    @property
    def name(self) -> str:
        """`<parameter>.<key>`."""
        return f"{self.parameter}.{self.key}"


def is_known(optimizer: Optimizer) -> bool:
    """Whether the optimizer's step is replaced by update ops."""
    return type(optimizer) in (Adam, AdamW, SGD)


def hyper_inputs(optimizers: Mapping[str, Optimizer], baked: frozenset[str]) -> list[HyperInput]:
    """Hyper-parameters that are inputs, in a fixed order.

    Args:
        optimizers: by argument path.
        baked: names of inputs that are to be constants of the graph instead.
    """
    found = []
    for name, optimizer in optimizers.items():
        for i in range(len(optimizer.param_groups)):
            fields = {"lr": "lr"}
            if is_known(optimizer):
                fields = _SGD_HYPER if type(optimizer) is SGD else _ADAM_HYPER
            elif not isinstance(optimizer.param_groups[i].get("lr"), (float, int, Tensor)):
                fields = {}
            for key, path in fields.items():
                full_name = f"{name}.param_groups[{i}].{path}"
                if full_name not in baked:
                    found.append(HyperInput(full_name, name, i, key))
    return found


def read_hyper(optimizers: Mapping[str, Optimizer], name: str) -> float:
    """Present value of a hyper-parameter, for instance of `optimizer.param_groups[0].betas[1]`.

    SGD's dampening reads 0 until the group has momentum buffers: torch starts a buffer as the
    plain gradient.
    """
    match = _HYPER_NAME.match(name)
    if match is None:
        raise InternalError(f"{name} does not name a hyper-parameter", code="E911")
    optimizer = optimizers[match["optimizer"]]
    group = optimizer.param_groups[int(match["group"])]
    field = match["field"]
    if field == "dampening":
        started = any(
            optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in group["params"]
        )
        return float(group[field]) if started else 0.0
    value = group[field[:-3]][int(field[-2])] if field.endswith("]") else group[field]
    return float(value)


def group_value(group: dict[str, Any], key: str) -> Any:
    """Value of a hyper-parameter key such as `beta1` in a parameter group, as it stands there."""
    if key in ("beta1", "beta2"):
        return dict.__getitem__(group, "betas")[int(key[-1]) - 1]
    return dict.__getitem__(group, key)


def state_inputs(arguments: StepArguments) -> list[StateInput]:
    """State of every trainable parameter of every optimizer, existing or to be created.

    Optimizers traced through their own code contribute the state they hold.
    """
    names = arguments.parameter_name()
    found = []
    for name, optimizer in arguments.optimizers.items():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.requires_grad:
                    continue
                held = optimizer.state.get(parameter, {})
                for key, (shape, dtype) in _state_layout(optimizer, group, parameter, held):
                    found.append(
                        StateInput(name, names[id(parameter)], key, shape, dtype, StateInit("full"))
                    )
    return found


def _state_layout(
    optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor, held: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[torch.Size, torch.dtype]]]:
    """Keys of a parameter's state with shape and dtype, in a fixed order."""
    expected: dict[str, tuple[torch.Size, torch.dtype]] = {}
    if type(optimizer) is SGD:
        if group["momentum"] != 0:
            expected["momentum_buffer"] = (parameter.shape, parameter.dtype)
    elif is_known(optimizer):
        wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
        step_dtype = torch.float64 if wide else torch.float32
        keys = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        expected = dict.fromkeys(keys, (parameter.shape, parameter.dtype))
        expected["step"] = (torch.Size([]), step_dtype)
    else:
        for key, value in held.items():
            layout = state_value_layout(value)
            if layout is not None:
                expected[key] = layout
    for key in sorted(expected):
        value = held.get(key)
        yield key, (value.shape, value.dtype) if isinstance(value, Tensor) else expected[key]


def state_value_layout(value: object) -> tuple[torch.Size, torch.dtype] | None:
    """Shape and dtype of a state entry as a graph input; numbers become 0-d tensors."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return torch.Size([]), torch.int64 if isinstance(value, int) else torch.float64


HyperReader = Callable[[int, str], Tensor]


def update_parameters(optimizer: Optimizer, hyper: HyperReader) -> None:
    """Does one step of Adam, AdamW or SGD with update ops, on whatever tensors it holds.

    Args:
        optimizer: its state must be complete; parameters without gradient are skipped.
        hyper: (group index, key) -> 0-d tensor.
    """
    with torch.no_grad():
        for i, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update_parameter(optimizer, i, group, parameter, hyper)


def _update_parameter(
    optimizer: Optimizer, index: int, group: dict[str, Any], parameter: Tensor, hyper: HyperReader
) -> None:
    ops = torch.ops.shardwright
    state = optimizer.state[parameter]
    grad = parameter.grad
    maximize = bool(dict.__getitem__(group, "maximize"))
    if type(optimizer) is SGD:
        lr, decay = hyper(index, "lr"), hyper(index, "weight_decay")
        if "momentum_buffer" not in state:
            parameter.copy_(ops.sgd_update(parameter, grad, lr, decay, maximize=maximize))
            return
        buffer = state["momentum_buffer"]
        new = ops.sgd_momentum_update(
            parameter, grad, buffer, lr, hyper(index, "momentum"), hyper(index, "dampening"), decay,
            nesterov=bool(dict.__getitem__(group, "nesterov")), maximize=maximize,
        )  # fmt: skip
        old = (parameter, buffer)
    else:
        amsgrad = bool(dict.__getitem__(group, "amsgrad"))
        keys = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else []), "step"]
        update = ops.adam_amsgrad_update if amsgrad else ops.adam_update
        old = (parameter, *(state[key] for key in keys))
        new = update(
            parameter, grad, *old[1:], *(hyper(index, key) for key in _ADAM_HYPER),
            decoupled=bool(dict.get(group, "decoupled_weight_decay", type(optimizer) is AdamW)),
            maximize=maximize,
        )  # fmt: skip
    for target, value in zip(old, new, strict=True):
        target.copy_(value)


class RecordingGroup(dict[str, Any]):
    """A parameter group that notes which hyper-parameters the step itself reads."""

    def __init__(self, group: Mapping[str, Any]) -> None:
        super().__init__(group)
        self.reads: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.reads.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As dict.get, noted."""
        self.reads.add(key)
        return super().get(key, default)


def refuse_step_arguments(name: str, where: str, kwargs: Mapping[str, Any]) -> None:
    """Raises E108 for arguments of optimizer.step other than a closure."""
    if kwargs:
        raise CaptureError(
            f"{name}.step got arguments that capture does not know: {', '.join(sorted(kwargs))}",
            code="E108",
            where=where,
            advice="call step() without arguments or with a closure",
        )
