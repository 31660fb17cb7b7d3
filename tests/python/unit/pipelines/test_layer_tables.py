"""Cost tables of the layers of real steps, against the planner with both specs forced."""

from __future__ import annotations

import dataclasses
import math

import pytest

from shardwright import Cluster, _core, zoo
from shardwright.capture import capture
from shardwright.graph_table import to_core_graph
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.rules import rule_registry

_MICROBATCHES = 2
_CLUSTER = dataclasses.replace(Cluster.preset("p3.16xlarge"), devices_per_host=2)


def _layers(target: str, num_layers: int) -> _core.LayerGraphs:
    step, args = getattr(zoo, target)()
    graph = to_core_graph(split_microbatches(capture(step, args), _MICROBATCHES))
    layers = _core.find_layers(graph, rule_registry(), num_layers)
    return _core.LayerGraphs(graph, layers.layer_of_node)


def _forced(
    layer: _core.LayerClass, entry: list[_core.Placement], exit_: list[_core.Placement]
) -> dict[str, str]:
    nodes = [layer.graph.node(index) for index in range(len(layer.graph))]
    shapes = {node["name"]: node["outputs"][0][0] for node in nodes}
    main_in, main_out, grad_in, grad_out = layer.ports
    forced = {}
    for name, spec in ((main_in, entry), (grad_out, entry), (main_out, exit_), (grad_in, exit_)):
        if name is not None:
            shape = shapes[name.removesuffix("_sent")]
            atoms = _core.TensorAtoms(list(shape), [[dim] for dim in range(len(shape))])
            forced[name] = _core.print_spec(atoms, spec)
    return forced


@pytest.mark.parametrize("target", ["gpt_tiny", "moe_tiny", "wide_resnet_tiny"])
def test_entries_are_what_the_planner_finds_with_both_specs_forced(target: str) -> None:
    layers = _layers(target, 8)
    cluster = _CLUSTER.to_core()
    mesh = _core.DeviceMesh((2,), cluster)
    tables = _core.layer_tables(
        layers, rule_registry(), mesh, cluster,
        prices=[(0.0, 0.0)], num_microbatches=_MICROBATCHES, max_work=1e9,
    )  # fmt: skip
    compared = 0
    for layer, table in zip(layers.classes, tables, strict=True):
        if not table.is_exact[0]:
            continue
        graph = _core.ShardedGraph(layer.graph, rule_registry())
        for index, cost in enumerate(table.costs[0]):
            if index % 2 == 1 or not cost.possible:
                continue
            entry = table.entry_specs[index // len(table.exit_specs)]
            exit_ = table.exit_specs[index % len(table.exit_specs)]
            result = _core.plan_step(
                graph, cluster,
                mesh_shape=(2,), memory_limit_bytes=None, forced=_forced(layer, entry, exit_),
                num_microbatches=_MICROBATCHES, time_limit_s=60.0, relative_gap=0.0,
                shard_all_products=False, graph_hash="",
            )  # fmt: skip
            certificate = result.plan.certificate
            assert certificate.status == "optimal"
            # The table adds up costs rounded to thousandths of a microsecond, the certificate does
            # not round.
            rounding_us = 0.0005 * (result.num_nodes + result.num_edges)
            assert abs(certificate.cost_us - cost.cost_units / 1000) <= rounding_us
            own_us = _MICROBATCHES * (cost.forward_us + cost.backward_us) + cost.update_us
            assert math.isclose(own_us, cost.cost_units / 1000, abs_tol=1e-6)
            compared += 1
    assert compared >= 10
