"""sw.plan from step to certified plan, and what it says when it cannot."""

import copy
import json
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright import _core, zoo
from shardwright.capture import StepGraph, capture
from shardwright.forced import data_parallel, tensor_parallel, zero3
from shardwright.planning import parse_bytes, sharded_graph


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def arguments(batch: int = 32, size: int = 64) -> tuple[Any, ...]:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.empty(batch, size, device="meta")
    return model, optimizer, x, x


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    return capture(step, arguments())


@pytest.fixture(scope="module")
def gpt() -> StepGraph:
    target, args = zoo.gpt_tiny()
    return capture(target, args)


@pytest.mark.parametrize("mesh", [(1,), (2,), (4,), (2, 2)])
def test_plan_is_certified_and_survives_a_file(
    gpt: StepGraph, mesh: tuple[int, ...], tmp_path: Path
) -> None:
    plan = sw.plan(gpt, mesh=mesh)
    assert plan.certificate.status == "optimal"
    assert plan.certificate.at_peak.total == plan.peak_memory_bytes
    assert {"capture", "rules", "model", "solve", "certificate"} <= set(plan.stats.seconds)
    plan.save(tmp_path / "plan.json")
    loaded = sw.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.validate(gpt).cost_us == plan.time_us


def test_same_step_gives_the_same_bytes(graph: StepGraph) -> None:
    first, second = (json.dumps(sw.plan(graph, mesh=(2, 2)).to_dict()) for _ in range(2))
    assert first == second


def test_emitted_collectives_are_the_priced_ones(gpt: StepGraph) -> None:
    # The certificate counts what it prices, the program is written by other code.
    cluster = sw.Cluster.abstract((2, 2), alpha_us=(1, 1), beta_us_per_byte=(1, 1))
    plan = sw.plan(gpt, mesh=(2, 2), cluster=cluster, shard_all_products=True)
    sharded = sharded_graph(gpt)
    program = _core.emit_program(sharded, plan.to_core(sharded))
    emitted: dict[str, int] = {}
    price = 0.0
    for instruction in program.instructions:
        if instruction.step is not None:
            price += instruction.step.cost_us
            if instruction.step.kind not in ("slice", "mask"):
                emitted[instruction.step.kind] = emitted.get(instruction.step.kind, 0) + 1
    assert emitted == {kind: c.count for kind, c in plan.certificate.collectives.items()}
    assert price == pytest.approx(plan.certificate.communication_us, rel=1e-9)


def test_every_candidate_mesh_is_tried_and_the_best_is_kept(graph: StepGraph) -> None:
    plan = sw.plan(graph, cluster="local-cpu:4")
    tried = {shape: cost for shape, cost, _ in plan.stats.trials}
    assert set(tried) == {(4,), (2, 2)}
    assert plan.time_us == min(cost for cost in tried.values() if cost is not None)


def test_tight_limit_says_the_smallest_that_would_do(graph: StepGraph) -> None:
    with pytest.raises(sw.InfeasibleError) as caught:
        sw.plan(graph, mesh=(2, 2), memory_limit="50KiB")
    error = caught.value
    assert error.code == "E203"
    assert error.summary == "no sharding fits 50.0 KiB per device on mesh (2, 2)."
    assert re.match(r"smallest peak found: \d+\.\d KiB \(parameters ", error.values[0])
    assert "largest tensor: " in error.values[1]
    (limit,) = re.findall(r'memory_limit="([^"]+)"', error.advice)
    assert sw.plan(graph, mesh=(2, 2), memory_limit=limit).peak_memory_bytes <= parse_bytes(limit)


@pytest.fixture(scope="module")
def deep() -> StepGraph:
    with torch.device("meta"):
        model = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(256, 256), nn.GELU())))
        x = torch.empty(512, 256)
    return capture(step, (model, torch.optim.Adam(model.parameters(), lr=0.1), x, x))


