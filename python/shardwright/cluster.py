"""The machines a plan is made for: hosts, devices, links, memory.

A `Cluster` is a plain value. It comes from a preset, from a JSON file, or from figures of your own;
no device need be at hand. The units are in the names; 1 GB/s is 1000 bytes per microsecond.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright import _core
from shardwright.errors import ClusterError

_VERSION = 1
_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8")
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "mask", "reduce_scatter", "slice")


@dataclass(frozen=True)
class Link:
    """One kind of link as one device sees it (between hosts: as one host sees it).

    Attributes:
        bandwidth_bytes_per_us: What a ring of collectives reaches per direction.
        latency_us: Start-up of a collective of two ranks.
        hop_latency_us: Added for each rank beyond two.
    """

    bandwidth_bytes_per_us: float
    latency_us: float = 0.0
    hop_latency_us: float = 0.0


@dataclass(frozen=True)
class AxisCost:
    """Alpha and beta of one mesh axis of an abstract cluster (Alpa, section 4.2).

    Attributes:
        alpha_us: Cost of starting a collective.
        beta_us_per_byte: Cost per byte that the ring formula counts.
        all_to_all_scale: Multiplies beta for all-to-all only.
    """

    alpha_us: float
    beta_us_per_byte: float
    all_to_all_scale: float = 1.0


@dataclass(frozen=True)
class CollectiveConstants:
    """What kinds of collectives cost beyond the ring formula, and which may be used.

    Attributes:
        all_gather_us: Added per all-gather; likewise the next three.
        all_reduce_us: Added per all-reduce.
        reduce_scatter_us: Added per reduce-scatter.
        all_to_all_us: Added per all-to-all.
        all_to_all_penalty: Multiplies the all-to-all's byte term; 0 means n / 2 for n ranks.
        reduce_scatter_penalty: Multiplies the reduce-scatter's byte term.
        forbidden: Kinds of steps that no conversion may use, such as ``"all_gather"``.
        reduce_in_fp32: Sums of float16 and bfloat16 tensors travel and add as float32.
    """

    all_gather_us: float = 0.0
    all_reduce_us: float = 0.0
    reduce_scatter_us: float = 0.0
    all_to_all_us: float = 0.0
    all_to_all_penalty: float = 1.0
    reduce_scatter_penalty: float = 1.0
    forbidden: tuple[str, ...] = ()
    reduce_in_fp32: bool = False

    @classmethod
    def alpa(cls, *, forbidden: Sequence[str] = ()) -> CollectiveConstants:
        """Alpa's tie-breaking constants and its penalty on all-to-all.

        Source: Alpa's cost model, see docs/concepts/cost.md.
        """
        return cls(0.1, 0.01, 0.001, 0.001, 0.0, 1.0, tuple(forbidden))


@dataclass(frozen=True)
class Cluster:
    """A homogeneous cluster of hosts with devices.

    Attributes:
        name: Shown in plans.
        num_hosts: Hosts.
        devices_per_host: Devices of one host.
        peak_flops_per_us: Peak FLOP per microsecond by dtype name; a dtype that is absent counts as
            float32. Empty: compute costs nothing (abstract clusters).
        memory_bandwidth_bytes_per_us: Of one device.
        memory_bytes: Of one device; 0 means no limit.
        intra_host: Link between devices of one host.
        inter_host: Link between hosts, shared by the devices of a host.
        kernel_overhead_us: Fixed cost of one op.
        compute_efficiency: Share of the peak that large products reach.
        device_type: ``"cuda"`` or ``"cpu"``.
        constants: What kinds of collectives cost beyond the ring formula.
        abstract_axes: Constants per mesh axis; given, the links are not read.
    """

    name: str
    num_hosts: int
    devices_per_host: int
    peak_flops_per_us: Mapping[str, float]
    memory_bandwidth_bytes_per_us: float
    memory_bytes: int
    intra_host: Link
    inter_host: Link
    kernel_overhead_us: float = 0.0
    compute_efficiency: float = 1.0
    device_type: str = "cuda"
    constants: CollectiveConstants = field(default_factory=CollectiveConstants)
    abstract_axes: tuple[AxisCost, ...] = ()

    def __post_init__(self) -> None:
        frozen = types.MappingProxyType(dict(sorted(self.peak_flops_per_us.items())))
        object.__setattr__(self, "peak_flops_per_us", frozen)
        _check(self)

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Cluster.from_dict, (self.to_dict(),))

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else "no memory limit"
        return f"{self.name}: {self.num_hosts} x {self.devices_per_host} devices, {memory} each"

    @property
    def num_devices(self) -> int:
        """Devices of the whole cluster."""
        return self.num_hosts * self.devices_per_host

    def part(self, num_devices: int) -> Cluster:
        """As many devices of these machines as one pipeline stage has.

        Whole hosts where that comes out even, else one host, or the most devices of each of several
        hosts that divide both.
        """
        fits = num_devices <= self.devices_per_host
        per_host = num_devices if fits else math.gcd(num_devices, self.devices_per_host)
        return dataclasses.replace(
            self, num_hosts=num_devices // per_host, devices_per_host=per_host
        )

    @classmethod
    def preset(cls, name: str, *, nodes: int = 1, devices_per_host: int | None = None) -> Cluster:
        """A well-known kind of host, so many of them.

        Args:
            name: One of `Cluster.presets()`, such as ``"p3.16xlarge"``.
            nodes: Number of hosts. For ``"local-cpu"``: number of processes on this machine.
            devices_per_host: Use only so many devices of each host.

        Raises:
            ClusterError: E352 for a name that is not a preset, E354 for counts below 1 or more
                devices than a host has.
        """
        from shardwright.cluster_presets import host_preset

        if name == "local-cpu":
            return cls.local_cpu(nodes)
        host = host_preset(name)
        count = host.devices_per_host if devices_per_host is None else devices_per_host
        if count > host.devices_per_host:
            raise ClusterError(
                f"a {name} host has {host.devices_per_host} devices.",
                code="E354",
                values=[f"devices_per_host: {count}"],
                advice=f"devices_per_host={host.devices_per_host} and more nodes",
            )
        return dataclasses.replace(host, num_hosts=nodes, devices_per_host=count)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Names that `preset` takes, sorted."""
        from shardwright.cluster_presets import preset_names

        return preset_names()

    @classmethod
    def local_cpu(cls, num_processes: int) -> Cluster:
        """Processes of this machine joined by Gloo, each with an equal part of its memory.

        Raises:
            ClusterError: E354 for less than one process.
        """
        from shardwright.cluster_presets import local_cpu

        return local_cpu(num_processes)

    @classmethod
    def abstract(
        cls,
        mesh_shape: Sequence[int],
        *,
        alpha_us: Sequence[float],
        beta_us_per_byte: Sequence[float],
        constants: CollectiveConstants | None = None,
        memory_bytes: int = 0,
    ) -> Cluster:
        """A cluster that is nothing but alpha and beta per mesh axis; compute is free.

        Meshes of any sizes with at most as many axes can be made on it.

        Raises:
            ClusterError: E354 when the three lists differ in length, or for figures that cannot be.
        """
        if not len(mesh_shape) == len(alpha_us) == len(beta_us_per_byte):
            raise _malformed(
                "each mesh axis needs one alpha and one beta.",
                f"mesh_shape: {tuple(mesh_shape)}, alpha_us: {tuple(alpha_us)}, "
                f"beta_us_per_byte: {tuple(beta_us_per_byte)}",
            )
        return cls(
            name="abstract",
            num_hosts=1,
            devices_per_host=math.prod(mesh_shape),
            peak_flops_per_us={},
            memory_bandwidth_bytes_per_us=1.0,
            memory_bytes=memory_bytes,
            intra_host=Link(1.0),
            inter_host=Link(1.0),
            constants=constants or CollectiveConstants(),
            abstract_axes=tuple(
                AxisCost(float(a), float(b))
                for a, b in zip(alpha_us, beta_us_per_byte, strict=True)
            ),
        )

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """A cluster from one word: ``"p3.16xlarge:8"``, ``"local-cpu:4"`` or ``"my.json"``.

        Raises:
            ClusterError: E352 for an unknown preset, E353 for a file that cannot be read, E354 for
                one that does not describe a cluster, E356 for a count that is no number.
        """
        if text.endswith(".json"):
            return cls.load(text)
        name, colon, count = text.partition(":")
        if colon and not (count.isascii() and count.isdigit() and int(count) >= 1):
            raise ClusterError(
                "a cluster is a preset with a number of hosts, or a JSON file.",
                code="E356",
                values=[f"cluster: {text!r}"],
                advice="a cluster such as p3.16xlarge:8 or my_cluster.json",
            )
        return cls.preset(name, nodes=int(count) if colon else 1)

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """A cluster from a JSON file that `save` wrote, or written by hand.

        Raises:
            ClusterError: E353 when the file cannot be read or is no JSON, E354 when it does not
                describe a cluster.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise ClusterError(
                "a cluster file cannot be read.",
                code="E353",
                values=[f"file: {path}", str(error)],
                advice="a JSON file as Cluster.save writes it",
            ) from error
        return cls.from_dict(data)

    def save(self, path: str | Path) -> None:
        """Writes the cluster as JSON."""
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """The cluster as JSON holds it: the attributes by name, and ``"version"``."""
        constants = _fields_of(self.constants)
        constants["forbidden"] = list(self.constants.forbidden)
        data = _fields_of(self)
        data["peak_flops_per_us"] = dict(self.peak_flops_per_us)
        data["intra_host"] = _fields_of(self.intra_host)
        data["inter_host"] = _fields_of(self.inter_host)
        data["constants"] = constants
        data["abstract_axes"] = [_fields_of(axis) for axis in self.abstract_axes]
        return {"version": _VERSION, **data}

    @classmethod
    def from_dict(cls, data: object) -> Cluster:
        """The inverse of `to_dict`; attributes with a default may be left out.

        Raises:
            ClusterError: E354 naming the attribute that is missing, unknown or of the wrong type.
        """
        values = _object(data, "cluster")
        version = values.pop("version", None)
        if version != _VERSION or isinstance(version, bool):
            raise _malformed("the version is not one this release reads.", f"version: {version!r}")
        for name in ("intra_host", "inter_host"):
            if name in values:
                values[name] = _build(Link, values[name], name)
        if "constants" in values:
            constants = _object(values["constants"], "constants")
            constants["forbidden"] = tuple(_list(constants.get("forbidden", []), "forbidden"))
            values["constants"] = _build(CollectiveConstants, constants, "constants")
        values["abstract_axes"] = tuple(
            _build(AxisCost, axis, "abstract_axes")
            for axis in _list(values.get("abstract_axes", []), "abstract_axes")
        )
        if "peak_flops_per_us" in values:
            _object(values["peak_flops_per_us"], "peak_flops_per_us")
        cluster: Cluster = _build(cls, values, "cluster")
        return cluster

    def to_core(self) -> _core.Cluster:
        """The same as the planner's own type."""
        core = _core.Cluster()
        for name, value in _fields_of(self).items():
            if name == "peak_flops_per_us":
                core.peak_flops_per_us = dict(self.peak_flops_per_us)
            elif isinstance(value, Link):
                setattr(core, name, _core.Link(**_fields_of(value)))
            elif name == "constants":
                core.constants = _core.CollectiveConstants(
                    **{**_fields_of(value), "forbidden": set(value.forbidden)}
                )
            elif name == "abstract_axes":
                core.abstract_axes = [_core.AxisCost(**_fields_of(axis)) for axis in value]
            else:
                setattr(core, name, value)
        return core

    def mesh(self, shape: Sequence[int]) -> _core.DeviceMesh:
        """A logical mesh over all devices, row major in host order.

        Raises:
            ClusterError: E351 when `shape` does not cover the cluster, E355 when it is no shape.
        """
        return _core.DeviceMesh(list(shape), self.to_core())


