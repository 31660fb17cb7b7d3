"""shardwright: automatic parallelization of a PyTorch training step."""

from shardwright import testing
from shardwright.api import parallelize
from shardwright.cluster import Cluster
from shardwright.errors import (
    CaptureError,
    ClusterError,
    CollectiveError,
    ConfigError,
    InfeasibleError,
    InternalError,
    PlanError,
    ProblemError,
    RankMismatchError,
    RuleError,
    ShardwrightError,
    SolverError,
)
from shardwright.layer_marks import mark_layer
from shardwright.pipeline.plan import PipelinePlan
from shardwright.plan import Plan
from shardwright.plan_files import load_plan
from shardwright.planning import plan
from shardwright.rules import register_rule
from shardwright.solve import SolveResult, solve_ilp
from shardwright.stages import StageMemory, StageSolution, solve_stages
from shardwright.version import __version__

__all__ = [
    "CaptureError",
    "Cluster",
    "ClusterError",
    "CollectiveError",
    "ConfigError",
    "InfeasibleError",
    "InternalError",
    "PipelinePlan",
    "Plan",
    "PlanError",
    "ProblemError",
    "RankMismatchError",
    "RuleError",
    "ShardwrightError",
    "SolveResult",
    "SolverError",
    "StageMemory",
    "StageSolution",
    "__version__",
    "load_plan",
    "mark_layer",
    "parallelize",
    "plan",
    "register_rule",
    "solve_ilp",
    "solve_stages",
    "testing",
]
