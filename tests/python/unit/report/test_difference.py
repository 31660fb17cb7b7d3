import dataclasses

from tests.python.unit.report.sample_plan import certificate, parameter, sample_plan, sharding

from shardwright.report.difference import difference_lines


def test_same_plans_have_no_difference() -> None:
    assert difference_lines(sample_plan(), sample_plan(stats=None)) == []


def test_figures_and_specs_that_changed_are_listed() -> None:
    first = sample_plan()
    stage = first.stages[0]
    moved = parameter("embed.weight", sharding((512, 1024), ("S0", "R"), "S0 R"))
    second = sample_plan(
        stages=(dataclasses.replace(stage, ops=(moved, *stage.ops[1:])),),
        certificate=certificate(cost_us=2600.0),
    )
    assert difference_lines(first, second) == [
        "time: 2.500 ms -> 2.600 ms",
        "input embed.weight: R R -> S0 R",
    ]


def test_long_lists_are_cut_short_and_counted() -> None:
    lines = difference_lines(sample_plan(num_blocks=1), sample_plan(num_blocks=20))
    # 19 blocks of 2 parameters and 5 states each are new: 133 inputs.
    assert "... and 93 more inputs" in lines
