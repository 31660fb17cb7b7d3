"""Between a StepGraph and the user's objects: read its inputs, write its updates back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardwright.capture.arguments import StepArguments
from shardwright.capture.optimizers import read_hyper
from shardwright.capture.step_graph import InputSpec, StepGraph


def initial_state(spec: InputSpec, parameter: Tensor) -> Tensor:
    """First value of an optimizer state that does not exist yet, for (a shard of) its parameter.

    Args:
        spec: of kind "optimizer_state".
        parameter: owning parameter or shard; gives device and, unless the state is 0-d, shape.
    """
    assert spec.init is not None
    if spec.init.kind == "parameter":
        return parameter.detach().to(spec.meta.dtype, copy=True)
    like_parameter = spec.meta.dim() > 0
    return torch.full(
        parameter.shape if like_parameter else (),
        spec.init.value,
        dtype=spec.meta.dtype,
        device=parameter.device if like_parameter else "cpu",
    )


def state_owners(arguments: StepArguments) -> dict[str, Any]:
    """Parameter name -> the optimizer that updates it."""
    return {
        parameter: arguments.optimizers[name]
        for name, parameters in arguments.optimizer_parameters.items()
        for parameter in parameters
    }


def read_inputs(graph: StepGraph, arguments: StepArguments, seed: int = 0) -> list[Tensor]:
    """Real value of every input of the graph, in order; missing optimizer state begins anew.

    Args:
        graph: captured from these arguments or from arguments of the same signature.
        arguments: the user's objects.
        seed: of this step's dropout masks.
    """
    owners = state_owners(arguments)
    values: list[Tensor] = []
    for spec in graph.inputs:
        if spec.kind == "parameter":
            value = arguments.parameters[spec.name].detach()
        elif spec.kind == "buffer":
            value = arguments.buffers[spec.name].detach()
        elif spec.kind == "batch":
            value = arguments.batch[spec.leaf or spec.name].detach()
        elif spec.kind == "hyper":
            hyper = read_hyper(arguments.optimizers, spec.name)
            value = torch.tensor(hyper, dtype=torch.float64)
        elif spec.kind == "rng":
            value = torch.tensor(seed, dtype=torch.int64)
        elif spec.kind == "constant":
            value = graph.constants[spec.name]
        else:
            assert spec.parameter is not None
            parameter = arguments.parameters[spec.parameter]
            held = owners[spec.parameter].state.get(parameter, {}).get(spec.key)
            if held is None:
                value = initial_state(spec, parameter)
            else:
                value = torch.as_tensor(held, dtype=spec.meta.dtype).detach()
        values.append(value)
    return values


def write_updates(graph: StepGraph, arguments: StepArguments, outputs: Sequence[Tensor]) -> Any:
    """Stores new values in parameters, buffers and optimizer state.

    Args:
        graph: the graph that made the outputs.
        arguments: the user's objects.
        outputs: one per output of the graph.

    Returns:
        The user's return value.
    """
    owners = state_owners(arguments)
    results = []
    with torch.no_grad():
        for output, value in zip(graph.outputs, outputs, strict=True):
            if output.updates is None:
                results.append(value)
                continue
            spec = graph.inputs[output.updates]
            if spec.kind == "parameter":
                arguments.parameters[spec.name].copy_(value)
            elif spec.kind == "buffer":
                arguments.buffers[spec.name].copy_(value)
            else:
                assert spec.parameter is not None
                state = owners[spec.parameter].state[arguments.parameters[spec.parameter]]
                if isinstance(state.get(spec.key), Tensor):
                    state[spec.key].copy_(value)
                else:
                    state[spec.key] = value.clone()
    return graph.result_tree.rebuild(results)
