"""The models of the pipeline matrix: their steps, and what one device computes, written by hand.

The optimizer is SGD with momentum. AdamW divides every gradient by its own size, rounding by
rounding where there is nothing else: two correct orders of the same sums differ by 2e-12 to 1e-11
after ten steps, so it could not be held to 1e-12.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tests.python.distributed.pipeline_cases import NUM_MICROBATCHES, NUM_STEPS, Case
from tests.python.distributed.unet import unet, unet_integer
from torch import Tensor

from shardwright import forced, zoo
from shardwright.capture import StepGraph, capture
from shardwright.pipeline.microbatches import split_microbatches

Target = tuple[Callable[..., Tensor], tuple[Any, ...]]

_SCALE_FLOOR = 1e-3
_BUILDERS: dict[tuple[str, bool], Callable[[], Target]] = {
    ("gpt", True): lambda: zoo.gpt_integer(),
    ("gpt", False): lambda: zoo.gpt_tiny(optimizer="sgd", lr=0.1, dtype=torch.float64),
    ("wide_resnet", True): lambda: zoo.wide_resnet_integer(momentum=1.0),
    ("wide_resnet", False): lambda: zoo.wide_resnet_tiny(dtype=torch.float64),
    ("unet", True): lambda: unet_integer(momentum=1.0),
    ("unet", False): unet,
}


def build(model: str, exact: bool) -> Target:
    """A fresh step and its arguments; the first two are model and optimizer."""
    return _BUILDERS[model, exact]()


def snapshot(args: tuple[Any, ...], *, last: bool) -> dict[str, Tensor]:
    """Parameters and buffers by name, as they are now (not copied).

    After the last step the state of the optimizer too: it remembers all steps.
    """
    model, optimizer = args[0], args[1]
    found = {f"stored {name}": value for name, value in model.state_dict().items()}
    if last:
        name_of = {id(parameter): name for name, parameter in model.named_parameters()}
        names = [name_of[id(p)] for group in optimizer.param_groups for p in group["params"]]
        for number, entry in optimizer.state_dict()["state"].items():
            for key, value in entry.items():
                if isinstance(value, Tensor):
                    found[f"state {names[number]}.{key}"] = value
    return found


@dataclass(frozen=True)
class Expected:
    """A tensor, and what differences from it are relative to.

    Attributes:
        value: as one device has it.
        scale: its largest magnitude, or a thousandth of that of all tensors of its kind: what is
            zero but for rounding has no scale of its own.
    """

    value: Tensor
    scale: float


@functools.cache
def expected(model: str, exact: bool) -> list[dict[str, Expected]]:
    """By step what one device returns ("loss") and then holds, as `snapshot` names it."""
    step, args = build(model, exact)
    if (model, exact) == ("wide_resnet", False):
        step = _in_microbatches
    trajectory = []
    for number in range(NUM_STEPS):
        loss = step(*args).detach()
        held = snapshot(args, last=number == NUM_STEPS - 1)
        copies = {name: value.detach().clone() for name, value in held.items()}
        trajectory.append(_scaled({"loss": loss, **copies}))
    return trajectory


def _scaled(values: dict[str, Tensor]) -> dict[str, Expected]:
    sizes = {name: float(value.double().abs().max()) for name, value in values.items()}

    def kind(name: str) -> tuple[str, bool]:
        return name.split()[0], values[name].is_floating_point()

    largest: dict[tuple[str, bool], float] = {}
    for name, size in sizes.items():
        largest[kind(name)] = max(largest.get(kind(name), 0.0), size)
    return {
        name: Expected(value, max(sizes[name], _SCALE_FLOOR * largest[kind(name)]))
        for name, value in values.items()
    }


def _in_microbatches(model, optimizer, images, labels):
    """The zoo's step with batch statistics of every microbatch, and their gradients averaged."""
    total = torch.zeros((), dtype=images.dtype)
    counts = {n: b.clone() for n, b in model.named_buffers() if n.endswith("num_batches_tracked")}
    for part, of_part in zip(
        images.chunk(NUM_MICROBATCHES), labels.chunk(NUM_MICROBATCHES), strict=True
    ):
        loss = F.cross_entropy(model(part), of_part) / NUM_MICROBATCHES
        loss.backward()
        total += loss.detach()
    for name, buffer in model.named_buffers():
        if name in counts:  # counts steps, not microbatches
            buffer.copy_(counts[name] + 1)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


@functools.cache
def captured(model: str, exact: bool) -> StepGraph:
    """The step graph, which is the same for all pipelines of a model."""
    step, args = build(model, exact)
    return capture(step, args)


@functools.cache
def in_microbatches(model: str, exact: bool) -> StepGraph:
    """The same in the microbatches of all cases."""
    return split_microbatches(captured(model, exact), NUM_MICROBATCHES)


def forced_specs(case: Case) -> dict[str, str] | None:
    """What a case forces: batch split and the rest whole, or weights split and the batch whole."""
    if not case.scheme:
        return None
    graph = captured(case.model, case.exact)
    if case.scheme == "data":
        return forced.data_parallel(graph, (2,))
    whole = {s.name: " ".join(["R"] * s.meta.dim()) for s in graph.inputs if s.kind == "batch"}
    return whole | forced.tensor_parallel(graph, (2,), _split_dims(graph))


def _split_dims(graph: StepGraph) -> dict[str, int]:
    """Weights -> the dim that is split in two: rows and columns by turns."""
    weights: dict[str, int] = {}
    for spec in graph.inputs:
        shape = spec.meta.shape
        if spec.kind == "parameter" and len(shape) > 1:
            first = len(weights) % 2
            weights[spec.name] = first if shape[first] % 2 == 0 else 1 - first
    return weights
