"""Inputs, outputs and nodes carry the labels that planning and running rely on."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright import zoo
from shardwright.capture import StepGraph, capture, signature


@pytest.fixture(scope="module")
def gpt() -> tuple[StepGraph, Any]:
    step, args = zoo.gpt_tiny()
    return capture(step, args), args


def calls(graph: StepGraph) -> list[torch.fx.Node]:
    return [n for n in graph.graph_module.graph.nodes if n.op == "call_function"]


def test_inputs_are_labelled(gpt: Any) -> None:
    graph, args = gpt
    kinds = [spec.kind for spec in graph.inputs]
    order = ["parameter", "buffer", "optimizer_state", "batch", "hyper", "rng", "constant"]
    assert kinds == sorted(kinds, key=order.index)
    names = [spec.name for spec in graph.inputs if spec.kind == "parameter"]
    assert names == [name for name, _ in args[0].named_parameters()]
    states = {s.name: s for s in graph.inputs if s.kind == "optimizer_state"}
    first = states[f"{names[0]}.exp_avg"]
    assert (first.parameter, first.key, first.init) == (names[0], "exp_avg", first.init)
    assert first.init is not None
    assert (first.init.kind, first.init.value) == ("full", 0.0)
    assert [s.name for s in graph.inputs if s.kind == "batch"] == ["tokens", "targets"]
    hyper = {s.name: s.key for s in graph.inputs if s.kind == "hyper"}
    assert hyper == {
        "optimizer.param_groups[0].lr": "lr",
        "optimizer.param_groups[0].betas[0]": "beta1",
        "optimizer.param_groups[0].betas[1]": "beta2",
        "optimizer.param_groups[0].weight_decay": "weight_decay",
        "optimizer.param_groups[0].eps": "eps",
    }
    for spec, node in zip(graph.inputs, graph.placeholders, strict=True):
        assert node.meta["val"].shape == spec.meta.shape
        assert node.meta["val"].device.type == "cpu"


def test_tied_weight_is_one_input_with_two_names(gpt: Any) -> None:
    graph, args = gpt
    aliases = {spec.name: spec.aliases for spec in graph.inputs if spec.aliases}
    every = {name for name, _ in args[0].named_parameters(remove_duplicate=False)}
    tied = every - {name for name, _ in args[0].named_parameters()}
    assert {a for names in aliases.values() for a in names} == tied
    assert len(tied) == 1


def test_outputs_are_updates_then_results(gpt: Any) -> None:
    graph, args = gpt
    updates = [output.updates for output in graph.outputs if output.kind == "update"]
    assert updates == sorted(u for u in updates if u is not None)
    assert [output.kind for output in graph.outputs[len(updates) :]] == ["result"]
    num_parameters = len(list(args[0].parameters()))
    assert len(updates) == 4 * num_parameters  # the parameter, two moments and the step count
    for output, node in zip(graph.outputs, graph.output_nodes, strict=True):
        if output.updates is not None:
            assert node.meta["val"].shape == graph.inputs[output.updates].meta.shape
            assert node.meta["val"].dtype == graph.inputs[output.updates].meta.dtype


def test_nodes_carry_phase_module_and_source(gpt: Any) -> None:
    graph, _ = gpt
    products = [n for n in calls(graph) if n.target is torch.ops.aten.mm.default]
    paths = {(n.meta["phase"], n.meta["module_path"]) for n in products}
    assert ("forward", "layers.0.attention.qkv") in paths
    assert ("backward", "layers.0.attention.qkv") in paths
    for node in products:
        assert node.meta["source"].startswith(("transformer.py:", "gpt.py:"))
    updates = [n for n in calls(graph) if "update" in str(n.target)]
    assert {n.meta["phase"] for n in updates} == {"update"}
    clipping = [n for n in calls(graph) if n.target is torch.ops.aten.stack.default]
    assert [n.meta["phase"] for n in clipping] == ["update"]
    assert clipping[0].meta["source"].startswith("steps.py:")


def test_graph_is_functional_and_normalised(gpt: Any) -> None:
    for graph in (gpt[0], capture(*zoo.wide_resnet_tiny()), capture(*zoo.moe_tiny())):
        for node in calls(graph):
            if isinstance(node.target, torch._ops.OpOverload):
                assert not node.target._schema.is_mutable, node.target
            name = str(node.target)
            assert name not in {
                "aten.t.default", "aten.transpose.int", "aten.detach.default", "aten.clone.default",
                "aten.unsqueeze.default", "aten._unsafe_view.default", "aten.addmm.default",
                "aten.mean.dim", "aten.split.Tensor", "aten.native_batch_norm.default",
                "aten.zeros_like.default", "aten.linalg_vector_norm.default", "aten.sum.default",
            }  # fmt: skip


def test_clipping_takes_one_root(gpt: Any) -> None:
    graph, _ = gpt
    roots = [n for n in calls(graph) if n.target is torch.ops.aten.sqrt.default]
    assert len(roots) == 1  # the norm of the gradients' norms, not one norm per gradient


def test_arguments_are_left_as_they_were() -> None:
    step, args = zoo.mlp_tiny()
    model, optimizer = args[:2]
    model.extra = "kept"
    before = {name: (id(p), p.clone()) for name, p in model.named_parameters()}
    groups, own = optimizer.param_groups, dict(optimizer.__dict__)
    capture(step, args)
    after = dict(model.named_parameters())
    assert {n: id(p) for n, p in after.items()} == {n: i for n, (i, _) in before.items()}
    assert all(torch.equal(after[n], value) for n, (_, value) in before.items())
    assert all(p.grad is None for p in after.values())
    assert optimizer.param_groups is groups
    assert optimizer.__dict__ == own
    assert not optimizer.state
    assert model.extra == "kept"


def test_meta_and_real_parameters_give_the_same_hash() -> None:
    hashes = {
        capture(*zoo.mlp_tiny(device=device, dtype=torch.float32)).hash()
        for device in ("cpu", "meta")
    }
    assert len(hashes) == 1


def test_hash_is_the_same_in_another_process() -> None:
    code = (
        "from shardwright import zoo\nfrom shardwright.capture import capture\n"
        "print(capture(*zoo.mlp_tiny()).hash())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {capture(*zoo.mlp_tiny()).hash()}


def test_hash_tells_steps_apart() -> None:
    makes: list[Callable[[], Any]] = [
        zoo.gpt_integer, zoo.mlp_tiny, lambda: zoo.mlp_tiny(dtype=torch.float64),
    ]  # fmt: skip
    assert len({capture(*make()).hash() for make in makes}) == len(makes)


def step_with_device(model: Any, x: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        mask = torch.ones(4, 4, device="cuda").tril().to("cuda:0").cuda()
        return F.cross_entropy(model(x.to(device="cuda")) + mask, x.argmax(-1))


def test_devices_in_the_step_do_not_matter() -> None:
    graph = capture(step_with_device, (nn.Linear(4, 4, device="meta"), torch.ones(4, 4)))
    assert {str(n.meta["val"].device) for n in calls(graph) if "getitem" not in str(n.target)} == {
        "cpu"
    }
    (product,) = [n for n in calls(graph) if n.target is torch.ops.aten.mm.default]
    assert product.meta["val"].dtype == torch.bfloat16


def test_constants_become_fills_or_inputs() -> None:
    table = torch.arange(4.0) ** 2

    def step(model: Any, x: Tensor) -> Tensor:
        return (model(x) * torch.tensor(3.0) + table).sum()

    graph = capture(step, (nn.Linear(4, 4), torch.ones(2, 4)))
    assert {k: v.tolist() for k, v in graph.constants.items()} == {"constant_0": [0, 1, 4, 9]}
    assert [spec.kind for spec in graph.inputs][-1] == "constant"
    assert not [n for n in graph.graph_module.graph.nodes if n.op == "get_attr"]


def test_signature_follows_what_changes_the_graph() -> None:
    _, args = zoo.gpt_tiny()
    model, optimizer, tokens, targets = args
    base = signature(args)
    assert signature(args) == base
    optimizer.param_groups[0]["lr"] = 1.0
    assert signature(args) == base
    assert signature((model, optimizer, tokens[:1], targets[:1])) != base
    assert signature((model, optimizer, tokens.int(), targets)) != base
    optimizer.param_groups[0]["amsgrad"] = True
    assert signature(args) != base
    optimizer.param_groups[0]["amsgrad"] = False
    model.layers[0].eval()
    assert signature(args) != base
    model.train()
    next(model.parameters()).requires_grad_(False)
    assert signature(args) != base


@pytest.mark.parametrize("flag", [1, 1.0, True, "1"])
def test_signature_tells_python_values_apart(flag: object) -> None:
    others = [other for other in (1, 1.0, True, "1") if repr(other) != repr(flag)]
    assert all(signature((flag,)) != signature((other,)) for other in others)
