"""Results of the optimizers. Fields match the command's JSON: times in µs, workspace in bytes, ``None`` for null."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from ._table import Table
from ._table import size as _size
from ._table import time as _time


# Slices along an axis, such as `2 x h16 fft + h8 fft`, in place of an algorithm.
_SLICES = re.compile(r"(\d+ x )?[dhw]\d+ ")


@dataclass(frozen=True)
class MicroBatch:
    """One library call of a configuration, or several where ``algorithm`` names slices: ``4 x d8 engine2``."""

    micro_batch: int
    algorithm: str
    time_us: float
    workspace_bytes: int

    @property
    def is_sliced(self) -> bool:
        """Whether its samples are computed in slices along a spatial axis."""
        return _SLICES.match(self.algorithm) is not None

    def __repr__(self) -> str:
        return f"<{self.micro_batch} {self.algorithm}, {_time(self.time_us)}, {_size(self.workspace_bytes)}>"


class Configuration(tuple[MicroBatch, ...]):
    """The micro-batches of a kernel in the order in which they run, as a tuple that prints as the command does.

    >>> part = MicroBatch(8, "winograd", 10.0, 0)
    >>> print(Configuration([part, part]))
    2 x 8 winograd
    >>> sliced = MicroBatch(1, "4 x h16 fft", 10.0, 0)
    >>> print(Configuration([sliced]), "and", Configuration([sliced, sliced]))
    4 x h16 fft and 2 x 1 (4 x h16 fft)
    """

    @property
    def is_divided(self) -> bool:
        """Whether the configuration has two or more calls: micro-batches or slices."""
        return len(self) > 1 or any(part.is_sliced for part in self)

    def __str__(self) -> str:
        def one(part: MicroBatch) -> str:
            if not part.is_sliced:
                return f"{part.micro_batch} {part.algorithm}"
            return part.algorithm if len(self) == 1 else f"{part.micro_batch} ({part.algorithm})"

        runs = [(one(part), len([part, *others])) for _, (part, *others) in groupby(self, _size_and_algorithm)]
        return " + ".join(text if count == 1 else f"{count} x {text}" for text, count in runs)

    def __repr__(self) -> str:
        return f"<{self}>"

    def _columns(self) -> dict[str, str]:
        """The columns of the command's CSV."""
        return {
            "division": "+".join(str(part.micro_batch) for part in self),
            "algorithms": "+".join(part.algorithm for part in self),
        }


def _size_and_algorithm(part: MicroBatch) -> tuple[int, str]:
    return part.micro_batch, part.algorithm


@dataclass(frozen=True)
class Undivided:
    """The fastest call on the whole mini-batch within the limit."""

    algorithm: str
    time_us: float
    workspace_bytes: int

    def __repr__(self) -> str:
        return f"<{self.algorithm}, {_time(self.time_us)}, {_size(self.workspace_bytes)}>"


@dataclass(frozen=True)
class Kernel:
    """One operation of one layer, and the configuration chosen for it; ``print(kernel.configuration)`` shows its division.

    ``undivided`` is ``None`` if nothing fits undivided (``undivided_missing`` is ``"over-limit"``) or nothing was measured
    undivided (``"not-measured"``). ``time_us`` is the sum over the micro-batches, and ``workspace_bytes`` is their maximum.
    """

    layer: str
    operation: str
    problem: str
    undivided: Undivided | None
    configuration: Configuration
    time_us: float
    workspace_bytes: int
    undivided_missing: str | None = None

    def __repr__(self) -> str:
        place = f"{_time(self.time_us)}, {_size(self.workspace_bytes)}"
        return f"<Kernel {self.layer} {self.operation}: {self.configuration}, {place}>"


