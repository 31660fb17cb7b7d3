"""Pipelines written by hand: their price, and what is wrong with bad ones."""

import copy
import json
import time
from pathlib import Path

import pytest

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.pipeline.written import evaluate, read_written
from shardwright.planning import SearchRequest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "pipeline.json"
TARGET = ["--target", "shardwright.zoo:gpt_tiny"]


def _example():
    return json.loads(EXAMPLE.read_text())


def _run(tmp_path, data, *words, cluster="local-cpu:3"):
    path = tmp_path / "written.json"
    path.write_text(json.dumps(data))
    return main(["plan", *TARGET, "--cluster", cluster, "--evaluate", str(path), *words])


def test_the_example_is_priced_as_the_same_plan_asked_for_otherwise(tmp_path, capsys):
    out, page, trace = (tmp_path / name for name in ("plan.json", "plan.html", "trace.json"))
    files = ("--out", str(out), "--html", str(page), "--trace", str(trace), "--json")
    assert _run(tmp_path, _example(), *files) == 0
    numbers = json.loads(capsys.readouterr().out)
    plan = sw.load_plan(out)
    assert isinstance(plan, sw.PipelinePlan)
    assert numbers["time_us"] == plan.time_us
    assert "<svg" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    (forward,) = [t for t in plan.transfers if t.when == "forward"]
    assert (forward.source_spec, forward.target_spec) == ("R R R", "S0 R R")
    open_ended = _example()
    for stage in open_ended["stages"]:
        stage.pop("entry", None)
        stage.pop("exit", None)
    (tmp_path / "open.json").write_text(json.dumps(open_ended))
    graph = capture(*zoo.gpt_tiny())
    cluster = sw.Cluster.parse("local-cpu:3")
    found = evaluate(read_written(tmp_path / "open.json"), graph, cluster, SearchRequest())
    assert found == sw.plan(
        graph, cluster=cluster, num_stages=2, num_microbatches=4, stage_meshes=[(1,), (2,)],
        stage_boundaries=["layers.1"],
    )  # fmt: skip
    # What is demanded can only cost a stage more.
    for free, forced in zip(found.stages, plan.stages, strict=True):
        assert forced.plan.time_us >= free.plan.time_us
    assert main(["show", str(out)]) == 0
    assert main(["validate", str(out), *TARGET]) == 0
    assert main(["diff", str(out), str(out)]) == 0


def test_hosts_and_devices_are_placed_whole_hosts_first(tmp_path):
    data = _example()
    data["stages"] = [
        {"hosts": 1, "devices": 1},
        {"begin": "layers.0.feed_forward", "hosts": 1, "devices": 2},
        {"begin": "layers.1", "hosts": 1, "devices": 1},
    ]
    path = tmp_path / "written.json"
    path.write_text(json.dumps(data))
    options = read_written(path).placed(sw.Cluster.preset("p3.16xlarge", devices_per_host=4))
    assert [(s.first_rank, s.num_devices) for s in options.stages] == [(2, 1), (0, 2), (3, 1)]


def test_interleaved_stages_may_share_ranks(tmp_path):
    data = _example()
    data["schedule"] = "interleaved_1f1b"
    begins = ["layers.0.feed_forward", "layers.1", "layers.1.feed_forward"]
    data["stages"] = [{"ranks": [0], "mesh": [1]}]
    data["stages"] += [{"begin": b, "ranks": [1 - n % 2]} for n, b in enumerate(begins)]
    path, out = tmp_path / "written.json", tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    words = ["plan", *TARGET, "--cluster", "local-cpu:2", "--evaluate", str(path)]
    assert main([*words, "--out", str(out), "--html", str(tmp_path / "plan.html")]) == 0
    plan = sw.load_plan(out)
    assert [stage.first_rank for stage in plan.stages] == [0, 1, 0, 1]
    peaks = [stage.plan.peak_memory_bytes for stage in plan.stages]
    assert plan.peak_memory_bytes == max(peaks[0] + peaks[2], peaks[1] + peaks[3])
    assert "stage 0, 2" in (tmp_path / "plan.html").read_text()
    data["schedule"] = "1f1b"
    path.write_text(json.dumps(data))
    assert main(words) == 2


def _changed(*path):
    *keys, last, value = path

    def change(data):
        for key in keys:
            data = data[key]
        data[last] = value

    return change


