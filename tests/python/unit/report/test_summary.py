import dataclasses

from tests.python.unit.report.sample_plan import op, parameter, sample_plan, sharding, state

from shardwright.plan import ConversionSharding, OpSharding, Plan, StagePlan, TensorSharding
from shardwright.report.summary import plain_words


def plan_of(ops: list[OpSharding], mesh_shape: tuple[int, ...] = (8,)) -> Plan:
    stage = StagePlan(mesh_shape, tuple(range(8)), tuple(ops), ())
    return sample_plan(stages=(stage,))


def linear(
    stored: tuple[str, ...], state_spec: tuple[str, ...], output: tuple[str, ...]
) -> list[OpSharding]:
    def weight(spec: tuple[str, ...]) -> TensorSharding:
        return sharding((64, 64), spec, "text")

    return [
        parameter("fc.weight", weight(stored)),
        state("fc.weight", "exp_avg", weight(state_spec)),
        op("mm", sharding((32, 64), output, "text"), module_path="fc"),
    ]


def test_column_and_row_parallel_weights_are_tensor_parallel() -> None:
    words = plain_words(sample_plan())
    assert "Axis 1 (4 devices inside a host): tensor parallel (weights in pieces)." in words


def test_whole_weights_with_split_outputs_are_data_parallel() -> None:
    words = plain_words(sample_plan())
    assert words[0] == (
        "Axis 0 (2 devices across hosts): data parallel (whole weights, activations in pieces)."
    )


def test_whole_weights_with_whole_outputs_are_idle() -> None:
    words = plain_words(plan_of(linear(("R",), ("R",), ("R",))))
    assert "idle (every device computes the same)" in words[0]


def test_state_cut_over_the_data_parallel_axis_is_zero_1() -> None:
    words = plain_words(plan_of(linear(("R",), ("S0",), ("S0",))))
    assert words[1] == "Shared out among data-parallel replicas: optimizer state over 8 = ZeRO-1."


def test_gradients_cut_too_make_it_zero_2() -> None:
    assert plain_words(sample_plan())[2] == (
        "Shared out among data-parallel replicas: "
        "optimizer state over 2, gradients over 2 = ZeRO-2."
    )


def test_stored_parameters_cut_too_make_it_zero_3() -> None:
    ops = linear(("S0",), ("S0",), ("S0",))
    plan = plan_of(ops)
    gathered = ConversionSharding(ops[0].node, 0, 0, ("R",), "R R", False)
    stage = dataclasses.replace(plan.stages[0], conversions=(gathered,))
    words = plain_words(dataclasses.replace(plan, stages=(stage,)))
    assert "data parallel" in words[0]
    assert words[1] == (
        "Shared out among data-parallel replicas: "
        "optimizer state over 8, parameters over 8 = ZeRO-3."
    )


def test_plain_data_parallelism_is_said_to_keep_everything() -> None:
    words = plain_words(plan_of(linear(("R",), ("R",), ("S0",))))
    assert words[1] == "Data-parallel replicas each keep all of the model's state."


def test_pure_tensor_parallelism_is_not_called_zero() -> None:
    words = plain_words(plan_of(linear(("S0",), ("S0",), ("S1",))))
    assert "tensor parallel" in words[0]
    assert not any("ZeRO" in line for line in words)


def test_weights_that_differ_are_given_by_share() -> None:
    small = linear(("R",), ("R",), ("S0",))
    # 3 x 4096 of 4 x 4096 elements are in pieces.
    large = [
        parameter("big.weight", sharding((192, 64), ("S0",), "S0 R")),
        op("mm_big", sharding((32, 192), ("S1",), "R S0"), module_path="big"),
    ]
    words = plain_words(plan_of(small + large))
    assert words[0].endswith("tensor parallel for 75 % of the weights, data parallel for 25 %.")


def test_one_device_has_nothing_to_say() -> None:
    plan = plan_of(linear(("R",), ("R",), ("R",)), mesh_shape=(1,))
    plan = dataclasses.replace(plan, stages=(dataclasses.replace(plan.stages[0], ranks=(0,)),))
    assert plain_words(plan) == ["One device: nothing is sharded, nothing is communicated."]
