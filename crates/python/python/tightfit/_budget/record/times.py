"""Measured times and workspaces of operations, and rates of copies, by device; kept in the folder of the profiles' cache.

The file has JSON: for each device and version of its libraries, the measurements of each form of an operation. It only spares the next process from
measuring again, so a file that cannot be read or written does no harm.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..._native import default_cache
from .data import Operation, View

__all__ = ["Times", "chosen_limit", "devices_in", "key_of", "path_of", "times_of", "words_of", "write_devices"]

# 2: times of version 1 were wrong on a GPU that was not the current one. 3: with the blocks of workspaces.
_KIND = "tightfit_step_times", 3
_NAME = "step-times.json"
# Entries of one device that are kept; the oldest go first.
_MOST = 20_000


class Times:
    """The measurements of one device.

    Attributes
    ----------
    known
        By operation, its time in us and the bytes of its workspace.
    rates
        Bytes per second of copies (``out``, ``in``, ``both``).
    scales
        Measured over estimated time, at the median: of operations bound by arithmetic (``flops``), and of others (``traffic``).
    blocks
        By operation, the blocks that it takes and frees in addition to its results, where they are large: see `measure`.
    workspaces
        By the name of an operation, its largest workspace for each byte that it reads and writes.
    rough
        Operations of which too little memory was free, so that a part was timed: the next process may have more.
    """

    def __init__(self, device: str, path: Path | None) -> None:
        self.device = device
        self.path = path
        self.known: dict[str, tuple[float, int]] = {}
        self.rates: dict[str, float] = {}
        self.blocks: dict[str, list[int]] = {}
        self.scales: dict[str, float] = {}
        self.workspaces: dict[str, float] = {}
        self.rough: set[str] = set()
        self._read(devices_in(path, _KIND).get(device))

    def _read(self, found: Any) -> None:
        if not isinstance(found, dict):
            return
        try:
            self.known.update({str(key): (float(time), int(size)) for key, (time, size) in found["operations"].items()})
            self.rates.update({str(key): float(rate) for key, rate in found["rates"].items()})
            self.scales.update({str(key): float(scale) for key, scale in found["scales"].items()})
            self.blocks.update({str(key): [int(size) for size in sizes] for key, sizes in found["blocks"].items()})
            self.workspaces.update({str(key): float(share) for key, share in found["workspaces"].items()})
        except (KeyError, TypeError, ValueError, AttributeError):
            # Written by something else.
            for read in (self.known, self.rates, self.blocks, self.scales, self.workspaces):
                read.clear()

    def save(self) -> None:
        """Writes the measurements, and keeps the measurements that other processes have written of other devices."""
        if self.path is None:
            return
        devices, before = devices_in(self.path, _KIND), Times(self.device, None)
        before._read(devices.get(self.device))
        exact = {key: value for key, value in self.known.items() if key not in self.rough}
        kept = dict(list({**before.known, **exact}.items())[-_MOST:])
        blocks = {key: sizes for key, sizes in {**before.blocks, **self.blocks}.items() if key in kept}
        devices[self.device] = {"operations": kept, "rates": self.rates, "blocks": blocks, "scales": self.scales, "workspaces": self.workspaces}
        if not write_devices(self.path, _KIND, devices):
            self.path = None


def path_of(name: str) -> Path | None:
    """A file in the folder of the cache, or None without a cache."""
    cache = default_cache()
    return Path(cache).parent / name if cache is not None else None


def devices_in(path: Path | None, kind: tuple[str, int]) -> dict[str, Any]:
    """The content of a file of measurements, by device; empty if it has another name or version than `kind`, or cannot be read."""
    if path is None:
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    name, version = kind
    if not isinstance(data, dict) or data.get(name) != version or not isinstance(data.get("devices"), dict):
        return {}
    return data["devices"]  # type: ignore[no-any-return]


def write_devices(path: Path, kind: tuple[str, int], devices: dict[str, Any]) -> bool:
    """Writes a file of measurements as a whole, so that no process reads a part of it; returns whether it was written."""
    name, version = kind
    written = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({name: version, "devices": devices}, file)
        os.replace(written, path)
    except OSError:
        if written is not None:
            Path(written).unlink(missing_ok=True)
        return False
    return True


def key_of(operation: Operation) -> str:
    """The key that operations of equal cost share: the call, and the forms of its arguments."""
    words = [_form(argument) if isinstance(argument, View) else repr(argument) for argument in operation.arguments]
    return f"{operation.function}({', '.join(words)})"


def _form(view: View) -> str:
    kind = str(view.dtype).removeprefix("torch.")
    return f"{kind}{list(view.shape)}{list(view.stride)}"


# The settings of convolutions under `tightfit run`, and the variable that only it sets.
_LIMITS = ("WORKSPACE", "TOTAL_WORKSPACE", "SIZES", "DIVIDE", "TUNE")
_PRELOADED = "TIGHTFIT_CUDNN"


class _Chosen:
    """The limit on workspaces that this process has chosen itself, in bytes, and whether it stays."""

    def __init__(self) -> None:
        self.size: int | None = None
        self.settled = False


chosen_limit = _Chosen()


def _limits() -> list[str]:
    """The limits of convolutions in this process: under other limits they take other times and workspaces."""
    if _PRELOADED not in os.environ:
        return []
    found = {name: os.environ.get(f"TIGHTFIT_{name}") for name in _LIMITS}
    if chosen_limit.size is not None:
        found["WORKSPACE"] = str(chosen_limit.size)
    return ["run", *(f"{name.lower().replace('_', ' ')} {value}" for name, value in found.items() if value)]


_open: dict[str, Times] = {}


def words_of(device: torch.device) -> str:
    """The device, its libraries, and their settings: measurements hold for these alone."""
    words = [device.type, f"torch {torch.__version__}"]
    if device.type == "cuda" and torch.cuda.is_available():
        words[0] = torch.cuda.get_device_name(device)
        # Partitions of a GPU have its name.
        words.append(f"{torch.cuda.get_device_properties(device).multi_processor_count} multiprocessors")
        matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
        words.append(f"cudnn {torch.backends.cudnn.version()}")
        try:
            words.append(f"tf32 {matmul.allow_tf32:d}{convolution.allow_tf32:d}")
        except RuntimeError:
            # A program that sets precisions by PyTorch's newer interface cannot read the older one.
            words.append(f"precision {matmul.fp32_precision} {convolution.conv.fp32_precision}")
        words.append(f"benchmark {convolution.benchmark:d} deterministic {convolution.deterministic:d}")
    return ", ".join((*words, *_limits()))


def times_of(device: torch.device) -> Times:
    """The measurements of a device, by this process or an earlier one."""
    name = words_of(device)
    found = _open.get(name)
    if found is None:
        found = _open[name] = Times(name, path_of(_NAME))
    return found
