"""Which pipeline stage every node of a step belongs to, given where forward is cut.

Forward nodes go by module, in the order of the graph. A backward node goes with the forward node
that it differentiates, as far as its gradient has come; an update node to the stage that holds most
of what it reads. What follows from the batch, hyper-parameters and constants alone belongs to no
stage: every stage that needs it computes it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from shardwright.capture.step_graph import InputSpec, StepGraph
from shardwright.errors import ConfigError, PlanError

# Stage of what every stage computes for itself.
EVERYWHERE = -1

_FREE_KINDS = ("batch", "hyper", "rng", "constant")
_STORED = ("parameter", "buffer", "optimizer_state")


@dataclass(frozen=True)
class StageAssignment:
    """Stages of the nodes of one step.

    Attributes:
        num_stages: how many.
        stages: by node, inputs included; `EVERYWHERE` for what each stage has or computes itself.
    """

    num_stages: int
    stages: Mapping[fx.Node, int]


def even_boundaries(step_graph: StepGraph, num_stages: int) -> list[str]:
    """Modules that begin the second, third, ... stage when layers are shared out evenly.

    Layers are the numbered modules of the outermost list (`layers.0`, `layers.1`, ...); what comes
    before them belongs to the first stage, what comes after to the last.

    Raises:
        ConfigError: E527 when there are fewer layers than stages.
    """
    layers: list[str] = []
    for node in step_graph.graph_module.graph.nodes:
        if node.op == "call_function" and node.meta.get("phase") == "forward":
            match = re.match(r"(.*?\.)?\d+(?=\.|$)", node.meta.get("module_path") or "")
            if match and match[0] not in layers:
                layers.append(match[0])
    if len(layers) < num_stages:
        raise ConfigError(
            "the model has fewer layers than there are stages.",
            code="E527",
            values=[f"num_stages: {num_stages}", f"layers: {', '.join(layers) or 'none'}"],
            advice="fewer stages, or stage_boundaries=[...] with the modules that begin a stage",
        )
    return [layers[len(layers) * stage // num_stages] for stage in range(1, num_stages)]


def assign_stages(step_graph: StepGraph, boundaries: Sequence[str]) -> StageAssignment:
    """Assigns every node to a stage.

    Args:
        step_graph: the step, in microbatches or not.
        boundaries: modules that begin the second, third, ... stage, in the order of forward.

    Raises:
        ConfigError: E527 when a boundary is no module of the step, or none after the one before.
        PlanError: E334 when forward follows backward.
    """
    return _Assigner(step_graph, boundaries).run()


class _Assigner:
    def __init__(self, step_graph: StepGraph, boundaries: Sequence[str]) -> None:
        self.step = step_graph
        self.boundaries = list(boundaries)
        self.nodes: list[fx.Node] = list(step_graph.graph_module.graph.nodes)
        self.spec: dict[fx.Node, InputSpec] = dict(
            zip(step_graph.placeholders, step_graph.inputs, strict=True)
        )
        self.updated = {
            step_graph.placeholders[o.updates] for o in step_graph.outputs if o.updates is not None
        }
        self.stages: dict[fx.Node, int] = {}

    def run(self) -> StageAssignment:
        for node in self.nodes:
            is_free = node.op == "placeholder" and self.spec[node].kind in _FREE_KINDS
            is_call = node.op == "call_function"
            if is_free or (is_call and all(self._is_free(a) for a in node.all_input_nodes)):
                self.stages[node] = EVERYWHERE
        self._assign_forward()
        self._assign_backward()
        self._assign_inputs()
        for spec, node in zip(self.step.outputs, self.step.output_nodes, strict=True):
            if spec.updates is not None and node.meta["phase"] == "update":
                maker = node.all_input_nodes[0] if node.target is operator.getitem else node
                self.stages[maker] = self.stages[self.step.placeholders[spec.updates]]
        for node in self._calls("update"):
            self.stages[node] = self._heaviest(node)
        return StageAssignment(len(self.boundaries) + 1, self.stages)

    def _is_free(self, node: fx.Node) -> bool:
        return self.stages.get(node) == EVERYWHERE

    def _calls(self, phase: str) -> list[fx.Node]:
        calls = (n for n in self.nodes if n.op == "call_function" and n not in self.stages)
        return [node for node in calls if node.meta["phase"] == phase]

    def _assign_forward(self) -> None:
        stage = 0
        for node in self._calls("forward"):
            if any(a.meta.get("phase") == "backward" for a in node.all_input_nodes):
                raise PlanError(
                    "the step cannot run in stages: forward follows backward.",
                    code="E334",
                    values=[f"node: {node.name}, {node.target}"],
                    where=node.meta.get("source") or "",
                    advice="one forward and one backward per step; num_microbatches cuts the batch",
                )
            path = node.meta.get("module_path") or ""
            if stage < len(self.boundaries) and _within(path, self.boundaries[stage]):
                stage += 1
            self.stages[node] = stage
        if stage < len(self.boundaries):
            raise ConfigError(
                "no stage begins where it was asked for.",
                code="E527",
                values=[f"no op of forward, in order, is in module {self.boundaries[stage]!r}"],
                advice="stage_boundaries: names of modules as in named_modules(), in the order in "
                "which forward runs them",
            )

    def _assign_backward(self) -> None:
        by_line: dict[tuple[str, str], set[int]] = {}
        by_path: dict[str, set[int]] = {}
        available: dict[fx.Node, set[int]] = {}
        for node in self.nodes:
            if node.op != "call_function" or node.meta["phase"] != "forward":
                continue
            stage = self.stages[node]
            if stage == EVERYWHERE:
                continue
            path, line = node.meta.get("module_path") or "", node.meta.get("source") or ""
            by_line.setdefault((path, line), set()).add(stage)
            by_path.setdefault(path, set()).add(stage)
            for value in (node, *node.all_input_nodes):
                available.setdefault(value, set()).add(stage)
        for node in self._calls("backward"):
            if node.target is operator.getitem:
                self.stages[node] = self.stages[node.all_input_nodes[0]]
                continue
            operands = [a for a in node.all_input_nodes if not self._is_free(a)]
            came = [self.stages[a] for a in operands if a.meta.get("phase") == "backward"
                    and a.op == "call_function"]  # fmt: skip
            bound = min(came, default=len(self.boundaries))
            path, line = node.meta.get("module_path") or "", node.meta.get("source") or ""
            known = by_line.get((path, line)) or by_path.get(path) or set()
            if len(known) == 1:
                self.stages[node] = min(bound, *known)
                continue
            # What is differentiated by its own result belongs to where that was made.
            made = [
                self.stages[a] for a in operands
                if a.op == "call_function" and a.meta["phase"] == "forward"
            ]  # fmt: skip
            reads_stored = any(a.op == "placeholder" for a in operands)
            if made and "_backward" in str(node.target) and not reads_stored:
                self.stages[node] = min(bound, *made)
                continue
            at = [available[a] for a in operands if a in available]
            fitting = [s for s in range(bound + 1) if all(s in stages for stages in at)]
            self.stages[node] = max(fitting, default=bound)

    def _assign_inputs(self) -> None:
        for node, spec in self.spec.items():
            if spec.kind in ("parameter", "buffer"):
                # What never changes is copied to every stage that reads it.
                is_fixed = node not in self.updated
                self.stages[node] = EVERYWHERE if is_fixed else self._first_reader(node)
        named = {spec.name: self.stages.get(node, 0) for node, spec in self.spec.items()}
        for node, spec in self.spec.items():
            if spec.kind == "optimizer_state":
                self.stages[node] = max(named.get(spec.parameter or "", 0), 0)

    def _first_reader(self, node: fx.Node) -> int:
        for phase in ("forward", "backward"):
            stages = [
                self.stages[user]
                for user in node.users
                if user.op == "call_function"
                and user.meta["phase"] == phase
                and self.stages.get(user, EVERYWHERE) != EVERYWHERE
            ]
            if stages:
                return min(stages)
        return 0

    def _heaviest(self, node: fx.Node) -> int:
        """Stage of most of the bytes that an update node reads; of equals the first."""
        if node.target is operator.getitem:
            return self.stages[node.all_input_nodes[0]]
        weights: dict[int, int] = {}
        for operand in node.all_input_nodes:
            stage = self.stages[operand]
            if stage != EVERYWHERE:
                weights[stage] = weights.get(stage, 0) + _bytes(operand)
        return min(weights, key=lambda stage: (-weights[stage], stage), default=EVERYWHERE)


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(module + ".")


def _bytes(node: fx.Node) -> int:
    val = node.meta["val"]
    tensors = val if isinstance(val, (list, tuple)) else [val]
    return sum(math.prod(t.shape) * t.element_size() for t in tensors if isinstance(t, Tensor))
