"""How each parameter of a plan lies: stored, used, its gradient and its optimizer state, by layer.

Everything here is read off the plan; repeated layers that are sharded alike are folded into one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.plan import OpSharding, Plan, Spec, StagePlan, TensorSharding


@dataclass(frozen=True)
class PrintedSpec:
    """A spec in both its forms: per mesh axis, and as printed."""

    spec: Spec
    text: str


@dataclass(frozen=True)
class ParameterShardings:
    """One parameter and everything of the same shape that belongs to it.

    Attributes:
        name: Unsharded name.
        shape: Global shape.
        dtype: Of the stored parameter.
        stored: Between steps.
        forward: As forward ops use it.
        backward: As backward ops use it.
        gradient_made: As backward makes the gradient; None when there is none.
        gradient: As it is held for the update; None when there is none.
        state: By key ("exp_avg", ...), states of the parameter's shape only.
        output: What the module that owns the parameter computes in forward, and None if unknown.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: PrintedSpec
    forward: PrintedSpec
    backward: PrintedSpec
    gradient_made: PrintedSpec | None
    gradient: PrintedSpec | None
    state: Mapping[str, PrintedSpec]
    output: TensorSharding | None

    @property
    def num_elements(self) -> int:
        """Elements of the whole parameter."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class LayerShardings:
    """Parameters of one layer, or of several in a row that are sharded alike.

    Attributes:
        title: "layers.0-23", "layers.7", or "" for parameters outside numbered layers.
        repeats: How many layers the group stands for.
        rows: Of the first layer of the group; names without the layer's own prefix.
    """

    title: str
    repeats: int
    rows: tuple[tuple[str, ParameterShardings], ...]


def parameter_shardings(plan: Plan) -> list[ParameterShardings]:
    """One entry per parameter, in graph order."""
    found: list[ParameterShardings] = []
    for stage in plan.stages:
        found += _of_stage(stage)
    return found


def _of_stage(stage: StagePlan) -> list[ParameterShardings]:
    conversions = {
        (c.node, c.output, c.group): PrintedSpec(c.spec, c.text) for c in stage.conversions
    }
    states = _states(stage.ops)
    outputs = _module_outputs(stage.ops)
    made = {g.parameter: PrintedSpec(g.made, g.made_text) for g in stage.gradients}
    held = {g.parameter: PrintedSpec(g.held, g.held_text) for g in stage.gradients}
    found = []
    for op in stage.ops:
        if op.input_kind != "parameter":
            continue
        tensor = op.outputs[0]
        stored = PrintedSpec(tensor.spec, tensor.text)
        found.append(
            ParameterShardings(
                name=op.input_name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                stored=stored,
                forward=conversions.get((op.node, 0, 0), stored),
                backward=conversions.get((op.node, 0, 1), stored),
                gradient_made=made.get(op.input_name),
                gradient=held.get(op.input_name),
                state={
                    key: PrintedSpec(state.spec, state.text)
                    for key, state in states[op.input_name].items()
                    if state.shape == tensor.shape
                },
                output=outputs.get(op.input_name.rpartition(".")[0]),
            )
        )
    return found


def _states(ops: Iterable[OpSharding]) -> dict[str, dict[str, TensorSharding]]:
    states: dict[str, dict[str, TensorSharding]] = defaultdict(dict)
    for op in ops:
        if op.input_kind == "optimizer_state":
            parameter, _, key = op.input_name.rpartition(".")
            states[parameter][key] = op.outputs[0]
    return states


def _module_outputs(ops: Iterable[OpSharding]) -> dict[str, TensorSharding]:
    """First output of the last forward op of each module."""
    outputs: dict[str, TensorSharding] = {}
    for op in ops:
        if op.phase == "forward" and not op.input_kind and op.module_path and op.outputs:
            outputs[op.module_path] = op.outputs[0]
    return outputs


def layer_shardings(parameters: Sequence[ParameterShardings]) -> list[LayerShardings]:
    """Groups parameters by numbered layer and folds neighbours that are sharded alike.

    A layer is everything up to the first number in a name: `blocks.3.mlp.up.weight` belongs to
    `blocks.3`.
    """
    layers: dict[tuple[str, int], list[tuple[str, ParameterShardings]]] = {}
    for parameter in parameters:
        key, rest = _layer_of(parameter.name)
        layers.setdefault(key, []).append((rest, parameter))
    folded: list[LayerShardings] = []
    run: list[tuple[str, int]] = []
    for key in layers:
        follows = run and key[0] == run[-1][0] and key[1] == run[-1][1] + 1
        if follows and key[1] >= 0 and _alike(layers[run[0]], layers[key]):
            run.append(key)
            continue
        if run:
            folded.append(_fold(run, layers[run[0]]))
        run = [key]
    if run:
        folded.append(_fold(run, layers[run[0]]))
    return folded


def _layer_of(name: str) -> tuple[tuple[str, int], str]:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isascii() and part.isdigit() and i + 1 < len(parts):
            return (".".join(parts[:i]), int(part)), ".".join(parts[i + 1 :])
    return (parts[0] if len(parts) > 1 else "", -1), name


def _alike(
    first: Sequence[tuple[str, ParameterShardings]], other: Sequence[tuple[str, ParameterShardings]]
) -> bool:
    return [_content(*row) for row in first] == [_content(*row) for row in other]


def _content(name: str, row: ParameterShardings) -> tuple[object, ...]:
    return (
        name,
        row.shape,
        row.dtype,
        row.stored,
        row.forward,
        row.backward,
        row.gradient_made,
        row.gradient,
        tuple((key, row.state[key]) for key in sorted(row.state)),
        row.output,
    )


def _fold(
    run: Sequence[tuple[str, int]], rows: Sequence[tuple[str, ParameterShardings]]
) -> LayerShardings:
    prefix, first = run[0]
    if first < 0:
        return LayerShardings("", 1, tuple((row.name, row) for _, row in rows))
    last = run[-1][1]
    numbers = str(first) if first == last else f"{first}-{last}"
    return LayerShardings(f"{prefix}.{numbers}" if prefix else numbers, len(run), tuple(rows))


def state_text(state: Mapping[str, PrintedSpec]) -> str:
    """One text when all states lie alike: `"S0 R"`; else `"exp_avg S0 R, master R R"`."""
    texts = {spec.text for spec in state.values()}
    if len(texts) <= 1:
        return next(iter(texts), "-")
    return ", ".join(f"{key} {spec.text}" for key, spec in sorted(state.items()))
