"""Program: what a step graph becomes under a plan, and what one rank runs of it.

A program is cut into sections, maximal runs of instructions of one stage and phase. Each section
is one fx GraphModule per rank, over local shards, with explicit collectives. Values that cross
sections are passed on explicitly and die with their last reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from shardwright.capture.step_graph import InputSpec, OutputSpec, StepGraph
from shardwright.errors import InternalError
from shardwright.lowering.crossing import Crossing, find_crossing
from shardwright.lowering.section_graph import build_section_graph
from shardwright.lowering.storage import CopyBack, StoragePlan, plan_storage
from shardwright.lowering.table import LocalRef, LocalTensor, Phase, ProgramTable
from shardwright.lowering.targets import Target, find_target


@dataclass(frozen=True)
class Section:
    """A run of instructions of one stage and phase.

    Attributes:
        stage, phase: of all of them.
        first, last: instructions `first` to `last - 1`, the input instructions among them aside.
        takes: values it reads that were made before.
        gives: values it makes that are read later or leave the step.
        copies: new values it copies into the storage of inputs.
        accumulates: those of `gives` that are added up over microbatches: the section takes what
            was added up so far after `takes`, and gives that with its own added.
        round: of the update: how many exchanges with other stages come before it. Of a backward in
            two parts: 0 for what gradients for other stages need, 1 for the rest.
    """

    stage: int
    phase: Phase
    first: int
    last: int
    takes: tuple[LocalRef, ...]
    gives: tuple[LocalRef, ...]
    copies: tuple[CopyBack, ...]
    accumulates: tuple[LocalRef, ...] = ()
    round: int = 0


@dataclass(frozen=True)
class CollectiveSite:
    """Where a collective comes from.

    Attributes:
        instruction: index in the table.
        kind: "all_gather", ...; axis: mesh axis.
        node, module_path, source: graph node it serves and the user's line.
    """

    instruction: int
    kind: str
    axis: int
    node: str
    module_path: str
    source: str


@dataclass(frozen=True)
class RankSection:
    """One section as one rank runs it; `graph_module.forward` takes a list and empties it."""

    section: Section
    graph_module: fx.GraphModule


@dataclass(frozen=True)
class RankProgram:
    """What one rank runs, section by section."""

    coordinate: tuple[int, ...]
    sections: tuple[RankSection, ...]

    def code(self) -> str:
        """Generated Python of all sections, for reading."""
        parts = [
            f"# stage {s.section.stage}, {s.section.phase}\n{s.graph_module.code.strip()}\n"
            for s in self.sections
        ]
        return "\n".join(parts)


class Program:
    """A step graph lowered onto a mesh; the same object on every rank.

    Attributes:
        step_graph: what was captured.
        table: the instructions.
        input_instructions: per graph input its instruction, None when the program never reads it.
    """

    def __init__(self, step_graph: StepGraph, table: ProgramTable) -> None:
        self.step_graph = step_graph
        self.table = table
        self._nodes: dict[str, fx.Node] = {n.name: n for n in step_graph.graph_module.graph.nodes}
        names = [node.name for node in step_graph.placeholders]
        by_node = {ins.node: i for i, ins in enumerate(table.instructions) if ins.kind == "input"}
        self.input_instructions: tuple[int | None, ...] = tuple(by_node.get(n) for n in names)
        if len(table.outputs) != len(step_graph.outputs):
            raise InternalError(
                "a program has another number of outputs than its graph",
                code="E941",
                values=[f"{len(table.outputs)} outputs, graph has {len(step_graph.outputs)}"],
            )

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Labels of the graph inputs."""
        return self.step_graph.inputs

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """Labels of the outputs."""
        return self.step_graph.outputs

    @cached_property
    def targets(self) -> dict[int, Target]:
        """Op of every compute instruction."""
        return {
            i: find_target(ins, self.graph_node(ins.node))
            for i, ins in enumerate(self.table.instructions)
            if ins.kind == "compute"
        }

    @cached_property
    def storage(self) -> StoragePlan:
        """What is updated in place and what is copied back."""
        return plan_storage(self.table, self.targets)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The program cut by stage and phase."""
        rounds = [
            self.graph_node(instruction.node).meta.get("round", 0)
            for instruction in self.table.instructions
        ]
        return _cut(self.table, self.storage, self.crossing, rounds)

    @property
    def num_microbatches(self) -> int:
        """How often the sections before the update run per step."""
        return self.step_graph.num_microbatches

    @cached_property
    def crossing(self) -> Crossing:
        """What leaves the microbatches."""
        return find_crossing(self.table)

    @cached_property
    def num_repeated(self) -> int:
        """How many sections, from the first on, run once per microbatch.

        Raises:
            InternalError: E943 when a section of a microbatch comes after the update has begun.
        """
        if self.num_microbatches == 1:
            return 0
        phases = [section.phase for section in self.sections]
        count = phases.index("update") if "update" in phases else len(phases)
        if any(phase != "update" for phase in phases[count:]):
            raise InternalError(
                "a program in microbatches cannot run: forward or backward follows the update.",
                code="E943",
                advice="report this with the plan",
            )
        return count

    @cached_property
    def collectives(self) -> tuple[CollectiveSite, ...]:
        """Collectives in the order in which every rank issues them in one step."""
        sites = []
        for index, instruction in enumerate(self.table.instructions):
            reshard = instruction.reshard
            if reshard is None or reshard.kind in ("slice", "mask"):
                continue
            meta = self.graph_node(instruction.node).meta
            sites.append(
                CollectiveSite(
                    index, reshard.kind, reshard.axis, instruction.node,
                    meta.get("module_path", ""), meta.get("source", ""),
                )
            )  # fmt: skip
        if self.num_repeated == 0:
            return tuple(sites)
        end = self.sections[self.num_repeated - 1].last
        repeated = [site for site in sites if site.instruction < end]
        return tuple(repeated * self.num_microbatches + sites[len(repeated) :])

    def graph_node(self, name: str) -> fx.Node:
        """Graph node of an instruction."""
        node = self._nodes.get(name)
        if node is None:
            raise InternalError(
                "a program names a node that its graph does not have",
                code="E941",
                values=[f"node {name!r}"],
            )
        return node

    def input_tensor(self, index: int) -> LocalTensor | None:
        """Local form of graph input `index`, None when the program never reads it."""
        instruction = self.input_instructions[index]
        return None if instruction is None else self.table.instructions[instruction].outputs[0]

    def for_rank(self, rank: int, group_names: Sequence[str], device: torch.device) -> RankProgram:
        """The program as one rank runs it.

        Args:
            rank: position in the mesh, row-major.
            group_names: per mesh axis the name of the rank's process group.
            device: where it runs.
        """
        coordinate = self.table.coordinate(rank)
        sections = tuple(
            RankSection(
                section, build_section_graph(self, section, coordinate, group_names, device)
            )
            for section in self.sections
        )
        return RankProgram(coordinate, sections)

    def fingerprint(self) -> str:
        """SHA-256 of graph and table."""
        text = f"{self.step_graph.hash()} {self.table.fingerprint()}"
        return hashlib.sha256(text.encode()).hexdigest()


def _cut(
    table: ProgramTable, storage: StoragePlan, crossing: Crossing, rounds: Sequence[int]
) -> tuple[Section, ...]:
    """Runs of one stage, phase and round, with what each takes and gives."""
    runs: list[tuple[int, Phase, int, int, int]] = []
    for index, instruction in enumerate(table.instructions):
        if instruction.kind == "input":
            continue
        key = (instruction.stage, instruction.phase, rounds[index])
        if runs and runs[-1][:3] == key:
            runs[-1] = (*key, runs[-1][3], index + 1)
        else:
            runs.append((*key, index, index + 1))
    if not runs:
        runs = [(0, "update", 0, 0, len(table.instructions))]
    section_of = [0] * (len(table.instructions) + 1)
    for number, (_, _, _, first, last) in enumerate(runs):
        for index in range(first, len(section_of)):
            section_of[index] = number if index < last else min(number + 1, len(runs) - 1)
    reads = _reads(table, storage, section_of, len(runs))
    for ref in crossing.sent.values():
        reads.setdefault(ref, set()).add(len(runs))
    made_in = {
        LocalRef(index, output): section_of[index]
        for index, instruction in enumerate(table.instructions)
        if instruction.kind != "input"
        for output in range(len(instruction.outputs))
    }
    sections = []
    for number, (stage, phase, turn, first, last) in enumerate(runs):
        takes = [r for r, at in reads.items() if number in at and made_in.get(r, -1) != number]
        gives = [
            r for r, at in made_in.items() if at == number and max(reads.get(r, {-1})) > number
        ]
        copies = [c for c in storage.copies if section_of[c.after] == number]
        added = [r for r in sorted(gives) if r in crossing.accumulated]
        sections.append(
            Section(
                stage, phase, first, last, tuple(sorted(takes)), tuple(sorted(gives)),
                tuple(copies), tuple(added), turn,
            )
        )  # fmt: skip
    return tuple(sections)


def _reads(
    table: ProgramTable, storage: StoragePlan, section_of: Sequence[int], num_sections: int
) -> dict[LocalRef, set[int]]:
    """Value -> sections that read it; the caller of the step counts as section `num_sections`."""
    reads: dict[LocalRef, set[int]] = {}
    for index, instruction in enumerate(table.instructions):
        for ref in instruction.sources():
            reads.setdefault(ref, set()).add(section_of[index])
    for output in table.outputs:
        if output.updates < 0:
            reads.setdefault(output.value, set()).add(num_sections)
    for copy in storage.copies:
        reads.setdefault(copy.value, set()).add(section_of[copy.after])
        reads.setdefault(LocalRef(copy.target), set()).add(section_of[copy.after])
    return reads