@dataclass(frozen=True, repr=False)
class Optimized(Table):
    """A network whose kernels were optimized under one limit.

    One of ``workspace_limit_bytes``, ``total_workspace_bytes`` and ``one_workspace_bytes`` is the limit, and the others are
    ``None``; without a limit, all three are. ``gap`` is (found - bound) / bound: 0 if the time is proven optimal. Under a
    total, ``needs`` says with how much workspace WR and one shared workspace are at least as fast.
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
    _svg: str = field(default="", repr=False, compare=False)

    def _rows(self) -> list[dict[str, Any]]:
        """The columns of the command's CSV, and ``configuration``."""
        limits = {"kernel": self.workspace_limit_bytes, "total": self.total_workspace_bytes, "one": self.one_workspace_bytes}
        # Without a limit, none of them is set, and kernels are limited one by one.
        of = next((of for of, limit in limits.items() if limit is not None), "kernel")
        return [
            {
                "layer": kernel.layer,
                "operation": kernel.operation,
                "configuration": str(kernel.configuration),
                "limit_bytes": limits[of],
                **kernel.configuration._columns(),
                "time_us": kernel.time_us,
                "workspace_bytes": kernel.workspace_bytes,
                "undivided_time_us": kernel.undivided and kernel.undivided.time_us,
                "undivided_algorithm": kernel.undivided and kernel.undivided.algorithm,
                "undivided_workspace_bytes": kernel.undivided and kernel.undivided.workspace_bytes,
                "limit_of": of,
            }
            for kernel in self.kernels
        ]

    def _shown(self) -> list[dict[str, str]]:
        return [
            {
                "layer": kernel.layer,
                "operation": kernel.operation,
                "configuration": str(kernel.configuration),
                "time": _time(kernel.time_us),
                "workspace": _size(kernel.workspace_bytes),
                "undivided": _time(kernel.undivided.time_us if kernel.undivided else None),
            }
            for kernel in self.kernels
        ]

    def _picture(self) -> str:
        return self._svg

    def svg(self) -> str:
        """The picture that ``tightfit optimize --plot`` draws, as an SVG document.

        Shows the shares of a total, the front of a single kernel, or the memory and time of each layer.
        """
        return self._svg

    def __repr__(self) -> str:
        divided = sum(kernel.configuration.is_divided for kernel in self.kernels)
        gain = "" if self.speedup is None else f", {self.speedup:.2f}x as fast as undivided"
        return (
            f"<Optimized {self.network}, mini-batch {self.batch}, {self.types}, on {self.device}: {_time(self.time_us)}"
            f"{gain} ({divided} of {len(self.kernels)} kernels divided)>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return _plain(self)


@dataclass(frozen=True)
class Verification:
    """The result of running a kernel. Errors are the largest difference over the largest output.

    ``max_relative_error_undivided`` is against the undivided output; the other errors are against 64-bit arithmetic: of this
    configuration, of the undivided choice, and of the undivided algorithm of the same class. ``None`` is unknown.
    """

    max_relative_error_undivided: float | None
    max_relative_error_reference: float | None
    undivided_max_relative_error_reference: float | None
    class_max_relative_error_reference: float | None
    outputs_compared: int
    measured_time_us: float
    measured_single_time_us: float | None
    undivided_measured_time_us: float | None


@dataclass(frozen=True, repr=False)
class VerifiedKernel(Kernel):
    """A kernel with the result of running it."""

    verification: Verification = field(kw_only=True)


@dataclass(frozen=True)
class SideBySide:
    """Kernels that ran at the same time, as indices into ``kernels``, and how far their results are from those alone."""

    kernels: tuple[int, ...]
    streams: int
    measured_time_us: float
    alone_measured_time_us: float
    workspace_bytes: int
    max_relative_error_alone: float | None


@dataclass(frozen=True, repr=False)
class Verified(Optimized):
    """A network whose optimized kernels were run and compared; ``kernels`` are :class:`VerifiedKernel`.

    ``fault`` names the kernels whose results differ more than rounding explains; otherwise it is ``None``.
    ``measured_time_us`` is of this run.
    """

    kernels: tuple[VerifiedKernel, ...]
    measured_time_us: float | None = None
    side_by_side: tuple[SideBySide, ...] = ()
    fault: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all results agree."""
        return self.fault is None

    def _rows(self) -> list[dict[str, Any]]:
        """The columns of the command's CSV, and ``configuration``."""
        names = ("max_relative_error_undivided", "max_relative_error_reference", "outputs_compared", "measured_time_us")
        rows = zip(super()._rows(), self.kernels, strict=True)
        return [row | {name: getattr(kernel.verification, name) for name in names} for row, kernel in rows]

    def _shown(self) -> list[dict[str, str]]:
        def known(error: float | None) -> str:
            return "" if error is None else f"{error:.1e}"

        return [
            {
                "layer": kernel.layer,
                "operation": kernel.operation,
                "configuration": str(kernel.configuration),
                "ran in": _time(kernel.verification.measured_time_us),
                "vs undivided": known(kernel.verification.max_relative_error_undivided),
                "vs f64": known(kernel.verification.max_relative_error_reference),
            }
            for kernel in self.kernels
        ]

    def __repr__(self) -> str:
        ran = f"{len(self.kernels)} kernels ran in {_time(self.measured_time_us)}"
        on = f"{self.network}, mini-batch {self.batch}, {self.types}, on {self.device}"
        return f"<Verified {on}: {ran}, {'all results agree' if self.passed else 'results differ'}>"


@dataclass(frozen=True)
class Point:
    """One configuration on a front."""

    time_us: float
    workspace_bytes: int
    configuration: Configuration

    def __repr__(self) -> str:
        return f"<{_size(self.workspace_bytes)}: {_time(self.time_us)}, {self.configuration}>"


@dataclass(frozen=True, repr=False)
class Front(Table):
    """The configurations of one kernel that no other one beats in both time and workspace, by rising workspace."""

    layer: str
    operation: str
    points: tuple[Point, ...]
    batch: int | None = None
    types: str = ""
    device: str = ""
    _svg: str = field(default="", repr=False, compare=False)

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "workspace_bytes": point.workspace_bytes,
                "time_us": point.time_us,
                "configuration": str(point.configuration),
                **point.configuration._columns(),
            }
            for point in self.points
        ]

    def _shown(self) -> list[dict[str, str]]:
        return [
            {
                "workspace": _size(point.workspace_bytes),
                "time": _time(point.time_us),
                "configuration": str(point.configuration),
            }
            for point in self.points
        ]

    def _picture(self) -> str:
        return self._svg

    def svg(self) -> str:
        """The picture that ``tightfit optimize --plot`` draws for one kernel, as an SVG document."""
        return self._svg

    def __repr__(self) -> str:
        ends = [self.points[0], self.points[-1]] if self.points else []
        limits = " to ".join(f"{_time(point.time_us)} in {_size(point.workspace_bytes)}" for point in ends)
        return f"<Front of {self.layer} {self.operation}: {len(self.points)} points, {limits}>"


