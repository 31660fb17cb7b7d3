"""Predefined families of forced specs: what the usual schemes demand of a step's inputs.

Each returns a mapping for `sw.plan(..., forced=...)`. Schemes that demand more than the shapes
allow raise, they do not shard something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardwright import _core
from shardwright.errors import ConfigError

if TYPE_CHECKING:
    from shardwright.capture.step_graph import InputSpec, StepGraph


def data_parallel(step_graph: StepGraph, mesh: Sequence[int]) -> dict[str, str]:
    """Batch split over all axes on its first dim; parameters, buffers and state replicated.

    Raises:
        ConfigError: E525 for a batch whose first dim the devices do not divide.
    """
    forced = _batch(step_graph, mesh)
    for spec in _stored(step_graph):
        forced[spec.name] = _replicated(spec)
    return forced


def zero3(step_graph: StepGraph, mesh: Sequence[int]) -> dict[str, str]:
    """Batch, parameters and state split over all axes; what does not divide stays replicated.

    Of a dim with several atoms (a fused QKV weight) the first that divides is split.

    Raises:
        ConfigError: E525 for a batch whose first dim the devices do not divide.
    """
    forced = _batch(step_graph, mesh)
    atoms = _input_atoms(step_graph)
    for spec in _stored(step_graph):
        placements = _split_over_all(atoms[spec.name], mesh)
        forced[spec.name] = _core.print_spec(atoms[spec.name], placements)
    return forced


def _input_atoms(step_graph: StepGraph) -> dict[str, _core.TensorAtoms]:
    """The atoms of every input, by name."""
    from shardwright.planning import sharded_graph

    return {
        node["input_name"]: node["outputs"][0]["atoms"]
        for node in _core.describe_nodes(sharded_graph(step_graph))
        if node["input_kind"]
    }


def _split_over_all(atoms: _core.TensorAtoms, mesh: Sequence[int]) -> list[_core.Placement]:
    """Shards of the first atom that all axes together divide; replicated if there is none."""
    count = math.prod(mesh)
    order = 0
    placements = [_core.Placement.replicate()] * len(mesh)
    for dim in atoms.dims:
        for atom in dim:
            if atoms.sizes[atom] % count == 0:
                for axis, size in enumerate(mesh):
                    if size > 1:
                        placements[axis] = _core.Placement.shard(atom, order)
                        order += 1
                return placements
    return placements


def tensor_parallel(
    step_graph: StepGraph, mesh: Sequence[int], weights: Mapping[str, int], axis: int = 0
) -> dict[str, str]:
    """Some weights, with their state, split along `axis` of the mesh.

    Of a dim with several atoms (a fused QKV weight) the first that divides is split.

    Args:
        step_graph: The step.
        mesh: Shape of the mesh.
        weights: Dim to split, by name of the weight.
        axis: Mesh axis to split over.

    Raises:
        ConfigError: E523 for a name that is no parameter, E525 for a dim that does not divide.
    """
    known = {spec.name: spec for spec in step_graph.inputs if spec.kind == "parameter"}
    forced: dict[str, str] = {}
    atoms = _input_atoms(step_graph)
    for name, dim in weights.items():
        if name not in known:
            raise ConfigError(
                f"{name!r} is no parameter of the step.",
                code="E523",
                values=[f"parameters: {', '.join(list(known)[:8])}"],
                advice="names as in named_parameters()",
            )
        shape = known[name].meta.shape
        _check_divides(name, shape, dim, mesh[axis])
        split = next(
            (a for a in atoms[name].dims[dim] if atoms[name].sizes[a] % mesh[axis] == 0), None
        )
        if split is None:
            raise _uneven(name, shape, dim, mesh[axis])
        placements = [_core.Placement.replicate()] * len(mesh)
        placements[axis] = _core.Placement.shard(split, 0)
        text = _core.print_spec(atoms[name], placements)
        for spec in _stored(step_graph):
            owner = spec.parameter if spec.kind == "optimizer_state" else spec.name
            if owner == name and spec.meta.shape == shape:
                forced[spec.name] = text
    return forced


def _stored(step_graph: StepGraph) -> list[InputSpec]:
    kinds = ("parameter", "buffer", "optimizer_state")
    return [spec for spec in step_graph.inputs if spec.kind in kinds]


def _replicated(spec: InputSpec) -> str:
    return " ".join(["R"] * len(spec.meta.shape)) or "R"


def _batch(step_graph: StepGraph, mesh: Sequence[int]) -> dict[str, str]:
    axes = "".join(str(axis) for axis, size in enumerate(mesh) if size > 1)
    forced = {}
    for spec in step_graph.inputs:
        if spec.kind == "batch" and spec.meta.dim() > 0:
            _check_divides(spec.name, spec.meta.shape, 0, math.prod(mesh))
            words = ["R"] * spec.meta.dim()
            words[0] = f"S{axes}" if axes else "R"
            forced[spec.name] = " ".join(words)
    return forced


def _check_divides(name: str, shape: Sequence[int], dim: int, count: int) -> None:
    if not -len(shape) <= dim < len(shape) or shape[dim] % count:
        raise _uneven(name, shape, dim, count)


def _uneven(name: str, shape: Sequence[int], dim: int, count: int) -> ConfigError:
    return ConfigError(
        f"dim {dim} of {name} cannot be split evenly over {count} devices.",
        code="E525",
        values=[f"{name}: {list(shape)}"],
        advice=f"a size that {count} divides, or another mesh",
    )
