"""Clusters: presets, JSON files, one-word names, and what is refused."""

import json
import math
import pickle
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.cluster import AxisCost, CollectiveConstants, Link
from shardwright.cluster_presets import machine_memory_bytes


@pytest.mark.parametrize("name", sw.Cluster.presets())
def test_presets_survive_json_and_pickle(name: str, tmp_path: Path) -> None:
    cluster = sw.Cluster.preset(name, nodes=2)
    path = tmp_path / "cluster.json"
    cluster.save(path)
    assert sw.Cluster.load(path) == cluster
    assert sw.Cluster.parse(str(path)) == cluster
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert hash(sw.Cluster.load(path)) == hash(cluster)


def test_v100_host_has_the_vendors_figures() -> None:
    cluster = sw.Cluster.preset("p3.16xlarge", nodes=8)
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.num_devices) == (8, 8, 64)
    assert cluster.memory_bytes == 16 * 2**30
    assert cluster.peak_flops_per_us["float16"] == 125e6  # 125 TFLOP/s
    assert cluster.peak_flops_per_us["float32"] == 15.7e6
    assert cluster.memory_bandwidth_bytes_per_us == 900e3  # 900 GB/s
    assert cluster.inter_host.bandwidth_bytes_per_us == 3.125e3  # 25 Gb/s
    assert "bfloat16" not in cluster.peak_flops_per_us


def test_one_word_names() -> None:
    assert sw.Cluster.parse("p3.16xlarge:8") == sw.Cluster.preset("p3.16xlarge", nodes=8)
    assert sw.Cluster.parse("h100") == sw.Cluster.preset("h100", nodes=1)
    assert sw.Cluster.parse("local-cpu:4").num_devices == 4


def test_part_of_a_host() -> None:
    cluster = sw.Cluster.preset("p3.16xlarge", devices_per_host=4)
    assert cluster.num_devices == 4
    with pytest.raises(sw.ClusterError, match="E354"):
        sw.Cluster.preset("p3.16xlarge", devices_per_host=16)


def test_local_cpu_costs_what_gloo_was_measured_at() -> None:
    # 2 processes: 1 KiB 1.4 ms, 16 MiB 12 ms; 4 processes: 6.4 ms and 28 ms.
    for num_processes, small_ms, large_ms in ((2, 1.4, 12.0), (4, 6.4, 28.0)):
        mesh = sw.Cluster.local_cpu(num_processes).mesh((num_processes,))
        cost_ms = [
            sw._core.collective_cost_us("all_reduce", mesh, 0, b) / 1e3 for b in (2**10, 2**24)
        ]
        assert cost_ms == pytest.approx([small_ms, large_ms], rel=0.01)
        # Gloo's reduce-scatter moves the bytes of an all-reduce.
        scatter = sw._core.collective_cost_us("reduce_scatter", mesh, 0, 2**24)
        assert scatter / 1e3 == pytest.approx(large_ms, rel=0.01)


def test_local_cpu_divides_the_memory() -> None:
    total = machine_memory_bytes()
    assert sw.Cluster.local_cpu(4).memory_bytes == total // 4


def test_memory_of_a_container_is_its_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert machine_memory_bytes(limit) == 2**20
    limit.write_text("max\n")
    assert machine_memory_bytes(limit) == machine_memory_bytes(tmp_path / "absent")


def test_abstract_cluster_gives_alpha_and_beta() -> None:
    cluster = sw.Cluster.abstract(
        (4, 8), alpha_us=(1, 1), beta_us_per_byte=(1, 0.01), constants=CollectiveConstants.alpa()
    )
    mesh = cluster.mesh((4, 8))
    weight = 128 * 128 * 4 // 8
    activation = 1024 * 128 * 4 // 4
    # Published for the 2-layer MLP: 2 * AR(W / n1, n0) + AR(act / n0, n1) = 26,872.03, the ring's
    # 2,293.76 us cut to 2,293.
    cost = 2 * sw._core.collective_cost_us("all_reduce", mesh, 0, weight)
    cost += sw._core.collective_cost_us("all_reduce", mesh, 1, activation)
    assert cost == pytest.approx(26872.03 + 0.76, abs=0.006)
    assert cluster.memory_bytes == 0
    assert sw.Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


def test_reaches_the_planner_unchanged() -> None:
    cluster = sw.Cluster.preset("a100-80gb", nodes=2)
    core = cluster.to_core()
    assert core.peak_flops_per_us == dict(cluster.peak_flops_per_us)
    assert core.inter_host.latency_us == cluster.inter_host.latency_us
    assert core.constants.reduce_scatter_penalty == 1.0
    assert core.memory_bytes == cluster.memory_bytes


