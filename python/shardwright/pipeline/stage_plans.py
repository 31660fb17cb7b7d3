"""Plans of single stages: what each is asked for, and what becomes of what a search wished for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwright.capture.step_graph import StepGraph
from shardwright.cluster import Cluster
from shardwright.errors import ConfigError, InfeasibleError, PlanError
from shardwright.pipeline.module_names import layer_names
from shardwright.plan import Plan

# Of forced specs: unfit for the tensor, and impossible for the op.
_UNFIT_SPEC = ("E310", "E312")


@dataclass(frozen=True)
class StageRequest:
    """One stage that is to be planned.

    Attributes:
        number: of the stage.
        cluster: its submesh.
        mesh: shape of its mesh; None lets the planner choose.
        forced: specs of inputs and nodes.
        microbatches_in_flight: most microbatches whose activations it holds at once.
    """

    number: int
    cluster: Cluster
    mesh: tuple[int, ...] | None
    forced: Mapping[str, str]
    microbatches_in_flight: int


# Plans one stage: (its graph, what it is to be) -> plan.
StagePlanner = Callable[[StepGraph, StageRequest], Plan]


def plan_checked(
    graph: StepGraph,
    num_devices: int,
    request: StageRequest,
    wished: Mapping[str, str],
    plan_stage: StagePlanner,
) -> Plan:
    """Plans one stage.

    Args:
        graph: of the stage.
        num_devices: of its submesh.
        request: what it is to be.
        wished: specs of its inputs and nodes that a search chose; where they cannot be, or do not
            fit the memory, the stage is planned without.
        plan_stage: makes the plan.

    Raises:
        ConfigError: E528 for a plan on another number of devices; InfeasibleError: E206 when the
            stage does not fit; and what planning raises.
    """
    try:
        plan = _plan_as_wished(graph, request, wished, plan_stage)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"stage {request.number} does not fit: {error.summary}",
            code="E206",
            values=[f"its layers: {layer_names(graph)}", *error.values],
            where=error.where,
            advice="fewer layers or more devices for this stage, more microbatches, or "
            f"recomputation; {error.advice}",
        ) from error
    if math.prod(plan.mesh_shape) != num_devices:
        raise ConfigError(
            "the mesh of a stage has another size than the stage.",
            code="E528",
            values=[f"stage {request.number}: mesh {plan.mesh_shape}, devices {num_devices}"],
            advice="stage meshes whose sizes multiply to the devices of their stages",
        )
    return plan


def _plan_as_wished(
    graph: StepGraph, request: StageRequest, wished: Mapping[str, str], plan_stage: StagePlanner
) -> Plan:
    """With the specs that a search wishes for at the ends, or, where they cannot be, without."""
    if wished:
        try:
            forced = {**wished, **request.forced}
            return plan_stage(graph, dataclasses.replace(request, forced=forced))
        except InfeasibleError:
            pass  # the search only estimates a stage's memory
        except PlanError as error:
            if error.code not in _UNFIT_SPEC:
                raise
    return plan_stage(graph, request)
