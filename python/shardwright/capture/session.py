"""What one trace is given and what it finds out on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwright.capture.arguments import StepArguments
from shardwright.capture.optimizers import HyperInput, StateInput


@dataclass
class Session:
    """What one trace is given, and what it finds out on the way.

    Attributes:
        arguments: what the step is called with.
        states: optimizer state that is fed as input.
        hypers: hyper-parameters that are fed as inputs.
        with_grads: whether parameters begin with a gradient.
        fake_mode: mode of all fake tensors of the trace.
        result: the user's return value.
        guards: hyper-parameter values that the step read as Python numbers.
        created: state made by the step, with the node of its first value.
        carried: parameters that keep a gradient which the step did not clear at its start.
        node_of: gives the node of a tensor's present value.
    """

    arguments: StepArguments
    states: list[StateInput]
    hypers: list[HyperInput]
    with_grads: bool
    fake_mode: FakeTensorMode = field(
        default_factory=lambda: FakeTensorMode(allow_non_fake_inputs=True)
    )
    result: Any = None
    guards: dict[str, Any] = field(default_factory=dict)
    created: list[tuple[StateInput, fx.Node]] = field(default_factory=list)
    carried: set[str] = field(default_factory=set)
    node_of: Callable[[Tensor], fx.Node] | None = None
