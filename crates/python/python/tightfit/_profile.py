"""Networks, and measurements as data: plain rows, and pandas frames where pandas is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native
from .errors import BadInput

if TYPE_CHECKING:
    from pandas import DataFrame

PathLike = str | os.PathLike[str]
Size = int | str | None
"""Bytes, words such as ``"64MiB"``, or ``None`` for no limit."""

UNLIMITED = 2**64 - 1


def size(value: Size) -> int:
    """Bytes of a size; those of no limit are more than any device has."""
    if value is None:
        return UNLIMITED
    if isinstance(value, str):
        return _native.parse_size(value)
    if not 0 <= value <= UNLIMITED:
        raise BadInput(f"{value}: not a size in bytes")
    return value


def default_cache() -> Path:
    """The cache that the command uses: ``TIGHTFIT_CACHE``, else ``tightfit/cache.db`` in the user's cache folder.

    Raises
    ------
    BadInput
        Where the command goes without a cache: ``TIGHTFIT_CACHE`` is ``none``, or no variable names a folder.
    """
    path = _native.default_cache()
    if path is None:
        raise BadInput("there is no cache: TIGHTFIT_CACHE is none, or HOME is not set; name a file")
    return Path(path)


class Profile:
    """Measurements of one or more devices, read from caches and recorded profiles.

    Use :meth:`open`. A profile does not change after that: what is measured later is seen by opening again. It can be pickled,
    and so sent to worker processes: the copy holds the measurements themselves.
    """

    def __init__(self, recordings: _native.Recordings) -> None:
        self._recordings = recordings

    @classmethod
    def open(cls, *paths: PathLike) -> Profile:
        """Reads caches (``.db``) and recorded profiles (``.jsonl``, ``.jsonl.gz``).

        Parameters
        ----------
        *paths
            Files to read as one; without any the default cache. Where two have the same measurement, the later stands.

        Raises
        ------
        FileError
            If a file cannot be read, naming the line or what to do; it is left as it was.
        """
        return cls(_native.Recordings(list(paths) or [default_cache()]))

    @classmethod
    def of(cls, profile: Profile | PathLike | Iterable[PathLike] | None, cache: PathLike | None) -> Profile:
        """The profile that a function's ``profile`` and ``cache`` arguments name; the default cache without either."""
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
        """``backend``, ``name``, ``library``, ``threads``, and numbers of ``problems`` and ``measurements``."""
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
            Only of devices with this in their name.
        problem
            Only of problems with this in their text form, such as ``"backward-filter"`` or ``"c96 h27"``.

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
        """:meth:`rows` as a pandas frame.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        from pandas import DataFrame

        return DataFrame(self.rows(device, problem))

    def __repr__(self) -> str:
        return f"<Profile of {', '.join(device['name'] for device in self.devices)}>"


def networks() -> list[dict[str, Any]]:
    """The built-in networks: ``name``, ``what``, ``convolutions``, ``parameters``, ``multiply_adds`` of one sample."""
    return list(json.loads(_native.networks()))


def network(name: str) -> list[dict[str, Any]]:
    """The layers of a built-in network, or of a file of layers.

    Returns
    -------
    list of dict
        ``layer``, ``kind``, ``channels`` and ``extents`` of its output for one sample, ``parameters``, and for
        convolutions their shape as ``convolution``.

    Raises
    ------
    BadInput
        For an unknown name, with the nearest ones.
    """
    return list(json.loads(_native.network(name)))


def merge(cache: PathLike, *files: PathLike) -> int:
    """Takes caches and recorded profiles into one cache, which is made where there is none.

    Safe while other processes read and write it, so each rank of a job can merge what it measured. Of two measurements
    of the same the one of more repeats stays.

    Returns
    -------
    int
        Measurements taken in.
    """
    return _native.merge(cache, list(files))
