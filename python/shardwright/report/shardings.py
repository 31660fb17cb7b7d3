"""How each parameter of a plan lies: stored, used, its gradient and its optimizer state, by layer.

Everything here is read off the plan; layers that are sharded alike are folded into one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
class LayerRow:
    """One parameter of one layer, or of several layers that are sharded alike.

    Attributes:
        name: Without the layer's own prefix.
        parameter: That of the first layer.
        gradients: Specs in which the gradients of all the layers are held, each once, most frequent
            first.
        states: The same of their optimizer states.
        outputs: The same of what the modules compute.
    """

    name: str
    parameter: ParameterShardings
    gradients: tuple[PrintedSpec, ...]
    states: tuple[PrintedSpec, ...]
    outputs: tuple[PrintedSpec, ...]


@dataclass(frozen=True)
class LayerShardings:
    """Parameters of one layer, or of several that are sharded alike.

    Attributes:
        title: "layers.0-11, 13-23", "layers.7", or "" for parameters outside numbered layers.
        repeats: How many layers it stands for.
        rows: Their parameters.
    """

    title: str
    repeats: int
    rows: tuple[LayerRow, ...]


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
    """Groups parameters by numbered layer and folds layers that are sharded alike.

    A layer is everything up to the first number in a name: `blocks.3.mlp.up.weight` belongs to
    `blocks.3`. Alike are layers of one prefix whose parameters have the same names, shapes, and
    specs when stored and used; gradients, optimizer states and outputs, where equally good choices
    abound, may differ and are listed.
    """
    layers: dict[tuple[str, int], list[tuple[str, ParameterShardings]]] = {}
    for parameter in parameters:
        key, rest = _layer_of(parameter.name)
        layers.setdefault(key, []).append((rest, parameter))
    groups: dict[object, list[tuple[str, int]]] = {}
    for (prefix, number), rows in layers.items():
        content = (prefix, number < 0, tuple(_content(*row) for row in rows))
        groups.setdefault(content, []).append((prefix, number))
    return [_fold([layers[key] for key in keys], keys) for keys in groups.values()]


def _layer_of(name: str) -> tuple[tuple[str, int], str]:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isascii() and part.isdigit() and i + 1 < len(parts):
            return (".".join(parts[:i]), int(part)), ".".join(parts[i + 1 :])
    return (parts[0] if len(parts) > 1 else "", -1), name


def _content(name: str, row: ParameterShardings) -> tuple[object, ...]:
    return (
        name,
        row.shape,
        row.dtype,
        row.stored,
        row.forward,
        row.backward,
    )


def _fold(
    layers: Sequence[Sequence[tuple[str, ParameterShardings]]], keys: Sequence[tuple[str, int]]
) -> LayerShardings:
    prefix, first = keys[0]
    rows = tuple(
        LayerRow(
            name=name,
            parameter=parameter,
            gradients=_distinct(
                spec for layer in layers if (spec := layer[index][1].gradient) is not None
            ),
            states=_distinct(
                spec for layer in layers for _, spec in sorted(layer[index][1].state.items())
            ),
            outputs=_distinct(
                PrintedSpec(output.spec, output.text)
                for layer in layers
                if (output := layer[index][1].output) is not None
            ),
        )
        for index, (name, parameter) in enumerate(layers[0])
    )
    if first < 0:
        return LayerShardings("", 1, rows)
    numbers = _ranges([number for _, number in keys])
    return LayerShardings(f"{prefix}.{numbers}" if prefix else numbers, len(keys), rows)


def _distinct(specs: Iterable[PrintedSpec]) -> tuple[PrintedSpec, ...]:
    """Each printed spec once, the most frequent first."""
    count: Counter[str] = Counter()
    first: dict[str, PrintedSpec] = {}
    for spec in specs:
        count[spec.text] += 1
        first.setdefault(spec.text, spec)
    return tuple(first[text] for text, _ in count.most_common())


def _ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `"0-2, 5"`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
