import dataclasses

from tests.python.unit.report.sample_plan import GIB, certificate, sample_plan

from shardwright.plan import CollectiveCount
from shardwright.report.text import text_report


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_header_names_step_cluster_and_mesh() -> None:
    lines = text_report(sample_plan()).splitlines()
    assert lines[0] == "Plan for step 0123456789ab on p3.16xlarge: 2 x 4 devices, 16.0 GiB each"
    assert lines[1] == "mesh 2 x 4, 1 stage, 1 microbatch"


def test_cost_is_split_by_collective_with_count_bytes_and_share() -> None:
    lines = squeezed(text_report(sample_plan()))
    assert "Time per step: 2.500 ms" in lines
    assert "compute 2.000 ms 80.0 %" in lines
    # 400 of 2500 us.
    assert "all-reduce 6 6.0 MiB 9.0 MiB 400.0 us 16.0 %" in lines
    assert "reduce-scatter 6 2.0 MiB 1.0 MiB 100.0 us 4.0 %" in lines


def test_memory_at_the_peak_is_split_by_kind_against_the_device() -> None:
    lines = squeezed(text_report(sample_plan()))
    assert "Memory per device at the peak: 8.0 GiB of 16.0 GiB" in lines
    assert any(line.startswith("optimizer 4.0 GiB 50.0 %") for line in lines)
    assert "The peak is at node mm_up_2." in lines


def test_layers_that_are_sharded_alike_are_folded() -> None:
    lines = squeezed(text_report(sample_plan()))
    assert lines.count("blocks.0-2 (3 x)") == 1
    assert "up.weight S1 R = S10 R S10 R S0 S1 4096x1024" in lines
    assert "embed.weight R R R S1, = - - - 512x1024" in lines


def test_certificate_says_what_optimal_refers_to() -> None:
    text = " ".join(squeezed(text_report(sample_plan())))
    assert "cost 2.500 ms, lower bound 2.500 ms, gap 0 %" in text
    assert "all shardings of this step on mesh 2 x 4 within the memory" in text
    assert "8: no plan found that fits" in text


def test_a_gap_is_never_shown_as_none() -> None:
    plan = sample_plan(certificate=certificate(gap=3e-7, status="time_limit"))
    text = text_report(plan)
    assert "gap 3.0e-05 %" in text
    assert "Not proven optimal: the time limit ended the search." in text
    assert "Proven optimal" not in text


def test_loaded_plan_claims_nothing_about_other_meshes_and_shows_no_seconds() -> None:
    text = text_report(sample_plan(stats=None))
    assert "mesh shape" not in text
    assert "Seconds" not in text


def test_plain_text_has_no_escape_codes_and_fits_the_width() -> None:
    text = text_report(sample_plan(), width=90)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 90
    assert "\x1b[" in text_report(sample_plan(), color=True)


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    text = text_report(sample_plan(prefix="[red]net[/red]"))
    assert "[red]net[/red].0-2 (3 x)" in text


def test_step_that_communicates_nothing_and_costs_nothing_has_a_report() -> None:
    free = certificate(
        cost_us=0.0, compute_us=0.0, communication_us=0.0, lower_bound_us=0.0, collectives={}
    )
    assert "Time per step: 0.000 us" in text_report(sample_plan(certificate=free))


def test_device_memory_of_zero_means_no_limit_is_shown() -> None:
    plan = sample_plan()
    plan = dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, memory_bytes=0))
    assert "Memory per device at the peak: 8.0 GiB\n" in text_report(plan)


def test_same_plan_gives_the_same_text() -> None:
    assert text_report(sample_plan()) == text_report(sample_plan())
    assert CollectiveCount(1, GIB, GIB, 1.0) == CollectiveCount(1, GIB, GIB, 1.0)