def _fields_of(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _malformed(summary: str, *values: str) -> ClusterError:
    return ClusterError(
        summary,
        code="E354",
        values=values,
        advice="the attributes of shardwright.Cluster; Cluster.save writes a file to start from",
    )


def _object(data: object, name: str) -> dict[str, Any]:
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise _malformed(f"{name} is no object.", f"{name}: {type(data).__name__}")
    return dict(data)


def _list(data: object, name: str) -> list[Any]:
    if not isinstance(data, list | tuple):
        raise _malformed(f"{name} is no list.", f"{name}: {type(data).__name__}")
    return list(data)


def _build(kind: Any, data: object, name: str) -> Any:
    values = _object(data, name)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(values.keys() - fields.keys())
    required = {
        key
        for key, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - values.keys())
    if unknown or missing:
        raise _malformed(
            f"{name} has not the attributes it must have.",
            *(f"unknown: {key}" for key in unknown),
            *(f"missing: {key}" for key in missing),
        )
    result = kind(**values)
    if not isinstance(result, Cluster):
        _check_numbers(result, name)
    return result


_INTEGERS = {"num_hosts": 1, "devices_per_host": 1, "memory_bytes": 0}
_POSITIVE = ("bandwidth_bytes_per_us", "memory_bandwidth_bytes_per_us", "compute_efficiency")
_MAX_DEVICES = 2**20
_MAX_BYTES = 2**62


def _check_number(name: str, value: object, *, positive: bool) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (positive and value == 0):  # type: ignore[arg-type,operator]
        wanted = "more than 0" if positive else "0 or more"
        raise _malformed(f"{name} must be a number, {wanted}.", f"{name}: {value!r}")


def _check_numbers(value: Any, where: str) -> None:
    for name, number in _fields_of(value).items():
        if name in _INTEGERS:
            _check_integer(name, number)
        elif isinstance(number, bool) != (name == "reduce_in_fp32"):
            raise _malformed(f"{where}.{name} is of the wrong type.", f"{name}: {number!r}")
        elif name == "forbidden":
            unknown = [kind for kind in number if kind not in _COLLECTIVES]
            if unknown:
                raise _malformed(
                    "forbidden names steps that do not exist.",
                    f"unknown: {unknown}",
                    f"known: {', '.join(_COLLECTIVES)}",
                )
        elif name != "reduce_in_fp32":
            _check_number(f"{where}.{name}", number, positive=name in _POSITIVE)


def _check_integer(name: str, value: object) -> None:
    least = _INTEGERS[name]
    most = _MAX_BYTES if name == "memory_bytes" else _MAX_DEVICES
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _malformed(
            f"{name} must be a whole number from {least} to {most}.", f"{name}: {value!r}"
        )


def _check(cluster: Cluster) -> None:
    for name in _INTEGERS:
        _check_integer(name, getattr(cluster, name))
    _check_number("kernel_overhead_us", cluster.kernel_overhead_us, positive=False)
    for name in ("memory_bandwidth_bytes_per_us", "compute_efficiency"):
        _check_number(name, getattr(cluster, name), positive=True)
    for dtype, peak in cluster.peak_flops_per_us.items():
        if dtype not in _DTYPES:
            raise _malformed("peak_flops_per_us names no dtype.", f"dtype: {dtype!r}")
        _check_number(f"peak_flops_per_us.{dtype}", peak, positive=True)
    if cluster.peak_flops_per_us and "float32" not in cluster.peak_flops_per_us:
        raise _malformed("peak_flops_per_us has no float32, which stands in for other dtypes.")
    if not isinstance(cluster.name, str):
        raise _malformed("name must be a text.", f"name: {cluster.name!r}")
    if cluster.device_type not in ("cuda", "cpu"):
        raise _malformed(
            "device_type must be cuda or cpu.", f"device_type: {cluster.device_type!r}"
        )
    for name, kind in (("intra_host", Link), ("inter_host", Link)):
        if not isinstance(getattr(cluster, name), kind):
            raise _malformed(f"{name} must be a Link.", f"{name}: {getattr(cluster, name)!r}")
        _check_numbers(getattr(cluster, name), name)
    if not isinstance(cluster.constants, CollectiveConstants):
        raise _malformed("constants must be CollectiveConstants.")
    _check_numbers(cluster.constants, "constants")
    for axis in cluster.abstract_axes:
        _check_numbers(axis, "abstract_axes")
