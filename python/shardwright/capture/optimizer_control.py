"""What stands in for the user's optimizers while their step is traced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardwright.capture import optimizers as optim
from shardwright.capture.optimizers import RecordingGroup, StateInput
from shardwright.capture.session import Session
from shardwright.capture.source import current_user_line
from shardwright.capture.step_graph import StateInit
from shardwright.capture.tags import Tags


class OptimizerControl:
    """What stands in for the user's optimizers during a trace."""

    def __init__(
        self, session: Session, by_name: dict[tuple[str, str], Tensor], tags: Tags
    ) -> None:
        self._session = session
        self._by_name = by_name
        self._tags = tags
        self._optimizers = session.arguments.optimizers
        self.groups = {
            name: [RecordingGroup(group) for group in optimizer.param_groups]
            for name, optimizer in self._optimizers.items()
        }
        self._cleared: set[int] = set()
        self._hyper_inputs = {(h.optimizer, h.group, h.key): h for h in session.hypers}
        self._before = {
            h.name: optim.group_value(self.groups[h.optimizer][h.group], h.key)
            for h in session.hypers
        }
        for hyper in session.hypers:
            if not optim.is_known(self._optimizers[hyper.optimizer]):
                group = self.groups[hyper.optimizer][hyper.group]
                group[hyper.key] = by_name["hyper", hyper.name]
        for name, optimizer in self._optimizers.items():
            for group in self.groups[name]:
                if not optim.is_known(optimizer):
                    group.update({k: False for k in ("foreach", "fused") if k in group})

    def states(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Traced state by optimizer, parameter and key."""
        table: dict[str, dict[str, dict[str, Any]]] = {}
        for state in self._session.states:
            value = self._by_name["optimizer_state", state.name]
            table.setdefault(state.optimizer, {}).setdefault(state.parameter, {})[state.key] = value
        return table

    def steps(self) -> dict[str, Any]:
        """What `step` does, by optimizer."""
        return {name: self._step_of(name, opt) for name, opt in self._optimizers.items()}

    def state_table(self, optimizer: str, parameter: str) -> dict[str, Any]:
        """Dict for a parameter's state that notes how new entries begin."""
        return _StateTable(self._session, optimizer, parameter)

    def _step_of(self, name: str, optimizer: Optimizer) -> Any:
        original = type(optimizer).step

        def step(closure: Any = None, **kwargs: Any) -> Any:
            optim.refuse_step_arguments(name, current_user_line(), kwargs)
            if not optim.is_known(optimizer):
                with self._tags.phase("update"), _as_if_compiling(type(optimizer).__module__):
                    arguments = () if closure is None else (closure,)
                    return original(optimizer, *arguments)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for hook in optimizer._optimizer_step_pre_hooks.values():
                hook(optimizer, (), {})
            with self._tags.phase("update"):
                optim.update_parameters(optimizer, lambda group, key: self._hyper(name, group, key))
            for hook in optimizer._optimizer_step_post_hooks.values():
                hook(optimizer, (), {})
            return loss

        return step

    def _hyper(self, name: str, group: int, key: str) -> Tensor:
        """Input for a hyper-parameter, or its value if the step itself has set it."""
        hyper = self._hyper_inputs[name, group, key]
        present = optim.group_value(self.groups[name][group], key)
        if present is self._before[hyper.name]:
            return self._by_name["hyper", hyper.name]
        return torch.full((), float(present), dtype=torch.float64)

    @contextlib.contextmanager
    def watching_zero_grad(self, traced: dict[int, Tensor]) -> Iterator[None]:
        """Notes which gradients zero_grad() clears before the first backward()."""
        original = nn.Module.zero_grad

        def note(parameters: Any) -> None:
            if self._tags.num_backward == 0:
                self._cleared.update(id(p) for p in parameters)

        def module_zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
            note(module.parameters())
            original(module, set_to_none)

        def optimizer_zero_grad(optimizer: Optimizer) -> Any:
            def zero_grad(set_to_none: bool = True) -> None:
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
                note(parameters)
                type(optimizer).zero_grad(optimizer, set_to_none)

            return zero_grad

        for optimizer in self._optimizers.values():
            optimizer.__dict__["zero_grad"] = optimizer_zero_grad(optimizer)
        setattr(nn.Module, "zero_grad", module_zero_grad)  # noqa: B010
        try:
            yield
        finally:
            setattr(nn.Module, "zero_grad", original)  # noqa: B010

    def finish(self, traced: dict[int, Tensor]) -> None:
        """Notes guards and carried gradients once the step has returned."""
        names = self._session.arguments.parameter_name()
        for real, value in traced.items():
            grad = value.grad if isinstance(value, nn.Parameter) else None
            if grad is not None and id(value) not in self._cleared:
                self._session.carried.add(names[real])
            value.grad = None
        for name in self._optimizers:
            for i, group in enumerate(self.groups[name]):
                for key in sorted(group.reads - {"params"}):
                    setting: Any = dict.get(group, key)
                    if isinstance(setting, (int, float, str, tuple, list)):
                        self._session.guards[f"{name}.param_groups[{i}].{key}"] = setting


class _StateTable(dict[str, Any]):
    """State of one parameter; a new tensor entry is noted together with its first value."""

    def __init__(self, session: Session, optimizer: str, parameter: str) -> None:
        super().__init__()
        self._session = session
        self._owner = (optimizer, parameter)

    def __setitem__(self, key: str, value: Any) -> None:
        layout = optim.state_value_layout(value)
        if key not in self and layout is not None:
            first = value if isinstance(value, Tensor) else torch.tensor(value)
            state = StateInput(*self._owner, key, *layout, StateInit("full"))
            assert self._session.node_of is not None
            self._session.created.append((state, self._session.node_of(first)))
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As dict.setdefault, noted."""
        if key not in self:
            self[key] = default
        return self[key]


@contextlib.contextmanager
def _as_if_compiling(module_name: str) -> Iterator[None]:
    """Makes torch.optim keep step counts and lr as tensors instead of reading them.

    Where it would read a number, it gets a float64 tensor: numbers are float64, while step counts
    are float32.

    Args:
        module_name: module that defines the optimizer.
    """
    flags = torch.compiler
    saved = flags._is_compiling_flag
    module = sys.modules[module_name]
    flags._is_compiling_flag = True
    try:
        if hasattr(module, "_get_value"):
            with mock.patch.object(module, "_get_value", _as_number):
                yield
        else:
            yield
    finally:
        flags._is_compiling_flag = saved


def _as_number(value: Any) -> Any:
    return value.to(torch.float64) if isinstance(value, Tensor) else value
