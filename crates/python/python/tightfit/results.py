"""Results of the optimizers. Fields match the command's JSON: times in µs, workspace in bytes, ``None`` for null."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class MicroBatch:
    """One library call of a configuration."""

    micro_batch: int
    algorithm: str
    time_us: float
    workspace_bytes: int


@dataclass(frozen=True)
class Undivided:
    """The fastest call on the whole mini-batch within the limit."""

    algorithm: str
    time_us: float
    workspace_bytes: int


@dataclass(frozen=True)
class Kernel:
    """One operation of one layer, and the configuration chosen for it.

    ``undivided`` is ``None`` if nothing fits undivided. ``time_us`` is the sum over the micro-batches, and
    ``workspace_bytes`` is their maximum.
    """

    layer: str
    operation: str
    problem: str
    undivided: Undivided | None
    configuration: tuple[MicroBatch, ...]
    time_us: float
    workspace_bytes: int


@dataclass(frozen=True)
class Optimized:
    """A network whose kernels were optimized under one limit.

    One of ``workspace_limit_bytes``, ``total_workspace_bytes`` and ``one_workspace_bytes`` is the limit, and the others are
    ``None``; without a limit, all three are. ``gap`` is (found - bound) / bound: 0 if the time is proven optimal. Under a
    total, ``needs`` says how much workspace WR and one shared workspace would need to be as fast.
    """

    network: str
    batch: int | None
    backend: str
    device: str
    library: str
    threads: int
    types: str
    layout: str
    policy: str
    least_workspace_bytes: int | None
    workspace_bytes: int
    undivided_time_us: float | None
    time_us: float
    speedup: float | None
    gap: float
    profiling: dict[str, float]
    kernels: tuple[Kernel, ...]
    workspace_limit_bytes: int | None = None
    total_workspace_bytes: int | None = None
    one_workspace_bytes: int | None = None
    stop: str | None = None
    needs: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return _plain(self)


@dataclass(frozen=True)
class Point:
    """One configuration on a front."""

    time_us: float
    workspace_bytes: int
    configuration: tuple[MicroBatch, ...]


@dataclass(frozen=True)
class Front:
    """The configurations of one kernel that no other one beats in both time and workspace, by rising workspace."""

    layer: str
    operation: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class DeviceShare:
    """One device's share of a mini-batch.

    ``measured`` tells whether whole steps were measured on it; otherwise they are summed from convolutions. Times of the
    even split and of the device alone are ``None`` if those batches are not measured or not allowed.
    """

    name: str
    device: str
    measured: bool
    batch: int
    time_us: float
    even_batch: int
    even_time_us: float | None
    alone_time_us: float | None


@dataclass(frozen=True)
class MixedSplit:
    """An uneven mini-batch for mixed devices; its step takes as long as its slowest device."""

    network: str
    batch: int
    time_us: float
    even_time_us: float | None
    speedup_over_even: float | None
    alone_time_us: float | None
    speedup_over_alone: float | None
    devices: tuple[DeviceShare, ...]

    @property
    def batches(self) -> list[int]:
        """Samples of each device, in the order given."""
        return [device.batch for device in self.devices]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return _plain(self)


def _plain(result: Any) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(result)
    return plain


def _micro_batches(parts: list[dict[str, Any]]) -> tuple[MicroBatch, ...]:
    return tuple(MicroBatch(**part) for part in parts)


def read_optimized(text: str) -> Optimized:
    """Reads the JSON of ``tightfit optimize``."""
    document = json.loads(text)
    document["kernels"] = tuple(
        Kernel(
            **{
                **kernel,
                "undivided": kernel["undivided"] and Undivided(**kernel["undivided"]),
                "configuration": _micro_batches(kernel["configuration"]),
            }
        )
        for kernel in document["kernels"]
    )
    return Optimized(**document)


def read_fronts(text: str) -> list[Front]:
    """Reads the fronts of several kernels."""
    return [
        Front(
            front["layer"],
            front["operation"],
            tuple(Point(**{**point, "configuration": _micro_batches(point["configuration"])}) for point in front["points"]),
        )
        for front in json.loads(text)
    ]


def read_split(text: str) -> MixedSplit:
    """Reads the JSON of ``tightfit split``."""
    document = json.loads(text)
    document["devices"] = tuple(DeviceShare(**device) for device in document["devices"])
    return MixedSplit(**document)