def test_limit_between_the_models_peak_and_the_certificates_gives_a_plan_or_says_so(
    deep: StepGraph,
) -> None:
    refused = []
    for limit in (6_000_000, 6_040_120, 6_100_000):
        try:
            plan = sw.plan(deep, mesh=(2, 2), memory_limit=limit, time_limit_s=5)
        except sw.InfeasibleError as error:
            refused.append((error.code, error.summary, error.advice))
            continue
        assert plan.peak_memory_bytes <= limit
        assert plan.certificate.lower_bound_us <= plan.time_us
    # Nothing proves that none fits, so the error claims no more than the search saw.
    for code, summary, advice in refused:
        assert code == "E203"
        assert re.fullmatch(r"no sharding that fits .* was found\.", summary)
        assert "time_limit_s=10" in advice


def test_higher_limits_never_make_plans_slower(deep: StepGraph) -> None:
    # The certified peak exceeds the model's by transient copies; a limit tightened by all of the
    # excess once gave up plans that a lower limit found.
    costs = []
    for limit in range(6_200_000, 7_000_001, 100_000):
        plan = sw.plan(deep, mesh=(2, 2), memory_limit=limit, time_limit_s=4)
        assert plan.peak_memory_bytes <= limit
        assert plan.certificate.lower_bound_us <= plan.time_us
        costs.append(plan.time_us)
    assert costs == sorted(costs, reverse=True)


def test_lower_limits_never_make_plans_faster(graph: StepGraph) -> None:
    free = sw.plan(graph, mesh=(4,))
    costs = [free.time_us]
    for share in (0.9, 0.7, 0.5):
        limit = int(free.peak_memory_bytes * share)
        plan = sw.plan(graph, mesh=(4,), memory_limit=limit, time_limit_s=10)
        assert plan.peak_memory_bytes <= limit
        costs.append(plan.time_us)
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"mesh": (2,), "memory_limit": "nan"}, sw.ConfigError, "E521"),
        ({"mesh": (2,), "memory_limit": float("nan")}, sw.ConfigError, "E521"),
        ({"mesh": (2,), "memory_limit": -1}, sw.ConfigError, "E521"),
        ({"mesh": (2,), "memory_limit": "14 apples"}, sw.ConfigError, "E521"),
        ({"mesh": (2,), "memory_limit": True}, sw.ConfigError, "E521"),
        ({"mesh": (0,)}, sw.ConfigError, "E522"),
        ({"mesh": ()}, sw.ConfigError, "E522"),
        ({"mesh": (1, 1, 1, 1, 2)}, sw.ConfigError, "E522"),
        ({"mesh": (2,), "num_microbatches": 0}, sw.ConfigError, "E522"),
        ({"mesh": (2,), "time_limit_s": 0}, sw.ConfigError, "E520"),
        ({"mesh": (2,), "time_limit_s": float("nan")}, sw.ConfigError, "E520"),
        ({"mesh": (2,), "relative_gap": -1e-4}, sw.ConfigError, "E520"),
        ({"mesh": (2,), "relative_gap": float("nan")}, sw.ConfigError, "E520"),
        ({"mesh": (2,), "relative_gap": "1e-4"}, sw.ConfigError, "E520"),
        ({}, sw.ConfigError, "E524"),
        ({"mesh": (2,), "forced": {"no.such.weight": "R R"}}, sw.ConfigError, "E523"),
        ({"cluster": "local-cpu:2", "forced": {"x": "S0 R"}}, sw.ConfigError, "E520"),
        ({"mesh": (2, 8), "cluster": "p3.16xlarge:1"}, sw.ClusterError, "E351"),
        ({"cluster": "p9.huge"}, sw.ClusterError, "E352"),
        ({"mesh": (3,), "forced": {"0.weight": "S0 R"}}, sw.PlanError, "E312"),
        ({"mesh": (2,), "forced": {"0.weight": "S0 S0"}}, sw.PlanError, "E310"),
        ({"mesh": (2,), "forced": {"0.weight": "R R P0"}}, sw.PlanError, "E312"),
    ],
    ids=repr,
)
def test_bad_argument_is_a_coded_error(
    graph: StepGraph, options: dict[str, Any], kind: type[sw.ShardwrightError], code: str
) -> None:
    started = time.perf_counter()
    with pytest.raises(kind) as caught:
        sw.plan(graph, **options)
    assert caught.value.code == code
    assert caught.value.advice
    assert time.perf_counter() - started < 5