@dataclass(frozen=True)
class DeviceShare:
    """One device's share of a mini-batch.

    Whole steps were measured on the device if ``measured``; otherwise its times are summed from convolutions. Times of the
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

    def __repr__(self) -> str:
        return f"<DeviceShare {self.name}: {self.batch} samples, {_time(self.time_us)}>"


@dataclass(frozen=True, repr=False)
class MixedSplit(Table):
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
        """The columns of the command's CSV, and ``measured``."""
        steps = {True: "measured", False: "added up"}
        return [{**_plain(device), "steps": steps[device.measured]} for device in self.devices]

    def _shown(self) -> list[dict[str, str]]:
        def known(time_us: float | None) -> str:
            return "" if time_us is None else _time(time_us)

        return [
            {
                "name": device.name,
                "device": device.device,
                "batch": str(device.batch),
                "time": _time(device.time_us),
                "even batch": str(device.even_batch),
                "even time": known(device.even_time_us),
                "alone": known(device.alone_time_us),
            }
            for device in self.devices
        ]

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
    return {name: value for name, value in plain.items() if not name.startswith("_")}


def _lists(value: Any) -> Any:
    """The value with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _micro_batches(parts: Iterable[dict[str, Any]]) -> Configuration:
    return Configuration(MicroBatch(**part) for part in parts)


def _kernel(kernel: dict[str, Any]) -> dict[str, Any]:
    """The fields of a kernel, from its JSON."""
    undivided, parts = kernel["undivided"], kernel["configuration"]
    return {**kernel, "undivided": undivided and Undivided(**undivided), "configuration": _micro_batches(parts)}


def read_optimized(text: str, svg: str = "") -> Optimized:
    """Reads the JSON of ``tightfit optimize``, and takes its picture."""
    document = json.loads(text)
    document["kernels"] = tuple(Kernel(**_kernel(kernel)) for kernel in document["kernels"])
    return Optimized(**document, _svg=svg)


def read_verified(text: str, svg: str, fault: str | None) -> Verified:
    """Reads the JSON of ``tightfit verify``, and takes a picture and the faults."""
    document = json.loads(text)
    document["kernels"] = tuple(
        VerifiedKernel(**{**_kernel(kernel), "verification": Verification(**kernel["verification"])})
        for kernel in document["kernels"]
    )
    document["side_by_side"] = tuple(
        SideBySide(**{**seen, "kernels": tuple(seen["kernels"])}) for seen in document.get("side_by_side", ())
    )
    return Verified(**document, _svg=svg, fault=fault)


def read_fronts(text: str) -> list[Front]:
    """Reads the fronts of several kernels."""
    return [
        Front(
            front["layer"],
            front["operation"],
            tuple(Point(**{**point, "configuration": _micro_batches(point["configuration"])}) for point in front["points"]),
            *(front[name] for name in ("batch", "types", "device", "svg")),
        )
        for front in json.loads(text)
    ]


def read_split(text: str) -> MixedSplit:
    """Reads the JSON of ``tightfit split``."""
    document = json.loads(text)
    document["devices"] = tuple(DeviceShare(**device) for device in document["devices"])
    return MixedSplit(**document)
