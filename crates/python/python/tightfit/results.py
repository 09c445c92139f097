"""Results of the optimizers. Fields match the command's JSON: times in µs, workspace in bytes, ``None`` for null."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class MicroBatch:
    """One library call of a configuration."""

    micro_batch: int
    algorithm: str
    time_us: float
    workspace_bytes: int

    def __repr__(self) -> str:
        return f"<{self.micro_batch} {self.algorithm}, {_time(self.time_us)}, {_size(self.workspace_bytes)}>"


class Configuration(tuple[MicroBatch, ...]):
    """The micro-batches of a kernel in the order in which they run, as a tuple that prints as the command does.

    >>> part = MicroBatch(8, "winograd", 10.0, 0)
    >>> print(Configuration([part, part]))
    2 x 8 winograd
    """

    def __str__(self) -> str:
        runs = [(len(list(group)), size, name) for (size, name), group in groupby(self, _size_and_algorithm)]
        return " + ".join(f"{size} {name}" if count == 1 else f"{count} x {size} {name}" for count, size, name in runs)

    def __repr__(self) -> str:
        return f"<{self}>"


def _size_and_algorithm(part: MicroBatch) -> tuple[int, str]:
    return part.micro_batch, part.algorithm


def _time(time_us: float | None) -> str:
    if time_us is None:
        return "nothing fits"
    return f"{time_us / 1000:.2f} ms" if time_us >= 1000 else f"{time_us:.1f} µs"


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


class _Table:
    """What results have in common: a frame of their rows, and a table in a notebook."""

    def _rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def frame(self) -> DataFrame:
        """The rows as a pandas frame: times in µs, workspace in bytes.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        from pandas import DataFrame

        return DataFrame(self._rows())

    def _repr_html_(self) -> str:
        rows = self._rows()
        columns = list(rows[0]) if rows else []
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>" for row in rows
        )
        return f"<p>{escape(repr(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Undivided:
    """The fastest call on the whole mini-batch within the limit."""

    algorithm: str
    time_us: float
    workspace_bytes: int


@dataclass(frozen=True)
class Kernel:
    """One operation of one layer, and the configuration chosen for it; ``print(kernel.configuration)`` shows its division.

    ``undivided`` is ``None`` if nothing fits undivided. ``time_us`` is the sum over the micro-batches, and
    ``workspace_bytes`` is their maximum.
    """

    layer: str
    operation: str
    problem: str
    undivided: Undivided | None
    configuration: Configuration
    time_us: float
    workspace_bytes: int

    def __repr__(self) -> str:
        place = f"{_time(self.time_us)}, {_size(self.workspace_bytes)}"
        return f"<Kernel {self.layer} {self.operation}: {self.configuration}, {place}>"


@dataclass(frozen=True, repr=False)
class Optimized(_Table):
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
    divide: str
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

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": kernel.layer,
                "operation": kernel.operation,
                "configuration": str(kernel.configuration),
                "time_us": kernel.time_us,
                "workspace_bytes": kernel.workspace_bytes,
                "undivided_time_us": kernel.undivided and kernel.undivided.time_us,
            }
            for kernel in self.kernels
        ]

    def __repr__(self) -> str:
        divided = sum(len(kernel.configuration) > 1 for kernel in self.kernels)
        gain = "" if self.speedup is None else f", {self.speedup:.2f}x as fast as undivided"
        return (
            f"<Optimized {self.network}, mini-batch {self.batch}, {self.types}, on {self.device}: {_time(self.time_us)}"
            f"{gain} ({divided} of {len(self.kernels)} kernels divided)>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return _plain(self)


@dataclass(frozen=True)
class Point:
    """One configuration on a front."""

    time_us: float
    workspace_bytes: int
    configuration: Configuration

    def __repr__(self) -> str:
        return f"<{_size(self.workspace_bytes)}: {_time(self.time_us)}, {self.configuration}>"


@dataclass(frozen=True, repr=False)
class Front(_Table):
    """The configurations of one kernel that no other one beats in both time and workspace, by rising workspace."""

    layer: str
    operation: str
    points: tuple[Point, ...]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "workspace_bytes": point.workspace_bytes,
                "time_us": point.time_us,
                "configuration": str(point.configuration),
            }
            for point in self.points
        ]

    def __repr__(self) -> str:
        ends = [self.points[0], self.points[-1]] if self.points else []
        limits = " to ".join(f"{_time(point.time_us)} in {_size(point.workspace_bytes)}" for point in ends)
        return f"<Front of {self.layer} {self.operation}: {len(self.points)} points, {limits}>"


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


@dataclass(frozen=True, repr=False)
class MixedSplit(_Table):
    """An uneven mini-batch for mixed devices; its step takes as long as its slowest device."""

    network: str
    batch: int
    time_us: float
    even_time_us: float | None
    speedup_over_even: float | None
    alone_time_us: float | None
    speedup_over_alone: float | None
    devices: tuple[DeviceShare, ...]

    def _rows(self) -> list[dict[str, Any]]:
        return [_plain(device) for device in self.devices]

    def __repr__(self) -> str:
        shares = ", ".join(f"{device.name} {device.batch}" for device in self.devices)
        return f"<MixedSplit of {self.network}, mini-batch {self.batch}: {shares}; {_time(self.time_us)} per step>"

    @property
    def batches(self) -> list[int]:
        """Samples of each device, in the order given."""
        return [device.batch for device in self.devices]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return _plain(self)


def _plain(result: Any) -> dict[str, Any]:
    plain: dict[str, Any] = _lists(asdict(result))
    return plain


def _lists(value: Any) -> Any:
    """The value with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _micro_batches(parts: Iterable[dict[str, Any]]) -> Configuration:
    return Configuration(MicroBatch(**part) for part in parts)


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
