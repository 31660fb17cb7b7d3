"""A plan written by hand: three blocks of two weights, data x tensor parallel on 2 x 4 devices."""

from shardwright.cluster import Cluster
from shardwright.plan import (
    Certificate,
    CollectiveCount,
    ConversionSharding,
    GradientSharding,
    MemoryAtPeak,
    MemorySample,
    OpSharding,
    Plan,
    SearchStats,
    StagePlan,
    TensorSharding,
)

GIB = 2**30


def sharding(shape: tuple[int, ...], spec: tuple[str, ...], text: str, dtype: str = "float16"):
    return TensorSharding(shape=shape, dtype=dtype, spec=spec, text=text)


def op(node: str, output: TensorSharding, **labels: str) -> OpSharding:
    fields = {
        "op": "aten.mm.default", "phase": "forward", "module_path": "", "source": "train.py:7",
        "input_kind": "", "input_name": "",
    }  # fmt: skip
    return OpSharding(node=node, operands=(), outputs=(output,), **{**fields, **labels})


def parameter(name: str, output: TensorSharding) -> OpSharding:
    return op(f"p_{name}", output, op="input", source="", input_kind="parameter", input_name=name)


def state(name: str, key: str, output: TensorSharding) -> OpSharding:
    return op(
        f"s_{name}_{key}", output, op="input", source="", input_kind="optimizer_state",
        input_name=f"{name}.{key}",
    )  # fmt: skip


def block(index: int, *, prefix: str = "blocks") -> list[OpSharding]:
    """Up is column parallel, down is row parallel, both on axis 1; state is cut on axis 0 too."""
    up, down = f"{prefix}.{index}.up.weight", f"{prefix}.{index}.down.weight"
    ops = [
        parameter(up, sharding((4096, 1024), ("R", "S0"), "S1 R")),
        parameter(down, sharding((1024, 4096), ("R", "S1"), "R S1")),
    ]
    for key in ("exp_avg", "exp_avg_sq"):
        ops += [
            state(up, key, sharding((4096, 1024), ("S0.1", "S0"), "S10 R", "float32")),
            state(down, key, sharding((1024, 4096), ("S0", "S1"), "S0 S1", "float32")),
        ]
    ops.append(state(up, "step", sharding((), ("R", "R"), "", "float32")))
    return ops


def forward(index: int, *, prefix: str = "blocks") -> list[OpSharding]:
    return [
        op(f"mm_up_{index}", sharding((64, 4096), ("S0", "S1"), "S0 S1"),
           module_path=f"{prefix}.{index}.up"),
        op(f"mm_down_{index}", sharding((64, 1024), ("S0", "P"), "S0 R P1"),
           module_path=f"{prefix}.{index}.down"),
    ]  # fmt: skip


def gradients(index: int, *, prefix: str = "blocks") -> list[GradientSharding]:
    up, down = f"{prefix}.{index}.up.weight", f"{prefix}.{index}.down.weight"
    return [
        GradientSharding(up, f"mm_{index}", ("P", "S0"), "S1 R P0", ("S0.1", "S0"), "S10 R"),
        GradientSharding(down, f"mm_{index}_1", ("P", "S1"), "R S1 P0", ("S0", "S1"), "S0 S1"),
    ]


def timeline() -> tuple[MemorySample, ...]:
    """Activations pile up, gradients take their place; no moment is above the peak."""
    samples = []
    for moment in range(0, 100, 5):
        phase = "forward" if moment < 40 else "backward" if moment < 85 else "update"
        live = GIB // 2 * min(moment, 80 - moment) // 40 if moment <= 80 else 0
        grads = GIB // 40 * max(0, min(moment, 80) - 40)
        samples.append(
            MemorySample(moment, phase, MemoryAtPeak(2 * GIB, grads, 4 * GIB, live, GIB // 2))
        )
    return tuple(samples)


def certificate(**changes: object) -> Certificate:
    fields: dict[str, object] = {
        "cost_us": 2500.0,
        "compute_us": 2000.0,
        "communication_us": 500.0,
        "forward_us": 800.0,
        "backward_us": 1500.0,
        "update_us": 200.0,
        "lower_bound_us": 2500.0,
        "gap": 0.0,
        "status": "optimal",
        "peak_memory_bytes": 8 * GIB,
        "peak_node": "mm_up_2",
        "at_peak": MemoryAtPeak(2 * GIB, GIB, 4 * GIB, GIB // 2, GIB // 2),
        "collectives": {
            "all_reduce": CollectiveCount(6, 6.0 * 2**20, 9.0 * 2**20, 400.0),
            "reduce_scatter": CollectiveCount(6, 2.0 * 2**20, 2.0**20, 100.0),
        },
        "memory_timeline": timeline(),
    }
    return Certificate(**{**fields, **changes})  # type: ignore[arg-type]


def sample_plan(*, prefix: str = "blocks", num_blocks: int = 3, **changes: object) -> Plan:
    ops = [parameter("embed.weight", sharding((512, 1024), ("R", "R"), "R R"))]
    for index in range(num_blocks):
        ops += block(index, prefix=prefix)
    for index in range(num_blocks):
        ops += forward(index, prefix=prefix)
    stage = StagePlan(
        mesh_shape=(2, 4),
        ranks=tuple(range(8)),
        ops=tuple(ops),
        conversions=(
            ConversionSharding("p_embed.weight", 0, 0, ("R", "S1"), "R S1", False),
            ConversionSharding("p_embed.weight", 0, 1, ("R", "R"), "R R", False),
        ),
        gradients=tuple(g for index in range(num_blocks) for g in gradients(index, prefix=prefix)),
    )
    fields: dict[str, object] = {
        "graph_hash": "0123456789abcdef" * 4,
        "cluster": Cluster.preset("p3.16xlarge", nodes=2, devices_per_host=4),
        "stages": (stage,),
        "num_microbatches": 1,
        "certificate": certificate(),
        "stats": SearchStats(
            seconds={"capture": 1.5, "solve": 0.25},
            trials=(((8,), None, "infeasible"), ((2, 4), 2500.0, "optimal")),
            num_nodes=100,
            num_edges=200,
        ),
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]
