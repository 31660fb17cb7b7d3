"""Models x meshes x plans: simulated ranks against the eager step on one device.

Plans are the solver's own and the usual schemes, forced. Integer models must agree bit for bit in
the loss, every gradient and every parameter; real models in float64 to 1e-12.
"""

import math

import pytest
import torch
from tests.python.parity.clusters import slow_compute

from shardwright import forced, zoo
from shardwright.capture import capture
from shardwright.testing import check_parity

MESHES = [(2,), (4,), (2, 2), (2, 4)]
INTEGER = ["mlp_integer", "gpt_integer", "wide_resnet_integer"]
REAL = ["mlp_tiny", "gpt_tiny", "wide_resnet_tiny"]
SCHEMES = ["searched", "data", "tensor", "zero3", "mixed"]


def _tensor_specs(graph, mesh, axis):
    """Weights split along one axis: the dim that divides, second dims first for every other one."""
    weights = {}
    for spec in graph.inputs:
        shape = spec.meta.shape
        if spec.kind != "parameter" or len(shape) < 2:
            continue
        dims = (0, 1) if len(weights) % 2 == 0 else (1, 0)
        dim = next((d for d in dims if shape[d] % mesh[axis] == 0), None)
        if dim is not None:
            weights[spec.name] = dim
    return forced.tensor_parallel(graph, mesh, weights, axis)


def _forced(scheme, graph, mesh):
    last = len(mesh) - 1
    if scheme == "searched":
        return None
    if scheme == "data":
        return forced.data_parallel(graph, mesh)
    if scheme == "zero3":
        return forced.zero3(graph, mesh)
    tensor = _tensor_specs(graph, mesh, last)
    if scheme == "tensor":
        return tensor
    batch = {
        spec.name: " ".join(["S0"] + ["R"] * (spec.meta.dim() - 1))
        for spec in graph.inputs
        if spec.kind == "batch" and spec.meta.dim() > 0
    }
    return tensor | batch


def _parity(target, mesh, scheme, dtype, steps):
    def make():
        return getattr(zoo, target)(dtype=dtype)

    step, args = make()
    return check_parity(
        make,
        mesh=mesh,
        steps=steps,
        dtype=dtype,
        forced=_forced(scheme, capture(step, args), mesh),
        cluster=slow_compute(math.prod(mesh)),
    )


def _check_integer(target, mesh, scheme):
    report = _parity(target, mesh, scheme, torch.float32, steps=3)
    assert report.errors
    assert {name: error for name, error in report.errors.items() if error != 0} == {}
    assert report.collectives


def _check_real(target, mesh, scheme, steps):
    report = _parity(target, mesh, scheme, torch.float64, steps)
    assert report.errors
    # The bias of a key has no gradient but rounding, which Adam divides by its own size.
    noise = [name for name in report.errors if name.endswith("attention.qkv.bias")]
    assert max(e for name, e in report.errors.items() if name not in noise) <= 1e-12
    assert max((report.errors[name] for name in noise), default=0.0) <= 1e-8
    assert report.collectives


@pytest.mark.parametrize(
    ("target", "mesh", "scheme"),
    [
        ("mlp_integer", (2, 2), "searched"),
        ("mlp_integer", (4,), "zero3"),
        ("gpt_integer", (2, 2), "searched"),
        ("gpt_integer", (2, 2), "mixed"),
        ("gpt_integer", (4,), "zero3"),
        ("wide_resnet_integer", (2, 2), "searched"),
        ("wide_resnet_integer", (4,), "data"),
    ],
)
def test_integers_agree_bit_for_bit(target, mesh, scheme):
    _check_integer(target, mesh, scheme)


@pytest.mark.parametrize(
    ("target", "mesh", "scheme"),
    [
        ("mlp_tiny", (2,), "tensor"),
        ("gpt_tiny", (2, 2), "searched"),
        ("gpt_tiny", (2, 2), "mixed"),
        ("wide_resnet_tiny", (2,), "data"),
    ],
)
def test_float64_agrees_to_rounding(target, mesh, scheme):
    _check_real(target, mesh, scheme, steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("target", INTEGER)
def test_integers_agree_for_every_mesh_and_scheme(target, mesh, scheme):
    _check_integer(target, mesh, scheme)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("target", REAL)
def test_float64_agrees_for_every_mesh_and_scheme(target, mesh, scheme):
    _check_real(target, mesh, scheme, steps=10)
