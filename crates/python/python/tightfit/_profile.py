"""Measurements as data: plain rows, or pandas frames if pandas is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native
from ._table import Table, data_frame
from .errors import BadInput

if TYPE_CHECKING:
    from pandas import DataFrame

PathLike = str | os.PathLike[str]
Size = int | str | None
"""Bytes, a string such as ``"64MiB"``, or ``None`` for no limit."""

UNLIMITED = 2**64 - 1


def size(value: Size | float) -> int:
    """A size in bytes; no limit becomes more bytes than any device has."""
    if value is None:
        return UNLIMITED
    if isinstance(value, str):
        return _native.parse_size(value)
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if not isinstance(whole, int) or not 0 <= whole <= UNLIMITED:
        raise BadInput(f"{value!r}: not a size; give bytes, or a size such as '8GiB'")
    return whole


def default_cache() -> Path:
    """The cache that the command uses: ``TIGHTFIT_CACHE``, or else ``tightfit/cache.db`` in the user's cache folder.

    Raises
    ------
    BadInput
        If the command would use no cache: ``TIGHTFIT_CACHE`` is ``none``, or no variable names a folder.
    """
    path = _native.default_cache()
    if path is None:
        raise BadInput("there is no cache: TIGHTFIT_CACHE is none, or HOME is not set; name a file")
    return Path(path)


class Profile(Table):
    """Measurements of one or more devices, read from caches and recorded profiles.

    Create one with :meth:`open`. A profile does not change afterwards; to see newer measurements, open it again. It can be
    pickled, and so sent to worker processes: the copy holds the measurements themselves.
    """

    def __init__(self, recordings: _native.Recordings) -> None:
        self._recordings = recordings

    @classmethod
    def open(cls, *paths: PathLike) -> Profile:
        """Reads caches (``.db``) and recorded profiles (``.jsonl``, ``.jsonl.gz``).

        Parameters
        ----------
        *paths
            Files to combine; without any, the default cache. If two files have the same measurement, the later file wins.

        Raises
        ------
        FileError
            If a file cannot be read; the message names the line or the next step. The file is left unchanged.
        """
        return cls(_native.Recordings(list(paths) or [default_cache()]))

    @classmethod
    def of(cls, profile: Profile | PathLike | Iterable[PathLike] | None, cache: PathLike | None) -> Profile:
        """The profile named by a function's ``profile`` or ``cache`` argument; without either, the default cache."""
        if profile is not None and cache is not None:
            raise BadInput("give a profile or a cache, not both")
        if isinstance(profile, Profile):
            return profile
        source = profile if profile is not None else cache
        if source is None:
            return cls.open()
        return cls.open(source) if isinstance(source, (str, os.PathLike)) else cls.open(*source)

    @property
    def devices(self) -> list[dict[str, Any]]:
        """``backend``, ``name``, ``library``, ``threads``, and the numbers of ``problems`` and ``measurements``."""
        return list(json.loads(self._recordings.devices()))

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Kernels of the profiled networks: ``network``, ``batch``, ``layer``, ``problem``, ``mini_batch``."""
        return list(json.loads(self._recordings.layers()))

    @property
    def problems(self) -> list[str]:
        """Text forms of the problems measured on any device, in alphabetical order."""
        return sorted({row["problem"] for row in self.rows()})

    def rows(self, device: str | None = None, problem: str | None = None) -> list[dict[str, Any]]:
        """Measurements as dictionaries.

        Parameters
        ----------
        device
            Include only devices whose name contains this.
        problem
            Include only problems whose text form contains this, such as ``"backward-filter"`` or ``"c96 h27"``.

        Returns
        -------
        list of dict
            ``device``, ``library``, ``problem``, ``algorithm``, ``micro_batch`` (samples), ``time_us`` (median of calls
            back to back), ``single_time_us`` (of a call alone, or None), ``workspace_bytes``, ``spread`` (interquartile
            range over median), ``repeats``, ``notes``. Steps of a network are problems too: ``step resnet18 f32``.
        """
        rows = json.loads(self._recordings.rows(device))
        return [row for row in rows if problem is None or problem in row["problem"]]

    def frame(self, device: str | None = None, problem: str | None = None) -> DataFrame:
        """:meth:`rows` as a pandas frame, one row for each measurement.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        return data_frame(self.rows(device, problem))

    def _rows(self) -> list[dict[str, Any]]:
        return self.rows()

    def _shown(self) -> list[dict[str, str]]:
        shown = ("name", "library", "backend", "problems", "measurements")
        return [{name: str(device[name]) for name in shown} for device in self.devices]

    def __repr__(self) -> str:
        devices = self.devices
        counts = ", ".join(f"{sum(device[name] for device in devices)} {name}" for name in ("problems", "measurements"))
        more = f" and {len(devices) - 2} more" if len(devices) > 2 else ""
        return f"<Profile of {', '.join(device['name'] for device in devices[:2])}{more}: {counts}>"


def merge(cache: PathLike, *files: PathLike) -> int:
    """Merges caches and recorded profiles into one cache, which is created if it does not exist.

    Safe while other processes read and write the cache, so each rank of a job can merge its own measurements. If the same
    candidate was measured twice, the measurement with more repeats stays.

    Returns
    -------
    int
        Number of measurements merged.
    """
    return _native.merge(cache, list(files))
