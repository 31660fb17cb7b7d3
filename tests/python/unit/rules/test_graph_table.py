"""From captured steps to op tables, and the errors on the way."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from tests.python.unit.rules.rule_oracle import Sample, prepare
from torch import fx

import shardwright as sw
from shardwright import _core, zoo
from shardwright.capture import capture
from shardwright.graph_table import decode_text, encode_text, table_from_fx, to_core_graph
from shardwright.rules import rule_registry

ZOO = ["mlp_tiny", "gpt_tiny", "llama_tiny", "moe_tiny", "wide_resnet_tiny", "vit_tiny"]


@pytest.fixture(scope="module")
def gpt_table():
    step, args = zoo.gpt_tiny()
    step_graph = capture(step, args)
    return step_graph, to_core_graph(step_graph)


@pytest.fixture(scope="module", params=ZOO)
def zoo_step(request):
    step, args = getattr(zoo, request.param)()
    step_graph = capture(step, args)
    graph = to_core_graph(step_graph)
    return step_graph, graph, _core.ShardedGraph(graph, _core.RuleRegistry())


def test_every_op_of_the_zoo_has_a_rule(zoo_step) -> None:
    _, graph, sharded = zoo_step
    for node in range(len(graph)):
        assert len(sharded.strategies(node, [2, 2])) >= 1


def test_each_factor_is_one_atom_wherever_it_appears(zoo_step) -> None:
    _, graph, sharded = zoo_step
    for node in range(len(graph)):
        entry, rule = graph.node(node), sharded.rule(node)
        outputs = [_core.ValueRef(node, o) for o in range(len(entry["outputs"]))]
        operands = graph.operands(node)
        tensors = zip(operands + outputs, rule["operands"] + rule["outputs"], strict=True)
        for value, dims in tensors:
            atoms = sharded.atoms(value)
            shape = graph.node(value.node)["outputs"][value.output][0]
            sizes = [[atoms.sizes[atom] for atom in dim] for dim in atoms.dims]
            assert [math.prod(dim) for dim in sizes] == [max(size, 1) for size in shape]
            assert sizes == [[rule["factors"][f]["size"] for f in dim] for dim in dims]
        if rule["is_view"]:
            assert sharded.root(outputs[0]) == sharded.root(operands[0])
            assert sharded.atoms(outputs[0]).sizes == sharded.atoms(operands[0]).sizes
        else:
            assert all(sharded.root(value) == value for value in outputs)


def test_new_values_of_inputs_have_the_atoms_of_the_input(zoo_step) -> None:
    step_graph, graph, sharded = zoo_step
    names = {graph.node(index)["name"]: index for index in range(len(graph))}
    for output, node in zip(step_graph.outputs, step_graph.output_nodes, strict=True):
        if output.updates is None:
            continue
        if node.target is operator.getitem:
            value = _core.ValueRef(names[node.args[0].name], node.args[1])
        else:
            value = _core.ValueRef(names[node.name])
        new, old = sharded.atoms(value), sharded.atoms(_core.ValueRef(output.updates))
        assert [[new.sizes[a] for a in dim] for dim in new.dims] == [
            [old.sizes[a] for a in dim] for dim in old.dims
        ]


def test_inputs_carry_their_labels(gpt_table) -> None:
    step_graph, graph = gpt_table
    for index, spec in enumerate(step_graph.inputs):
        node = graph.node(index)
        assert node["op"] == "input"
        assert node["input"]["kind"] == spec.kind
        assert node["input"]["name"] == spec.name
        assert node["input"]["key"] == (spec.key or "")


def test_nodes_are_the_fx_nodes_without_getitem(gpt_table) -> None:
    step_graph, graph = gpt_table
    names = [
        node.name
        for node in step_graph.graph_module.graph.nodes
        if node.op != "output" and "getitem" not in str(node.target)
    ]
    assert [graph.node(index)["name"] for index in range(len(graph))] == names
    assert {graph.node(i)["phase"] for i in range(len(graph))} == {"forward", "backward", "update"}


def test_attention_is_sharded_by_heads_down_to_the_fused_weight(gpt_table) -> None:
    _, graph = gpt_table
    sharded = _core.ShardedGraph(graph, _core.RuleRegistry())
    weights = [
        index
        for index in range(len(graph))
        if graph.node(index)["op"] == "input"
        and graph.node(index)["input"]["kind"] == "parameter"
        and graph.node(index)["outputs"][0][0] == [96, 32]
    ]
    assert weights
    for index in weights:
        # 96 = q, k and v of 8 heads of 4.
        assert sharded.atoms(_core.ValueRef(index)).sizes == [3, 8, 4, 32]


@pytest.mark.parametrize(
    "value",
    [torch.float32, torch.bfloat16, torch.strided, torch.contiguous_format, torch.device("cpu")],
)
def test_torch_objects_are_written_as_text_and_read_back(value) -> None:
    assert decode_text(encode_text(value)) == value
    assert decode_text("tanh") == "tanh"


def test_omitted_arguments_of_aten_ops_are_filled_in() -> None:
    op = prepare(Sample(torch.ops.aten.sum.dim_IntList, (torch.ones(4, 8), [1])), rule_registry())
    assert op.graph.node(op.node)["args"][1:] == [[1], False]


def one_op_graph(op, value: torch.Tensor, *args) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    call = graph.call_function(op, (x, *args))
    call.meta["val"] = value
    call.meta["source"] = "train.py:41"
    graph.output((call,))
    return fx.GraphModule({}, graph)


def test_dtypes_that_cannot_be_sharded_are_named() -> None:
    module = one_op_graph(torch.ops.aten.neg.default, torch.ones(2, dtype=torch.complex64))
    with pytest.raises(sw.CaptureError, match="complex64") as error:
        table_from_fx(module)
    assert error.value.code == "E120"


def test_a_contradictory_table_is_refused() -> None:
    node = {
        "name": "y", "op": "aten.neg.default", "args": [_core.ValueRef(0)], "kwargs": {},
        "outputs": [((2,), "float32")], "phase": "forward", "module_path": "", "source": "",
        "input": None, "forward_index": None, "layer_marks": 0, "is_late": False,
    }  # fmt: skip
    with pytest.raises(sw.CaptureError) as error:
        _core.Graph([node], [])
    assert error.value.code == "E121"


def test_arguments_without_a_place_in_the_table_are_named() -> None:
    module = one_op_graph(torch.ops.aten.mul.Tensor, torch.ones(2), complex(1, 2))
    with pytest.raises(sw.CaptureError, match="complex") as error:
        table_from_fx(module)
    assert error.value.code == "E122"
    assert error.value.where == "train.py:41"


def test_an_op_without_rule_is_named_with_shapes_and_source() -> None:
    module = one_op_graph(torch.ops.aten.linalg_inv_ex.default, torch.ones(2, 2))
    with pytest.raises(sw.RuleError, match="linalg_inv_ex") as error:
        _core.ShardedGraph(table_from_fx(module), rule_registry())
    assert error.value.code == "E201"
    assert error.value.where == "train.py:41"
    assert "operands: float32[2, 2]" in error.value.values
    assert "register_rule" in error.value.advice


def test_users_register_rules_and_hear_of_their_mistakes(monkeypatch) -> None:
    monkeypatch.setattr("shardwright.rules._USER_RULES", {})
    module = one_op_graph(torch.ops.aten.linalg_inv_ex.default, torch.ones(2, 4, 4))
    sw.register_rule("aten.linalg_inv_ex.default", "b n* n* -> b n* n*")
    with pytest.raises(sw.RuleError, match="one factor in two places") as error:
        _core.ShardedGraph(table_from_fx(module), rule_registry())
    assert error.value.code == "E202"
    sw.register_rule("aten.linalg_inv_ex.default", "b n* m* -> b n* m*")
    sharded = _core.ShardedGraph(table_from_fx(module), rule_registry())
    assert sharded.rule_text(1) == "a b* c* -> a b* c*"
    assert len(sharded.strategies(1, [2])) == 2
