"""How values go from stage to stage: one by one, and the scalars of the update together."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from shardwright import _core
from shardwright.errors import PlanError
from shardwright.lowering.emitted import EmittedProgram
from shardwright.lowering.from_core import core_form
from shardwright.lowering.table import LocalRef, LocalTensor
from shardwright.pipeline.plan import BoundaryTransfer
from shardwright.pipeline.stage_graphs import Transfer
from shardwright.plan import Plan


@dataclass(frozen=True)
class PlannedTransfer:
    """A transfer with its way from mesh to mesh.

    Attributes:
        transfer: what goes where.
        source: the value in the source's program: result of an instruction, or an input.
        target: input instruction of the target's program.
        plan: steps of all ranks; of scalars that go together that of the vector they make.
        described: the same as the pipeline's plan has it; of a vector each scalar has its part.
    """

    transfer: Transfer
    source: LocalRef
    target: LocalRef
    plan: _core.TransferPlan
    described: BoundaryTransfer


Message = tuple[PlannedTransfer, ...]


class TransferPlanner:
    """Plans what goes between stages.

    Args:
        emitted: the program of every stage.
        plans: likewise.
        submeshes: likewise.
        cluster: the machines.
    """

    def __init__(
        self,
        emitted: Sequence[EmittedProgram],
        plans: Sequence[Plan],
        submeshes: Sequence[_core.Submesh],
        cluster: _core.Cluster,
    ) -> None:
        self._emitted = emitted
        self._meshes = [plan.mesh_shape for plan in plans]
        self._submeshes = submeshes
        self._cluster = cluster

    def messages(self, transfers: Sequence[Transfer]) -> tuple[Message, ...]:
        """What goes together: scalars of one dtype in one round of the update; the rest alone.

        Args:
            transfers: in the order in which they are sent; messages come in that of their first.

        Raises:
            PlanError: E335, E341.
        """
        together: dict[Hashable, list[Transfer]] = {}
        for transfer in transfers:
            together.setdefault(self._key(transfer), []).append(transfer)
        return tuple(self._planned(of_message) for of_message in together.values())

    def _key(self, transfer: Transfer) -> Hashable:
        _, value = self._source(transfer)
        if transfer.when != "update" or value.global_shape != ():
            return transfer
        return transfer.round, transfer.source, transfer.target, value.dtype

    def _planned(self, transfers: Sequence[Transfer]) -> Message:
        first = transfers[0]
        plan = self._alone(first) if len(transfers) == 1 else self._vector(first, len(transfers))
        return tuple(self._of_message(transfer, plan, len(transfers)) for transfer in transfers)

    def _of_message(
        self, transfer: Transfer, plan: _core.TransferPlan, length: int
    ) -> PlannedTransfer:
        source, given = self._source(transfer)
        target, wanted = self._input(transfer.target, transfer.value, transfer)
        described = BoundaryTransfer(
            **dataclasses.asdict(transfer),
            shape=given.global_shape,
            dtype=given.dtype,
            source_spec=_core.print_spec(*core_form(given)),
            target_spec=_core.print_spec(*core_form(wanted)),
            bytes=sum(step.bytes for step in plan.steps if step.kind != "copy") // length,
            host_bytes=sum(plan.host_pair_bytes.values()) // length,
            cost_us=plan.cost_us / length,
        )
        return PlannedTransfer(transfer, source, target, plan, described)

    def _alone(self, transfer: Transfer) -> _core.TransferPlan:
        _, given = self._source(transfer)
        _, wanted = self._input(transfer.target, transfer.value, transfer)
        common = _core.common_atoms(
            *core_form(given), self._meshes[transfer.source],
            *core_form(wanted), self._meshes[transfer.target],
        )  # fmt: skip
        if common is None:
            raise PlanError(
                "a value cannot go from stage to stage as it is divided on both sides.",
                code="E335",
                values=[f"value {transfer.value}, stages {transfer.source}, {transfer.target}"],
                advice="another mesh for one of the stages",
            )
        atoms, source_spec, target_spec = common
        return _core.plan_transfer(
            atoms, given.dtype, source_spec, self._submeshes[transfer.source], target_spec,
            self._submeshes[transfer.target], self._cluster,
        )  # fmt: skip

    def _vector(self, first: Transfer, length: int) -> _core.TransferPlan:
        """Scalars have no dims to divide: every rank of both stages has them all."""
        source, target = first.source, first.target
        whole = [_core.Placement.replicate()]
        return _core.plan_transfer(
            _core.TensorAtoms([length], [[0]]), self._source(first)[1].dtype,
            len(self._meshes[source]) * whole, self._submeshes[source],
            len(self._meshes[target]) * whole, self._submeshes[target], self._cluster,
        )  # fmt: skip

    def _source(self, transfer: Transfer) -> tuple[LocalRef, LocalTensor]:
        if transfer.when == "start":
            return self._input(transfer.source, transfer.parameter, transfer)
        return self._emitted[transfer.source].sent[transfer.value]

    def _input(self, stage: int, name: str, transfer: Transfer) -> tuple[LocalRef, LocalTensor]:
        found = self._emitted[stage].received.get(name)
        if found is None:
            raise PlanError(
                "a stage does not read what it is sent.",
                code="E335",
                values=[f"value {transfer.value}, stages {transfer.source}, {transfer.target}"],
                advice="report this with the plan",
            )
        return found
