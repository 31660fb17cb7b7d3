"""Figures of well-known hosts. Where each comes from: docs/concepts/cost.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shardwright.cluster import Cluster, CollectiveConstants, Link
from shardwright.errors import ClusterError

_GIB = 2**30


def _host(
    name: str,
    *,
    peak_tflops: Mapping[str, float],
    memory_gbytes_per_s: float,
    memory_gib: float,
    intra_gbytes_per_s: float,
    nic_gbit_per_s: float,
) -> Cluster:
    """One host of 8 GPUs; latencies are the same for all kinds, for want of figures."""
    return Cluster(
        name=name,
        num_hosts=1,
        devices_per_host=8,
        peak_flops_per_us={dtype: tflops * 1e6 for dtype, tflops in peak_tflops.items()},
        memory_bandwidth_bytes_per_us=memory_gbytes_per_s * 1e3,
        memory_bytes=int(memory_gib * _GIB),
        intra_host=Link(intra_gbytes_per_s * 1e3, latency_us=10.0, hop_latency_us=1.0),
        inter_host=Link(nic_gbit_per_s / 8 * 1e3, latency_us=25.0, hop_latency_us=5.0),
        kernel_overhead_us=4.0,
        compute_efficiency=0.6,
    )


_A100 = {"float64": 9.7, "float32": 19.5, "float16": 312.0, "bfloat16": 312.0}
_H100 = {"float64": 34.0, "float32": 67.0, "float16": 989.0, "bfloat16": 989.0}

_HOSTS = {
    host.name: host
    for host in (
        _host(
            "p3.16xlarge",
            peak_tflops={"float64": 7.8, "float32": 15.7, "float16": 125.0},
            memory_gbytes_per_s=900,
            memory_gib=16,
            intra_gbytes_per_s=100,
            nic_gbit_per_s=25,
        ),
        _host(
            "p4d.24xlarge",
            peak_tflops=_A100,
            memory_gbytes_per_s=1555,
            memory_gib=40,
            intra_gbytes_per_s=240,
            nic_gbit_per_s=400,
        ),
        _host(
            "a100-80gb",
            peak_tflops=_A100,
            memory_gbytes_per_s=2039,
            memory_gib=80,
            intra_gbytes_per_s=240,
            nic_gbit_per_s=1600,
        ),
        _host(
            "p5.48xlarge",
            peak_tflops=_H100,
            memory_gbytes_per_s=3350,
            memory_gib=80,
            intra_gbytes_per_s=360,
            nic_gbit_per_s=3200,
        ),
        _host(
            "h100",
            peak_tflops=_H100,
            memory_gbytes_per_s=3350,
            memory_gib=80,
            intra_gbytes_per_s=360,
            nic_gbit_per_s=3200,
        ),
        _host(
            "h200",
            peak_tflops=_H100,
            memory_gbytes_per_s=4800,
            memory_gib=139,
            intra_gbytes_per_s=360,
            nic_gbit_per_s=3200,
        ),
    )
}


def preset_names() -> tuple[str, ...]:
    """Names that `Cluster.preset` takes, sorted."""
    return tuple(sorted([*_HOSTS, "local-cpu"]))


def host_preset(name: str) -> Cluster:
    """One host of the kind.

    Raises:
        ClusterError: E352 for a name that is not a preset.
    """
    if name not in _HOSTS:
        raise ClusterError(
            f"there is no cluster preset called {name!r}.",
            code="E352",
            values=[f"presets: {', '.join(preset_names())}"],
            advice="one of these, or a JSON file that describes the cluster",
        )
    return _HOSTS[name]


# Gloo on this kind of machine, all-reduce of 1 KiB and of 16 MiB:
#   2 processes: 1.4 ms and 12 ms, so 2 * 1/2 * 16 MiB in 10.6 ms;
#   4 processes: 6.4 ms and 28 ms, so 2 * 3/4 * 16 MiB in 21.6 ms.
_GLOO_LATENCY_US = 1400.0
_GLOO_HOP_LATENCY_US = (6400.0 - 1400.0) / 2
_GLOO_BYTES_PER_US_OF_TWO = 2**24 / 10_600
_GLOO_BYTES_PER_US_OF_MORE = 1.5 * 2**24 / 21_600


def local_cpu(num_processes: int) -> Cluster:
    """Processes of this machine joined by Gloo, each with an equal part of its memory.

    Raises:
        ClusterError: E354 for less than one process.
    """
    bandwidth = _GLOO_BYTES_PER_US_OF_TWO if num_processes <= 2 else _GLOO_BYTES_PER_US_OF_MORE
    link = Link(bandwidth, _GLOO_LATENCY_US, _GLOO_HOP_LATENCY_US)
    return Cluster(
        name="local-cpu",
        num_hosts=1,
        devices_per_host=num_processes,
        peak_flops_per_us={"float64": 25e3, "float32": 50e3},
        memory_bandwidth_bytes_per_us=10e3,
        memory_bytes=machine_memory_bytes() // max(1, num_processes),
        intra_host=link,
        inter_host=link,
        kernel_overhead_us=5.0,
        device_type="cpu",
        constants=CollectiveConstants(reduce_scatter_penalty=2.0),
    )


def machine_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory of this machine, or of the container it is; 8 GiB where the system does not tell."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = -1
    if memory <= 0:
        memory = 8 * _GIB
    try:
        limit = int(cgroup.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return memory
    return min(memory, limit) if limit > 0 else memory
