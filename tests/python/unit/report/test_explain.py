import pytest

import shardwright as sw
from shardwright import zoo
from shardwright.report.explain import Explanation


@pytest.fixture(scope="module")
def plan() -> sw.Plan:
    step, args = zoo.mlp_tiny(device="meta")
    return sw.plan(step, *args, cluster="local-cpu:2", mesh=(2,), time_limit_s=10)


@pytest.fixture(scope="module")
def explanation(plan: sw.Plan) -> Explanation:
    return plan.explain("layers.0.weight", time_limit_s=10)


def test_every_other_spec_of_the_input_is_an_alternative(
    plan: sw.Plan, explanation: Explanation
) -> None:
    # A matrix on one axis of two devices is whole or cut along one of its two dims.
    texts = {explanation.chosen, *(other.text for other in explanation.alternatives)}
    assert texts == {"R R", "S0 R", "R S0"}
    assert explanation.chosen == plan.inputs["layers.0.weight"].text


def test_alternatives_of_a_proven_plan_are_not_faster(
    plan: sw.Plan, explanation: Explanation
) -> None:
    assert plan.certificate.status == "optimal"
    for other in explanation.alternatives:
        assert other.cost_us is not None
        assert other.cost_us >= plan.time_us


def test_alternative_costs_what_a_plan_with_the_spec_forced_costs(
    plan: sw.Plan, explanation: Explanation
) -> None:
    step, args = zoo.mlp_tiny(device="meta")
    other = explanation.alternatives[0]
    forced = sw.plan(
        step,
        *args,
        cluster="local-cpu:2",
        mesh=(2,),
        forced={"layers.0.weight": other.text},
        time_limit_s=10,
    )
    assert forced.inputs["layers.0.weight"].text == other.text
    assert forced.time_us == pytest.approx(other.cost_us, rel=1e-9)


def test_explanation_reads_as_text_and_as_a_table(explanation: Explanation) -> None:
    lines = str(explanation).splitlines()
    assert lines[0].startswith(f"layers.0.weight [64, 16] is stored as {explanation.chosen}. ")
    assert len(lines) == 4
    assert "chosen" in lines[1]
    assert explanation._repr_html_().count("<tr>") == 4


def test_time_that_runs_out_leaves_specs_untried(plan: sw.Plan) -> None:
    explanation = plan.explain("layers.0.weight", time_limit_s=0)
    assert {other.status for other in explanation.alternatives} == {"not tried"}
    assert "With no other spec a plan was found." in str(explanation)


def test_loaded_plan_cannot_be_explained(plan: sw.Plan) -> None:
    loaded = sw.Plan.from_dict(plan.to_dict())
    with pytest.raises(sw.ConfigError) as refused:
        loaded.explain("layers.0.weight")
    assert refused.value.code == "E541"


def test_unknown_name_lists_those_that_end_alike(plan: sw.Plan) -> None:
    with pytest.raises(sw.ConfigError) as refused:
        plan.explain("layer.0.weight")
    assert refused.value.code == "E542"
    assert "layers.0.weight" in refused.value.values[0]