def test_captured_step_takes_no_arguments(graph: StepGraph) -> None:
    with pytest.raises(sw.ConfigError) as caught:
        sw.plan(graph, 1, mesh=(2,))
    assert caught.value.code == "E522"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("14GiB", 14 * 2**30), ("1.5 kb", 1500), ("2e3", 2000), ("7 B", 7), (5, 5), (1e3, 1000)],
)
def test_sizes_are_read_as_written(text: str | float, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


def test_data_parallelism_can_be_forced(graph: StepGraph) -> None:
    plan = sw.plan(graph, mesh=(2, 2), forced=data_parallel(graph, (2, 2)))
    assert plan.inputs["x"].text == "S01 R"
    assert plan.inputs["0.weight"].text == "R R"
    assert plan.inputs["0.weight.exp_avg"].text == "R R"


def test_an_input_forced_whole_stays_whole_where_parts_would_do() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = (model, optimizer, torch.empty(4096, 16), torch.empty(4096, 8))
    split = {"mm_default": "S0 R", "relu_default": "S0 R", "y": "S0 R"}
    free = sw.plan(step, *args, mesh=(2,), forced=split, shard_all_products=True)
    assert free.inputs["x"].text == "S0 R"
    whole = sw.plan(step, *args, mesh=(2,), forced={**split, "x": "R R"}, shard_all_products=True)
    assert whole.inputs["x"].text == "R R"
    assert whole.time_us == free.time_us


def test_zero3_can_be_forced(graph: StepGraph) -> None:
    plan = sw.plan(graph, mesh=(4,), forced=zero3(graph, (4,)))
    assert plan.inputs["x"].text == "S0 R"
    assert plan.inputs["2.weight.exp_avg"].text == "S0 R"
    assert "all_gather" in plan.certificate.collectives


def test_zero3_splits_the_heads_of_a_fused_weight(gpt: StepGraph) -> None:
    # [3 * heads * e, hidden] with 3 parts that 4 devices do not divide, and 4 heads that they do.
    forced = zero3(gpt, (4,))
    assert forced["layers.0.attention.qkv.weight"] == "{R,S0,R} R"
    plan = sw.plan(gpt, mesh=(4,), forced=forced)
    assert plan.inputs["layers.0.attention.qkv.weight"].text == "{R,S0,R} R"


def test_equal_ops_with_one_operand_twice_are_priced_apart() -> None:
    # Batch norm squares what it also multiplies; search and certificate must agree on each.
    target, args = zoo.wide_resnet_tiny()
    assert sw.plan(target, *args, mesh=(2, 2)).certificate.status == "optimal"


def test_tensor_parallelism_can_be_forced(graph: StepGraph) -> None:
    weights = {"0.weight": 0, "0.bias": 0, "2.weight": 1}
    plan = sw.plan(graph, mesh=(2, 2), forced=tensor_parallel(graph, (2, 2), weights, axis=1))
    assert plan.inputs["0.weight"].text == "S1 R"
    assert plan.inputs["2.weight.exp_avg_sq"].text == "R S1"


def test_batch_that_does_not_divide_names_its_dim() -> None:
    uneven = capture(step, arguments(batch=30))
    with pytest.raises(sw.ConfigError, match="dim 0 of x") as caught:
        data_parallel(uneven, (4,))
    assert caught.value.code == "E525"


@pytest.fixture(scope="module")
def saved(graph: StepGraph) -> dict[str, Any]:
    return sw.plan(graph, mesh=(4,), forced=zero3(graph, (4,))).to_dict()


def op_of(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(op for op in data["stages"][0]["ops"] if name in (op["input_name"], op["node"]))


def test_plan_of_another_step_is_refused(saved: dict[str, Any]) -> None:
    plan = sw.Plan.from_dict(saved)
    with pytest.raises(sw.PlanError) as caught:
        plan.validate(capture(step, arguments(batch=64)))
    assert caught.value.code == "E325"


def test_changed_spec_fails_the_certificate(graph: StepGraph, saved: dict[str, Any]) -> None:
    data = copy.deepcopy(saved)
    product = next(op for op in data["stages"][0]["ops"] if "mm" in op["op"])
    spec = product["outputs"][0]["spec"]
    product["outputs"][0]["spec"] = ["R"] if spec != ["R"] else ["S0"]
    with pytest.raises(sw.PlanError) as caught:
        sw.Plan.from_dict(data).validate(graph)
    assert caught.value.code == "E314"


def test_flattered_memory_fails_the_certificate(graph: StepGraph, saved: dict[str, Any]) -> None:
    data = copy.deepcopy(saved)
    cert = data["certificate"]
    cert["at_peak"]["activations"] -= 4
    cert["peak_memory_bytes"] -= 4
    with pytest.raises(sw.PlanError) as caught:
        sw.Plan.from_dict(data).validate(graph)
    assert caught.value.code in {"E323", "E324"}


def test_op_left_out_fails_the_certificate(graph: StepGraph, saved: dict[str, Any]) -> None:
    data = copy.deepcopy(saved)
    product = next(op for op in data["stages"][0]["ops"] if "mm" in op["op"])
    data["stages"][0]["ops"].remove(product)
    conversions = data["stages"][0]["conversions"]
    conversions[:] = [c for c in conversions if c["node"] != product["node"]]
    gradients = data["stages"][0].get("gradients", [])
    gradients[:] = [g for g in gradients if g["node"] != product["node"]]
    with pytest.raises(sw.PlanError) as caught:
        sw.Plan.from_dict(data).validate(graph)
    assert caught.value.code == "E314"


def test_interrupt_stops_the_search(gpt: StepGraph) -> None:
    # A wide problem under a tight limit searches for long; Ctrl-C ends it at once.
    cluster = sw.Cluster.abstract((2, 2, 2), alpha_us=(1,) * 3, beta_us_per_byte=(1,) * 3)

    def search_again_and_again() -> None:
        while time.perf_counter() - started < 60:
            sw.plan(gpt, mesh=(2, 2, 2), cluster=cluster, shard_all_products=True)

    # A shell starts background jobs with SIGINT ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1.0, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    started = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            search_again_and_again()
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, handler)
    assert time.perf_counter() - started < 30


def test_a_binding_limit_that_fixes_values_twice_in_a_round():
    # A search that used the marginals of a reduction already left behind crashed on this one.
    step, args = zoo.gpt_tiny(batch_size=64)
    limit = 2_724_238
    found = sw.plan(
        step,
        *args,
        cluster="p4d.24xlarge:1",
        mesh=(2, 4),
        memory_limit=limit,
        time_limit_s=4,
    )
    assert found.certificate.peak_memory_bytes <= limit
    assert found.certificate.lower_bound_us <= found.certificate.cost_us


def test_a_batch_that_does_not_divide_is_named_with_its_dim():
    step, args = zoo.mlp_tiny(batch_size=7)
    with pytest.raises(sw.PlanError, match="dim 0 has 7 elements, which 2 devices") as caught:
        sw.plan(step, *args, mesh=(2,), forced={"inputs": "S0 R"})
    assert caught.value.code == "E312"


def test_search_reports_its_progress(gpt: StepGraph) -> None:
    seen: list[tuple[str, int | None, int | None, float]] = []
    plan = sw.plan(gpt, mesh=(2, 2), on_progress=lambda *state: seen.append(state))
    assert seen
    # The search counts whole units, each op and conversion rounded by itself, the plan does not.
    assert plan.stats is not None
    rounding = 0.5 * (plan.stats.num_nodes + plan.stats.num_edges)
    for phase, cost, lower_bound, seconds in seen:
        assert phase
        assert seconds >= 0
        assert cost is None or cost >= 1000 * plan.certificate.lower_bound_us - rounding
        assert lower_bound is None or lower_bound <= 1000 * plan.time_us + rounding


def test_error_in_the_progress_listener_reaches_the_caller(gpt: StepGraph) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("from the listener")

    with pytest.raises(RuntimeError, match="from the listener"):
        sw.plan(gpt, mesh=(2, 2), on_progress=fail)
