"""Plans drawn at random: any strategy for any node, any conversion that has a way.

Far from good plans, and all the more of a test: every rule is used in every way it allows, and
conversions of all kinds come between.
"""

import itertools
import random

from shardwright import Cluster, _core

Spec = list[_core.Placement]


class RandomPlanner:
    """Draws plans of one step on one mesh.

    Args:
        graph: op table; sharded: the same with rules.
        mesh_shape: sizes of the mesh axes.
    """

    def __init__(
        self, graph: _core.Graph, sharded: _core.ShardedGraph, mesh_shape: tuple[int, ...]
    ):
        self.graph, self.sharded, self.mesh_shape = graph, sharded, mesh_shape
        self.cluster = Cluster.abstract(
            mesh_shape,
            alpha_us=[1.0] * len(mesh_shape),
            beta_us_per_byte=[0.1, 0.01, 0.003][: len(mesh_shape)],
        ).to_core()
        self.mesh = _core.DeviceMesh(list(mesh_shape), self.cluster)
        self.nodes = [graph.node(index) for index in range(len(graph))]
        self.rules = [sharded.rule(index) for index in range(len(graph))]
        self.strategies = [
            []
            if sharded.is_view(index)
            else [
                (t["operands"], t["outputs"]) for t in sharded.strategies(index, list(mesh_shape))
            ]
            for index in range(len(graph))
        ]
        self.points = _core.conversion_points(sharded)
        self._ways: dict[tuple, bool] = {}

    def has_way(self, value: _core.ValueRef, source: Spec, target: Spec) -> bool:
        """Whether a value can be converted."""
        root = self.sharded.root(value)
        key = (root.node, root.output, tuple(source), tuple(target))
        if key not in self._ways:
            dtype = self.nodes[root.node]["outputs"][root.output][1]
            steps = _core.plan_reshard(self.sharded.atoms(root), dtype, source, target, self.mesh)
            self._ways[key] = steps is not None
        return self._ways[key]

    def draw(self, seed: int) -> _core.Plan:
        """One plan; the same seed gives the same."""
        rng = random.Random(seed)
        own: dict[tuple[int, int], Spec] = {}
        wanted: dict[tuple[int, int], Spec] = {}
        ops = []
        for index, node in enumerate(self.nodes):
            if self.sharded.is_view(index):
                continue
            operands = self.graph.operands(index)
            fitting = [
                strategy
                for strategy in self.strategies[index]
                if self._fits(index, node, operands, strategy, own)
            ]
            assert fitting, f"no strategy of {node['name']} ({node['op']}) fits"
            operand_specs, output_specs = rng.choice(fitting)
            ops.append(_core.OpChoice(index, operand_specs, output_specs))
            for output, spec in enumerate(output_specs):
                own[index, output] = spec
            for operand, spec in enumerate(operand_specs):
                wanted[index, operand] = spec
        stage = _core.StagePlan(
            list(self.mesh_shape),
            list(range(self.mesh.num_devices)),
            ops,
            self._draw_conversions(rng, own, wanted),
        )
        return _core.Plan("", self.cluster, [stage], 1)

    def _fits(self, index, node, operands, strategy, own) -> bool:
        rule = self.rules[index]
        label = node["input"]
        if label and label["kind"] == "optimizer_state" and node["outputs"][0][0]:
            # In-place updates need state and parameter alike; parameters come first.
            owner = next(
                i
                for i, other in enumerate(self.nodes)
                if other["input"]
                and other["input"]["kind"] == "parameter"
                and other["input"]["name"] == label["parameter"]
            )
            same_shape = self.nodes[owner]["outputs"][0][0] == node["outputs"][0][0]
            if same_shape and strategy[1][0] != own[owner, 0]:
                return False
        for operand, value in enumerate(operands):
            root = self.sharded.root(value)
            held = own[root.node, root.output]
            if rule["in_place"] and operand in rule["aliases"]:
                if held != strategy[0][operand]:
                    return False
            elif not self.has_way(root, held, strategy[0][operand]):
                return False
        return True

    def _draw_conversions(self, rng, own, wanted) -> list[_core.ConversionChoice]:
        whole = [_core.Placement.replicate()] * len(self.mesh_shape)
        choices: list[_core.ConversionChoice] = []
        for value, group, uses, results in self.points:
            held = own[value.node, value.output]
            targets = [wanted[use] for use in uses] + [whole for _ in results]
            candidates = [held, whole, *targets]
            candidates += [[p] * len(self.mesh_shape) for p in self._some_placements(rng, value)]
            fitting = [
                spec
                for spec in candidates
                if _core.is_valid_spec(self.sharded.atoms(value), spec, list(self.mesh_shape))
                and self.has_way(value, held, spec)
                and all(self.has_way(value, spec, target) for target in targets)
            ]
            first = choices[-1] if group == 1 else None
            keeps = (
                first is not None
                and rng.random() < 0.4
                and all(self.has_way(value, first.spec, target) for target in targets)
            )
            spec = first.spec if first is not None and keeps else rng.choice(fitting)
            choices.append(_core.ConversionChoice(value.node, value.output, group, spec, keeps))
        return choices

    def _some_placements(self, rng, value) -> list[_core.Placement]:
        num_atoms = len(self.sharded.atoms(value).sizes)
        shards = [_core.Placement.shard(atom) for atom in range(num_atoms)]
        return rng.sample(shards, min(2, len(shards)))


def mesh_coordinates(mesh_shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinates of all ranks, row major."""
    return list(itertools.product(*(range(size) for size in mesh_shape)))
