"""Keeps measurements for later processes: times of kernels, and bytes that steps took in addition to the prediction.

They are kept in a JSON file in the folder of the profile cache. Without the file, or if it cannot be read or written, a process measures again.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from .._native import default_cache

__all__ = ["Kept"]

_NAME = "compiled-steps.json"
_VERSION = 1
_MOST = 5_000


class Kept:
    """The measurements for one device.

    Attributes
    ----------
    times
        Microseconds by kernel.
    beside
        Bytes that a step took in addition to the prediction, by graph.
    """

    def __init__(self, device: torch.device) -> None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else device.type
        self.device = f"{name}, PyTorch {torch.__version__}"
        self.path = _path()
        found = _content(self.path).get(self.device)
        found = found if isinstance(found, dict) else {}
        self.times = {str(key): float(time) for key, time in _numbers(found.get("times"))}
        self.beside = {str(key): int(size) for key, size in _numbers(found.get("beside"))}

    def save(self) -> None:
        """Writes them to the file, and leaves the entries of other devices as they are."""
        if self.path is None:
            return
        everything = _content(self.path)
        everything[self.device] = {"times": _last(self.times), "beside": _last(self.beside)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
                json.dump({"version": _VERSION, **everything}, file)
            os.replace(file.name, self.path)
        except OSError:
            return


def _last(values: dict[str, Any]) -> dict[str, Any]:
    return dict(list(values.items())[-_MOST:])


def _numbers(found: Any) -> list[tuple[Any, Any]]:
    if not isinstance(found, dict):
        return []
    return [(key, value) for key, value in found.items() if isinstance(value, int | float)]


def _path() -> Path | None:
    cache = os.environ.get("TIGHTFIT_CACHE") or default_cache()
    return Path(cache).with_name(_NAME) if cache and cache != "none" else None


def _content(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if key != "version"} if isinstance(found, dict) and found.get("version") == _VERSION else {}
