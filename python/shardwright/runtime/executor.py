"""Runs a program on the rank of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shardwright.lowering.arguments import parse_dtype
from shardwright.lowering.program import CollectiveSite, Program
from shardwright.lowering.table import LocalRef
from shardwright.runtime import collectives
from shardwright.runtime.section_loop import SectionRunner, run_sections

FailureHandler = Callable[[dict[str, Any], CollectiveSite | None, BaseException], BaseException]


class Executor:
    """The generated code of one rank, ready to run step after step.

    Attributes:
        program: what runs.
        rank_program: this rank's graphs.
        runner: runs its sections.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        group_names: Sequence[str],
        device: torch.device,
        on_failure: FailureHandler,
    ) -> None:
        self.program = program
        self.rank_program = program.for_rank(rank, group_names, device)
        self._forwards = [s.graph_module.forward for s in self.rank_program.sections]
        self._device = device
        self.runner = SectionRunner(self._run_section, self._zeros, _joined)
        self._on_failure = on_failure
        self._num_steps = 0

    def step(self, *inputs: Sequence[Mapping[int, Tensor]]) -> list[Tensor]:
        """Runs one step of the one program.

        Args:
            inputs: per microbatch the local value of every graph input that the program reads, by
                position among the graph's inputs. State among them is updated in place.

        Returns:
            The outputs of kind "result".
        """
        collectives.begin_step(self._num_steps)
        (of_program,) = inputs
        values = [self.values(given) for given in of_program]
        try:
            with torch.no_grad():
                results = run_sections(self.program, values, self.runner)
        except RuntimeError as error:
            failure = collectives.take_failure()
            if failure is None:
                raise
            raise self._on_failure(failure, self._site(failure), error) from error
        self._num_steps += 1
        return results

    def values(self, given: Mapping[int, Tensor]) -> dict[LocalRef, Tensor]:
        """Values of the input instructions; `given` has them by position among the graph's."""
        return {
            LocalRef(instruction): given[index]
            for index, instruction in enumerate(self.program.input_instructions)
            if instruction is not None and index in given
        }

    def _run_section(self, number: int, values: list[Tensor]) -> Sequence[Tensor]:
        given: Sequence[Tensor] = self._forwards[number](values)
        return given

    def _zeros(self, ref: LocalRef) -> Tensor:
        tensor = self.program.table.tensor(ref)
        dtype = parse_dtype(tensor.dtype)
        return torch.zeros(tensor.local_shape, dtype=dtype, device=self._device)

    def _site(self, failure: Mapping[str, Any]) -> CollectiveSite | None:
        sites = self.program.collectives
        ordinal = failure["ordinal"]
        return sites[ordinal] if 0 <= ordinal < len(sites) else None


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(parts), dim)
