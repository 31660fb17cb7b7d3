"""The oracle of capture: the captured graph, run op by op, against the user's eager step."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardwright.capture import StepGraph, capture, read_inputs, sort_arguments, write_updates

Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected value (or over 1, if that is smaller)."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if not expected.numel():
        return 0.0
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).abs().max() / max(1.0, float(expected.abs().max())))


def run_captured(graph: StepGraph, step: Any, args: Any, kwargs: Any = None, seed: int = 0) -> Any:
    """One step through the captured graph; updates the arguments in place."""
    arguments = sort_arguments(step, args, kwargs or {})
    return write_updates(graph, arguments, graph.run_reference(read_inputs(graph, arguments, seed)))


def state_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """State by parameter in group order, entries that hold nothing left out."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [
        {k: v for k, v in optimizer.state.get(p, {}).items() if v is not None} for p in parameters
    ]


def compare_objects(actual: Any, expected: Any) -> dict[str, float]:
    """Errors of every parameter, buffer and optimizer state among the arguments of a step."""
    errors: dict[str, float] = {}
    for i, (a, e) in enumerate(
        zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
    ):
        if isinstance(a, torch.nn.Module):
            mine, theirs = a.state_dict(), e.state_dict()
            assert list(mine) == list(theirs)
            errors |= {f"{i}.{k}": relative_error(mine[k], theirs[k]) for k in mine}
        elif isinstance(a, torch.optim.Optimizer):
            for j, (mine, theirs) in enumerate(zip(state_of(a), state_of(e), strict=True)):
                assert set(mine) == set(theirs)
                for key, value in theirs.items():
                    name = f"{i}.state[{j}].{key}"
                    known = torch.as_tensor(value)
                    errors[name] = relative_error(torch.as_tensor(mine[key]).to(known), known)
    return errors


@pytest.fixture
def check_parity() -> Callable[..., StepGraph]:
    """Function that captures a step and compares some runs of it with the eager step."""

    def check(
        make: Make,
        *,
        steps: int = 3,
        tolerance: float = 1e-12,
        kwargs: Mapping[str, Any] | None = None,
        between: Callable[..., None] = lambda *args: None,
    ) -> StepGraph:
        step, args = make()
        eager_step, eager_args = make()
        graph = capture(step, args, kwargs)
        for _ in range(steps):
            result = run_captured(graph, step, args, kwargs)
            expected = eager_step(*eager_args, **(kwargs or {}))
            leaves, spec = pytree.tree_flatten(result)
            expected_leaves, expected_spec = pytree.tree_flatten(expected)
            assert spec == expected_spec
            for leaf, expected_leaf in zip(leaves, expected_leaves, strict=True):
                if isinstance(expected_leaf, Tensor):
                    assert relative_error(leaf, expected_leaf) <= tolerance
                else:
                    assert leaf == expected_leaf
            errors = compare_objects(args, eager_args)
            worst = max(errors, key=lambda name: errors[name])
            assert errors[worst] <= tolerance, f"{worst}: {errors[worst]}"
            between(*args)
            between(*eager_args)
        return graph

    return check
