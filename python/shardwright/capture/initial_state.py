"""How optimizer state begins that the step itself creates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from shardwright.capture.optimizers import StateInput
from shardwright.capture.step_graph import InputSpec, StateInit
from shardwright.errors import CaptureError


def beginnings(
    created: Sequence[tuple[StateInput, fx.Node]],
    spec_of: Mapping[fx.Node, InputSpec],
    constants: Mapping[str, Tensor],
    where: str,
) -> list[StateInput]:
    """Finds how state begins that the step made.

    Args:
        created: state with the node of its first value.
        spec_of: placeholder -> label.
        constants: values of the graph's constants.
        where: place of the step.

    Raises:
        CaptureError: E111 a state begins with a value that is computed in the step.
    """
    found = []
    for state, node in created:
        init = _initial_value(constants, node, spec_of, state.parameter)
        if init is None:
            raise CaptureError(
                f"state {state.key!r} of {state.optimizer} begins with a value that is computed "
                "inside the step",
                code="E111",
                values=[f"parameter: {state.parameter}", f"made by: {node}"],
                where=where,
                advice="begin it with zeros, a constant or a copy of the parameter, or create it "
                "in the optimizer's constructor",
            )
        found.append(StateInput(state.optimizer, state.parameter, state.key, state.shape,
                                state.dtype, init))  # fmt: skip
    return found


_SAME_VALUE = frozenset({
    "aten::clone", "aten::detach", "aten::alias", "aten::_to_copy", "aten::lift_fresh_copy",
    "aten::lift_fresh", "aten::view", "aten::_unsafe_view",
})  # fmt: skip
_FILLS = {
    "aten::zeros": 0.0, "aten::zeros_like": 0.0, "aten::new_zeros": 0.0, "aten::zero": 0.0,
    "aten::ones": 1.0, "aten::ones_like": 1.0, "aten::new_ones": 1.0,
}  # fmt: skip


def _initial_value(
    constants: Mapping[str, Tensor], node: Any, spec_of: Mapping[fx.Node, InputSpec], owner: str
) -> StateInit | None:
    while isinstance(node, fx.Node):
        if node.op == "placeholder":
            spec = spec_of[node]
            copies = spec.kind == "parameter" and spec.name == owner
            return StateInit("parameter") if copies else None
        if node.op == "get_attr":
            value = constants[str(node.target)]
            if not value.numel() or not bool((value == value.flatten()[0]).all()):
                return None
            return StateInit("full", float(value.flatten()[0]))
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        if name in _FILLS:
            return StateInit("full", _FILLS[name])
        if name in ("aten::full", "aten::full_like", "aten::new_full", "aten::fill"):
            fill = node.args[2] if name == "aten::new_full" else node.args[1]
            return StateInit("full", float(fill)) if isinstance(fill, (int, float)) else None
        if name == "aten::scalar_tensor":
            value_argument: Any = node.args[0]
            return StateInit("full", float(value_argument))
        if name not in _SAME_VALUE:
            return None
        node = node.args[0]
    return None