def error_code(data: object, path: Path) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(sw.ClusterError) as caught:
        sw.Cluster.load(path)
    assert "try:" in str(caught.value)
    return caught.value.code


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    good = sw.Cluster.preset("h100", nodes=2).to_dict()
    sw.Cluster.from_dict(good)
    assert error_code("{", path) == "E353"
    assert error_code("[" * 100_000, path) == "E353"
    changes: list[dict[str, object]] = [
        {"version": 2},
        {"version": True},
        {"version": None},
        {"speed": 1},
        {"num_hosts": 0},
        {"num_hosts": 1.5},
        {"num_hosts": True},
        {"num_hosts": 10**9},
        {"memory_bytes": -1},
        {"memory_bytes": "16GiB"},
        {"memory_bandwidth_bytes_per_us": math.nan},
        {"memory_bandwidth_bytes_per_us": 0},
        {"compute_efficiency": math.inf},
        {"kernel_overhead_us": -1},
        {"kernel_overhead_us": True},
        {"peak_flops_per_us": {"float16": 1.0}},
        {"peak_flops_per_us": {"float32": 0}},
        {"peak_flops_per_us": {"float32": 1, "float8": 2}},
        {"peak_flops_per_us": [1]},
        {"peak_flops_per_us": None},
        {"intra_host": {"bandwidth_bytes_per_us": math.nan}},
        {"intra_host": {"bandwidth_bytes_per_us": 0}},
        {"intra_host": {"bandwidth_bytes_per_us": "fast"}},
        {"intra_host": {}},
        {"inter_host": 3},
        {"device_type": "tpu"},
        {"name": 3},
        {"constants": {"forbidden": ["teleport"]}},
        {"constants": {"forbidden": [["all_gather"]]}},
        {"constants": {"forbidden": "all_gather"}},
        {"constants": {"reduce_in_fp32": 1}},
        {"constants": {"all_gather_us": True}},
        {"constants": {"all_gather_us": -1}},
        {"abstract_axes": [{"alpha_us": 1}]},
        {"abstract_axes": {"alpha_us": 1}},
        {"abstract_axes": [{"alpha_us": 1, "beta_us_per_byte": None}]},
    ]
    for change in changes:
        assert error_code({**good, **change}, path) == "E354", change
    for key in ("version", "name", "num_hosts", "intra_host", "memory_bytes"):
        assert error_code({k: v for k, v in good.items() if k != key}, path) == "E354", key
    assert error_code([], path) == "E354"
    assert error_code("null", path) == "E354"


def test_bad_names_are_refused(tmp_path: Path) -> None:
    for text, code in {
        "p3.17xlarge": "E352",
        "": "E352",
        "p3.16xlarge:": "E356",
        "p3.16xlarge:0": "E356",
        "p3.16xlarge:-1": "E356",
        "p3.16xlarge:two": "E356",
        "p3.16xlarge:10000000": "E354",
        str(tmp_path / "absent.json"): "E353",
    }.items():
        with pytest.raises(sw.ClusterError) as caught:
            sw.Cluster.parse(text)
        assert caught.value.code == code, text
    with pytest.raises(sw.ClusterError) as caught:
        sw.Cluster.local_cpu(0)
    assert caught.value.code == "E354"


def test_wrong_meshes_are_refused() -> None:
    cluster = sw.Cluster.preset("p3.16xlarge", nodes=2)
    for shape, code in (((8,), "E351"), ((), "E355"), ((0, 16), "E355"), ((2,) * 5, "E355")):
        with pytest.raises(sw.ClusterError) as caught:
            cluster.mesh(shape)
        assert caught.value.code == code, shape
    abstract = sw.Cluster.abstract((2,), alpha_us=(1,), beta_us_per_byte=(1,))
    with pytest.raises(sw.ClusterError, match="E355"):
        abstract.mesh((2, 2))
    with pytest.raises(sw.ClusterError, match="E354"):
        sw.Cluster.abstract((2, 2), alpha_us=(1,), beta_us_per_byte=(1, 1))
    with pytest.raises(sw.ClusterError, match="E354"):
        sw.Cluster.abstract((2,), alpha_us=(math.nan,), beta_us_per_byte=(1,))


def test_parts_are_values() -> None:
    assert Link(1.0) == Link(1.0, 0.0, 0.0)
    assert AxisCost(1, 2).all_to_all_scale == 1.0
    assert str(sw.Cluster.preset("h200")) == "h200: 1 x 8 devices, 139.0 GiB each"
