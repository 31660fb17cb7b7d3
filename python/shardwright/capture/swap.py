"""Puts traced tensors into the user's modules and optimizers for the time of a trace.

Nothing of the user's is changed: attributes, parameter groups and state are put back afterwards,
also what the step stored on modules while it ran (caches, counters).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shardwright.capture.arguments import StepArguments
from shardwright.capture.optimizers import RecordingGroup


@contextmanager
def modules_on(arguments: StepArguments, traced: Mapping[int, Tensor]) -> Iterator[None]:
    """Replaces parameters and buffers.

    Args:
        arguments: whose modules.
        traced: id of the real tensor -> traced one.
    """
    parts = {id(m): m for root in arguments.modules.values() for m in root.modules()}
    saved = {key: _snapshot(part) for key, part in parts.items()}
    try:
        for part in parts.values():
            tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for table in tables:
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = traced[id(tensor)]
        yield
    finally:
        for key, part in parts.items():
            _restore(part, saved[key])


_TABLES = ("_parameters", "_buffers", "_modules")


def _snapshot(part: nn.Module) -> dict[str, Any]:
    state = dict(part.__dict__)
    for name in _TABLES:
        state[name] = (state[name], dict(state[name]))
    return state


def _restore(part: nn.Module, state: dict[str, Any]) -> None:
    for name in _TABLES:
        table, content = state[name]
        table.clear()
        table.update(content)
        state[name] = table
    part.__dict__.clear()
    part.__dict__.update(state)


@contextmanager
def optimizers_on(
    arguments: StepArguments,
    traced: Mapping[int, Tensor],
    states: Mapping[str, Mapping[str, Mapping[str, Any]]],
    steps: Mapping[str, Callable[..., Any]],
    groups: Mapping[str, list[RecordingGroup]],
    state_table: Callable[[str, str], dict[str, Any]],
) -> Iterator[None]:
    """Replaces parameter groups, state and `step` of every optimizer.

    Args:
        arguments: whose optimizers.
        traced: id of the real parameter -> traced one.
        states: optimizer -> parameter name -> key -> traced state.
        steps: optimizer -> what `step` does.
        groups: optimizer -> groups to use; their parameters are replaced here.
        state_table: makes the (possibly recording) dict of a parameter's state.
    """
    names = arguments.parameter_name()
    with ExitStack() as stack:
        for name, optimizer in arguments.optimizers.items():
            stack.callback(_restore_optimizer, optimizer, dict(optimizer.__dict__))
            for group in groups[name]:
                group["params"] = [traced[id(p)] for p in group["params"]]
            state: dict[Any, Any] = defaultdict(dict)
            for real in (p for g in optimizer.param_groups for p in g["params"]):
                table = state_table(name, names[id(real)])
                table.update(states.get(name, {}).get(names[id(real)], {}))
                state[traced[id(real)]] = table
            optimizer.__dict__["param_groups"] = groups[name]
            optimizer.__dict__["state"] = state
            optimizer.__dict__["step"] = steps[name]
        yield


def _restore_optimizer(optimizer: Optimizer, attributes: dict[str, Any]) -> None:
    optimizer.__dict__.clear()
    optimizer.__dict__.update(attributes)
