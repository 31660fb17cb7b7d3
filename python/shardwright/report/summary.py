"""What a plan amounts to in the field's words, derived from its specs alone.

Nothing is assumed from how the plan was made: an axis is called tensor parallel because weights are
used in pieces along it, data parallel because whole weights meet pieces of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from shardwright.plan import Plan
from shardwright.report.shardings import ParameterShardings, parameter_shardings
from shardwright.report.units import count_text

# A word is used without a share when it holds for so much of the weights.
_NEARLY_ALL = 0.95
# What is less is not mentioned.
_NEARLY_NONE = 0.005
# A kind of collective with so much of the communication is named.
_LARGE_PART = 0.25


@dataclass(frozen=True)
class AxisUse:
    """What one mesh axis does, as shares of the elements of the weights.

    Attributes:
        axis: Index of the mesh axis.
        size: Its number of devices.
        tensor: Share of weights used in pieces along the axis.
        data: Share used whole, with outputs in pieces.
        idle: Share used whole, with outputs whole too: every device does the same.
    """

    axis: int
    size: int
    tensor: float
    data: float
    idle: float


def axis_uses(plan: Plan, parameters: Iterable[ParameterShardings]) -> list[AxisUse]:
    """One entry per mesh axis of more than one device; weights are parameters of 2 or more dims."""
    weights = [p for p in parameters if len(p.shape) >= 2 and p.output is not None]
    total = sum(p.num_elements for p in weights)
    uses = []
    for axis, size in enumerate(plan.mesh_shape):
        if size == 1 or not total:
            continue
        tensor = data = 0
        for weight in weights:
            assert weight.output is not None
            if _sharded(weight.forward.spec[axis]):
                tensor += weight.num_elements
            elif _sharded(weight.output.spec[axis]):
                data += weight.num_elements
        idle = total - tensor - data
        uses.append(AxisUse(axis, size, tensor / total, data / total, idle / total))
    return uses


def plain_words(plan: Plan) -> list[str]:
    """Sentences on parallelism, on where the model's state lives and on what it costs."""
    parameters = parameter_shardings(plan)
    if prod(plan.mesh_shape) == 1:
        return ["One device: nothing is sharded, nothing is communicated."]
    uses = axis_uses(plan, parameters)
    sentences = [_axis_sentence(plan, use) for use in uses]
    if any(use.data > _NEARLY_NONE for use in uses):
        sentences += _state_sentences(plan, parameters)
    sentences.append(_cost_sentence(plan))
    return sentences


def _axis_sentence(plan: Plan, use: AxisUse) -> str:
    where = _axis_place(plan, use.axis)
    named = (
        (use.data, "data parallel", "whole weights, activations in pieces"),
        (use.tensor, "tensor parallel", "weights in pieces"),
        (use.idle, "idle", "every device computes the same"),
    )
    head = f"Axis {use.axis} ({count_text(use.size, 'device')}{where}): "
    for share, word, meaning in named:
        if share >= _NEARLY_ALL:
            return f"{head}{word} ({meaning})."
    parts = [(share, word) for share, word, _ in named if share >= _NEARLY_NONE]
    parts.sort(key=lambda part: -part[0])
    (share, word), *rest = parts
    others = ", ".join(f"{other} for {100 * part:.0f} %" for part, other in rest)
    return f"{head}{word} for {100 * share:.0f} % of the weights, {others}."


def _axis_place(plan: Plan, axis: int) -> str:
    if plan.cluster.num_hosts == 1:
        return ""
    inner = prod(plan.mesh_shape[axis + 1 :])
    per_host = plan.cluster.devices_per_host
    if inner * plan.mesh_shape[axis] <= per_host:
        return " inside a host"
    return " across hosts" if inner >= per_host else " inside and across hosts"


def _state_sentences(plan: Plan, parameters: list[ParameterShardings]) -> list[str]:
    """ZeRO in the terms of Rajbhandari et al. (SC 2020): what the data-parallel ranks share out."""
    stages = (
        ("parameters", "ZeRO-3", lambda p: [p.stored.spec]),
        ("gradients", "ZeRO-2", lambda p: [] if p.gradient is None else [p.gradient.spec]),
        ("optimizer state", "ZeRO-1", lambda p: [s.spec for s in p.state.values()]),
    )
    shares = {word: _shared_out(plan, parameters, specs) for word, _, specs in stages}
    kept = [word for word, _, _ in stages if shares[word] is not None]
    if not kept:
        return []
    label = next((z for word, z, _ in stages if _share_of(shares[word]) >= 0.5), "")
    parts = []
    for word in reversed(kept):
        share, ways = shares[word] or (0.0, 1)
        if share >= _NEARLY_NONE:
            portion = "" if share >= _NEARLY_ALL else f" for {100 * share:.0f} % of the elements"
            parts.append(f"{word} over {ways}{portion}")
    if not parts:
        return ["Data-parallel replicas each keep all of the model's state."]
    tail = f" = {label}" if label else ""
    return [f"Shared out among data-parallel replicas: {', '.join(parts)}{tail}."]


def _share_of(found: tuple[float, int] | None) -> float:
    return 0.0 if found is None else found[0]


def _shared_out(
    plan: Plan,
    parameters: Iterable[ParameterShardings],
    specs_of: Callable[[ParameterShardings], list[tuple[str, ...]]],
) -> tuple[float, int] | None:
    """Share of elements that are cut where the weight is used whole, and how many ways at most.

    None when no parameter is used whole along any axis or none has such a tensor.
    """
    total = cut = 0
    ways = 1
    for parameter in parameters:
        specs = specs_of(parameter)
        axes = [
            axis
            for axis, size in enumerate(plan.mesh_shape)
            if size > 1 and not _sharded(parameter.forward.spec[axis])
        ]
        if not axes or not specs:
            continue
        total += parameter.num_elements * len(specs)
        for spec in specs:
            split = prod(plan.mesh_shape[axis] for axis in axes if _sharded(spec[axis]))
            cut += parameter.num_elements if split > 1 else 0
            ways = max(ways, split)
    return (cut / total, ways) if total else None


def _cost_sentence(plan: Plan) -> str:
    certificate = plan.certificate
    if not certificate.cost_us:
        return "The step costs nothing under this cost model."
    share = 100 * certificate.communication_us / certificate.cost_us
    kinds = sorted(certificate.collectives.items(), key=lambda item: -item[1].cost_us)
    if not kinds:
        return "Nothing is communicated."
    large = [
        count_text(count.count, kind.replace("_", "-"))
        for kind, count in kinds
        if count.cost_us >= _LARGE_PART * certificate.communication_us
    ]
    return f"Communication is {share:.0f} % of the step, mainly {' and '.join(large)}."


def _sharded(word: str) -> bool:
    return word.startswith("S")
