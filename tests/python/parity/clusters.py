"""Clusters on which dividing work pays even for tiny models, so that plans are not trivial."""

import dataclasses

from shardwright import Cluster


def slow_compute(num_devices: int) -> Cluster:
    """Arithmetic is slow, communication fast: everything that can be divided is."""
    local = Cluster.local_cpu(num_devices)
    link = dataclasses.replace(local.intra_host, bandwidth_bytes_per_us=1e4, latency_us=0.01)
    return dataclasses.replace(
        local,
        peak_flops_per_us={"float64": 1.0, "float32": 1.0},
        memory_bandwidth_bytes_per_us=10.0,
        kernel_overhead_us=0.0,
        intra_host=link,
        inter_host=link,
    )
