"""The device that a function measures on, in the words of the command."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from . import _native
from ._profile import PathLike, Profile
from .errors import BadInput


def words(
    backend: str,
    profile: Profile | PathLike | Iterable[PathLike] | None,
    cache: PathLike | None,
    device: int | str | None,
    threads: int | None,
    cudnn: PathLike | None,
) -> tuple[_native.Recordings | None, dict[str, Any]]:
    """The recordings that answer instead of a device, if there are any, and the words for the device."""
    recordings = None
    if profile is not None or backend == "replay":
        if backend not in ("auto", "replay"):
            raise BadInput(f"backend={backend!r} measures, and a profile is already measured; drop one of them")
        recordings = Profile.of(profile, cache)._recordings
    if isinstance(device, str) and recordings is None:
        raise BadInput(f"device={device!r} names a recorded device; a GPU is named by its number, from 0")
    if isinstance(device, int) and (recordings is not None or device < 0):
        raise BadInput(f"device={device}: a GPU is named by its number, from 0, and a recorded device by a part of its name")
    if threads is not None and not 1 <= threads <= 1024:
        raise BadInput(f"threads={threads}: use 1 to 1024")
    return recordings, {
        "backend": backend,
        "device": device if isinstance(device, str) else None,
        "gpu": device if isinstance(device, int) else 0,
        "threads": threads,
        "cudnn": cudnn,
        "cache": None if cache is None else os.fspath(cache),
    }


def samples(batch: int) -> int:
    """A mini-batch size."""
    if not isinstance(batch, int) or not 1 <= batch <= 1 << 20:
        raise BadInput(f"batch={batch!r}: use 1 to {1 << 20} samples, as a number")
    return batch