def _too_many(data):
    for rank in range(3, 200):
        data["stages"].append({"begin": "head", "ranks": [rank]})


def _mixed(data):
    data["stages"][0] = {"hosts": 1, "devices": 1}


def _three_of_four(data):
    data["stages"] = [{"hosts": 1, "devices": 3}, {"begin": "layers.1", "hosts": 1, "devices": 1}]


@pytest.mark.parametrize(
    ("change", "cluster", "code", "says"),
    [
        (_changed("stages", 1, "ranks", [0, 1]), "local-cpu:3", "E544", "stages 0 and 1"),
        (_changed("stages", 1, "ranks", [2, 3]), "local-cpu:3", "E545", "stage 1"),
        (_three_of_four, "local-cpu:4", "E544", "hosts x devices"),
        (_changed("stages", 1, "begin", "layers.7"), "local-cpu:3", "E527", "layers.7"),
        (_too_many, "local-cpu:200", "E527", "head"),
        (_changed("num_microbatches", 3), "local-cpu:3", "E526", "samples: 8"),
        (_changed("stages", 0, "entry", "R R R"), "local-cpu:3", "E543", "stage 0"),
        (_changed("stages", 1, "entry", "S7 R R"), "local-cpu:3", "E310", "S7"),
        (_changed("stages", 1, "mesh", [3]), "local-cpu:3", "E528", "stage 1"),
        (_changed("stages", 1, "ranks", [1, 1]), "local-cpu:3", "E321", "/stages/1/ranks"),
        (_changed("stages", 1, "speed", 3), "local-cpu:3", "E321", "/stages/1/speed"),
        (_changed("stages", 0, "begin", "layers.0"), "local-cpu:3", "E321", "/stages"),
        (_changed("schedule", "dualpipe"), "local-cpu:3", "E321", "/schedule"),
        (_changed("version", 2), "local-cpu:3", "E322", "version"),
        (_mixed, "local-cpu:3", "E321", "ranks for all"),
    ],
)
def test_bad_ones_are_refused_at_once(tmp_path, capsys, change, cluster, code, says):
    data = copy.deepcopy(_example())
    change(data)
    started = time.process_time()
    assert _run(tmp_path, data, cluster=cluster) == 2
    assert time.process_time() - started < 3
    err = capsys.readouterr().err
    assert f"[{code}]" in err
    assert says in err
    assert "Traceback" not in err


def test_a_stage_that_cannot_fit_is_named_with_its_layers(tmp_path, capsys):
    started = time.process_time()
    assert _run(tmp_path, _example(), "--memory-limit", "100KiB") == 3
    assert time.process_time() - started < 3
    err = capsys.readouterr().err
    assert "[E206]" in err
    assert "stage 0" in err
    assert "layers.0" in err
    assert "KiB" in err


def test_a_written_pipeline_is_the_only_word_on_stages(tmp_path, capsys):
    assert _run(tmp_path, _example(), "--num-stages", "2") == 2
    assert "[E539]" in capsys.readouterr().err


def test_stages_are_asked_for_on_the_command_line(tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = ["plan", *TARGET, "--cluster", "local-cpu:3", "--num-stages", "2",
             "--num-microbatches", "4", "--stage-ranks", "1,2", "--stage-boundaries", "layers.1",
             "--out", str(out)]  # fmt: skip
    assert main(words) == 0
    assert "2 stages" in capsys.readouterr().out
    plan = sw.load_plan(out)
    assert [list(stage.ranks) for stage in plan.stages] == [[0], [1, 2]]
    assert main([*words[:5], "--num-stages", "2", "--stage-meshes", "1,2x"]) == 2
    assert "[E536]" in capsys.readouterr().err
    searched = ["--cluster", "local-cpu:4", "--num-stages", "auto", "--num-microbatches", "2"]
    assert main(["plan", *TARGET, *searched]) == 0
    assert "lower bound" in capsys.readouterr().out
    assert main([*words[:5], "--num-stages", "2", "--stage-ranks", "1;2"]) == 2
    assert "[E536]" in capsys.readouterr().err
    plan.stages[0].plan.save(tmp_path / "single.json")
    assert main(["show", str(tmp_path / "single.json"), "--trace", str(tmp_path / "t.json")]) == 2
    assert "[E538]" in capsys.readouterr().err
