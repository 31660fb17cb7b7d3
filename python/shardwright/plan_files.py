"""Plan files of either kind: of a step on one mesh, and of a step in stages."""

from __future__ import annotations

from pathlib import Path

from shardwright.pipeline.plan import FORMAT as PIPELINE_FORMAT
from shardwright.pipeline.plan import PipelinePlan
from shardwright.plan import Plan
from shardwright.strict_json import read_file


def load_plan(path: str | Path) -> Plan | PipelinePlan:
    """Reads a file that `Plan.save` or `PipelinePlan.save` wrote.

    Raises:
        PlanError: E320 for a file that cannot be read, E321 to E323 as `Plan.from_dict`.
    """
    data = read_file(path)
    if isinstance(data, dict) and data.get("format") == PIPELINE_FORMAT:
        return PipelinePlan.from_dict(data)
    return Plan.from_dict(data)
