"""Plan files: what is saved comes back, and nothing else is taken for a plan."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.cluster import Cluster
from shardwright.errors import PlanError
from shardwright.plan import (
    Certificate,
    CollectiveCount,
    ConversionSharding,
    MemoryAtPeak,
    OpSharding,
    Plan,
    StagePlan,
    TensorSharding,
)


def small_plan() -> Plan:
    """x and w feed a product that leaves a pending sum; by hand, nothing is computed."""
    x = OpSharding(
        node="x", op="input", phase="forward", module_path="", source="",
        input_kind="batch", input_name="x", operands=(),
        outputs=(TensorSharding((8, 4), "float32", ("S0", "R"), "S0 R"),),
    )  # fmt: skip
    w = OpSharding(
        node="w", op="input", phase="forward", module_path="", source="",
        input_kind="parameter", input_name="layers.0.weight", operands=(),
        outputs=(TensorSharding((4, 4), "float32", ("R", "S0"), "S1 R"),),
    )  # fmt: skip
    y = OpSharding(
        node="mm", op="aten.mm.default", phase="forward", module_path="layers.0",
        source="train.py:7", input_kind="", input_name="",
        operands=(("S0", "S1"), ("R", "S0")),
        outputs=(TensorSharding((8, 4), "float32", ("S0", "P"), "S0 R P1"),),
    )  # fmt: skip
    return Plan(
        graph_hash="ab" * 32,
        cluster=Cluster.abstract((2, 2), alpha_us=(1, 1), beta_us_per_byte=(1, 1)),
        num_microbatches=1,
        stages=(
            StagePlan(
                mesh_shape=(2, 2),
                ranks=(0, 1, 2, 3),
                ops=(x, w, y),
                conversions=(
                    ConversionSharding("x", 0, 0, ("S0", "S1"), "S0 S1", from_first=False),
                    ConversionSharding("x", 0, 1, ("S0", "S1"), "S0 S1", from_first=True),
                ),
            ),
        ),
        certificate=Certificate(
            cost_us=65.0,
            compute_us=0.0,
            communication_us=65.0,
            forward_us=65.0,
            backward_us=0.0,
            update_us=0.0,
            lower_bound_us=65.0,
            gap=0.0,
            status="optimal",
            peak_memory_bytes=224,
            peak_node="mm",
            at_peak=MemoryAtPeak(32, 0, 0, 128, 64),
            collectives={"all_reduce": CollectiveCount(1, 64.0, 64.0, 65.0)},
        ),
    )


def test_saved_plan_loads_as_the_same_plan_and_the_same_bytes(tmp_path: Path) -> None:
    plan = small_plan()
    plan.save(tmp_path / "a.json")
    loaded = Plan.load(tmp_path / "a.json")
    assert loaded == plan
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_plan_is_immutable_and_survives_pickling_between_processes() -> None:
    plan = small_plan()
    with pytest.raises(AttributeError):
        plan.num_microbatches = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.certificate.collectives["all_gather"] = CollectiveCount(1, 1, 1, 1)  # type: ignore[index]
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_inputs_are_found_by_their_unsharded_names() -> None:
    inputs = small_plan().inputs
    assert list(inputs) == ["x", "layers.0.weight"]
    assert inputs["layers.0.weight"].text == "S1 R"


Change = Callable[[dict[str, Any]], object]


def _stage(data: dict[str, Any]) -> dict[str, Any]:
    return data["stages"][0]  # type: ignore[no-any-return]


def _set(path: str, value: object) -> Change:
    def change(data: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        place: Any = data
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value

    return change


CORRUPT: list[tuple[str, Change, str, str]] = [
    ("format of another tool", _set("format", "alpa.plan"), "E322", "alpa.plan"),
    ("version of the future", _set("version", 2), "E322", "2"),
    ("version true", _set("version", True), "E321", "/version"),
    ("unknown field", _set("colour", "red"), "E321", "/colour"),
    ("missing field", lambda d: d.pop("stages"), "E321", "stages"),
    ("hash that is none", _set("graph_hash", "xyz"), "E321", "/graph_hash"),
    ("negative cost", _set("certificate/cost_us", -1.0), "E321", "/certificate/cost_us"),
    ("cost as text", _set("certificate/cost_us", "65"), "E321", "/certificate/cost_us"),
    ("huge cost", _set("certificate/cost_us", 1e300), "E321", "/certificate/cost_us"),
    ("unknown status", _set("certificate/status", "best"), "E321", "/certificate/status"),
    ("no stages", _set("stages", []), "E321", "/stages"),
    ("five axes", _set("stages/0/mesh_shape", [1] * 5), "E321", "/stages/0/mesh_shape"),
    ("axis of size 0", _set("stages/0/mesh_shape/1", 0), "E321", "/stages/0/mesh_shape/1"),
    (
        "word that is no placement",
        _set("stages/0/ops/0/outputs/0/spec/0", "T0"),
        "E321",
        "/stages/0/ops/0/outputs/0/spec/0",
    ),
    ("fractional rank", _set("stages/0/ranks/0", 0.5), "E321", "/stages/0/ranks/0"),
    (
        "dtype that does not exist",
        _set("stages/0/ops/1/outputs/0/dtype", "float31"),
        "E321",
        "/stages/0/ops/1/outputs/0/dtype",
    ),
    ("cluster without hosts", _set("cluster/num_hosts", 0), "E321", "/cluster"),
    ("ranks and mesh differ", _set("stages/0/mesh_shape", [2, 3]), "E323", "ranks"),
    ("rank twice", _set("stages/0/ranks", [0, 1, 2, 2]), "E323", "twice"),
    ("node twice", _set("stages/0/ops/1/node", "x"), "E323", "x"),
    ("spec too short", _set("stages/0/ops/0/outputs/0/spec", ["S0"]), "E323", "axis"),
    (
        "two axes at one place of an atom",
        _set("stages/0/ops/0/outputs/0/spec", ["S0", "S0"]),
        "E323",
        "split an atom",
    ),
    ("parts and cost differ", _set("certificate/compute_us", 1.0), "E323", "sum of its parts"),
    ("bound above cost", _set("certificate/lower_bound_us", 66.0), "E323", "above the cost"),
    ("optimal with a gap", _set("certificate/gap", 0.5), "E323", "disagree"),
    ("peak and parts differ", _set("certificate/at_peak/other", 65), "E323", "sum of its parts"),
    ("kept spec differs", _set("stages/0/conversions/1/spec", ["R", "R"]), "E323", "kept"),
    ("conversion of nothing", _set("stages/0/conversions/0/output", 1), "E323", "not exist"),
    ("price left out", _set("certificate/collectives", {}), "E323", "collectives"),
]


@pytest.mark.parametrize(("change", "code", "text"), [c[1:] for c in CORRUPT],
                         ids=[c[0] for c in CORRUPT])  # fmt: skip
def test_corrupt_plan_is_refused_with_its_place(change: Change, code: str, text: str) -> None:
    data = copy.deepcopy(json.loads(json.dumps(small_plan().to_dict())))
    change(data)
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(data)
    assert caught.value.code == code
    assert text in str(caught.value)


FOREIGN = {
    "empty": b"",
    "no JSON": b"plan: yes",
    "a pickle": pickle.dumps({"format": "shardwright.plan"}),
    "a list": b"[1, 2]",
    "NaN": b'{"format": NaN}',
    "name twice": b'{"format": 1, "format": 2}',
    "deeply nested": b"[" * 100_000,
    "deeply nested and closed": b"[" * 40 + b"]" * 40,
    "number without end": b"1" * 10_000,
    "not UTF-8": b'"\xff\xfe"',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_file_that_is_no_plan_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert caught.value.code in {"E320", "E321"}


def test_file_beyond_16_mib_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b" " * (16 * 2**20 + 1))
    with pytest.raises(PlanError, match="16 MiB") as caught:
        Plan.load(path)
    assert caught.value.code == "E320"


def test_missing_file_is_a_plan_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.load(tmp_path / "nowhere.json")
    assert caught.value.code == "E320"


def test_pointer_escapes_slashes_of_unknown_names() -> None:
    data = small_plan().to_dict()
    data["certificate"]["a/b~c"] = 1
    with pytest.raises(PlanError, match="/certificate/a~1b~0c"):
        Plan.from_dict(data)
