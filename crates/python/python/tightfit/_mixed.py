"""Uneven mini-batches, so that unequal devices are done at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import _native
from ._profile import PathLike, Profile, Size, size
from .errors import BadInput
from .results import MixedSplit, read_split


def split(
    batch: int,
    devices: Sequence[str],
    *,
    network: str,
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    workspace: Size = None,
    policy: str = "all",
    types: str = "f32",
    layout: str = "nchw",
    multiple_of: int = 1,
    memory: Size | Sequence[Size] = None,
    rest_us: float = 0.0,
) -> MixedSplit:
    """Splits a mini-batch over unequal devices so that the slowest is done as early as possible. Exact.

    Parameters
    ----------
    batch
        Samples over all devices.
    devices
        A name for each device, such as ``["K80", "K80", "K20Xm"]``: its own, or a part that fits no other.
    network
        A built-in network or a file of layers.
    profile, cache
        Where the measurements are: a :class:`Profile`, files, or a cache; else the default cache. Where training steps of
        the network were measured (:func:`record_steps`) they are taken; otherwise the convolutions are divided under the
        workspace limit at every batch size, and ``rest_us`` is added for each sample.
    workspace, policy
        Workspace limit of each convolution, and which recorded sizes may be micro-batches.
    multiple_of
        Give each device a multiple of this power of two.
    memory
        Memory of the devices, one size for all or one for each.
    rest_us
        Time of the other layers, forward and backward, in µs for one sample.

    Returns
    -------
    MixedSplit
        Samples and step (µs) of each device, beside the even split's and each device's alone.

    Raises
    ------
    NotProfiled
        If nothing is recorded of the network on some device, or its batches do not add up.
    BadInput
        For a name that fits no device or several; the message lists them. For a batch over 1048576.

    Notes
    -----
    A device that would only slow the others down gets 0 samples. Communication is left out: it overlaps with the
    backward pass. Source: Oyama et al. 2018, III.E.

    Examples
    --------
    >>> found = split(32, ["K80", "K80", "K20Xm"], network="resnet18",
    ...               profile="profiles/synthetic-mixed-cluster.jsonl")
    >>> found.batches, round(found.speedup_over_alone, 2)
    ([12, 12, 8], 2.12)
    """
    if isinstance(devices, str):
        raise BadInput("devices is a list of names, not one name")
    each = [memory] * len(devices) if memory is None or isinstance(memory, (int, str)) else list(memory)
    words = {
        "network": network,
        "batch": batch,
        "devices": list(devices),
        "workspace": size(workspace),
        "policy": policy,
        "types": types,
        "layout": layout,
        "multiple_of": multiple_of,
        "memory": [size(limit) for limit in each],
        "rest_us": rest_us,
    }
    return read_split(_native.split(Profile.of(profile, cache)._recordings, words))


def best_batch_size(
    batch: int,
    devices: Sequence[str],
    *,
    network: str,
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    workspace: Size = None,
    policy: str = "all",
    types: str = "f32",
    layout: str = "nchw",
    multiple_of: int = 1,
    memory: Size | Sequence[Size] = None,
    rest_us: float = 0.0,
) -> list[int]:
    """The samples of each device in the mini-batch whose slowest device is fastest: the batches of :func:`split`."""
    found = split(
        batch,
        devices,
        network=network,
        profile=profile,
        cache=cache,
        workspace=workspace,
        policy=policy,
        types=types,
        layout=layout,
        multiple_of=multiple_of,
        memory=memory,
        rest_us=rest_us,
    )
    return found.batches


def split_times(times: Sequence[Sequence[tuple[int, float]]], batch: int) -> tuple[list[int], float]:
    """The exact split for times of one's own.

    Parameters
    ----------
    times
        For each device the batches it may be given and how long each takes, in any unit of µs size.
    batch
        Samples over all devices.

    Returns
    -------
    batches : list of int
        Samples of each device.
    time_us : float
        Time of the slowest.

    Raises
    ------
    NotProfiled
        If no batches add up.
    BadInput
        For a batch over 1048576, or a time that is none.

    Examples
    --------
    >>> split_times([[(n, 10.0 * n) for n in range(1, 9)], [(n, 30.0 * n) for n in range(1, 9)]], 8)
    ([6, 2], 60.0)
    """
    return _native.split_times(times, batch)


def record_steps(
    cache: PathLike,
    device: str,
    network: str,
    steps: Iterable[tuple[int, float, int]],
    *,
    library: str,
    types: str = "f32",
    backend: str = "cuda",
    repeats: int = 1,
) -> None:
    """Keeps measured training steps of a network in a cache, for :func:`split`.

    Several processes may write to one cache at once.

    Parameters
    ----------
    cache
        The cache file; made where there is none.
    device, library, backend
        Where they hold, such as ``"NVIDIA H200"``, ``"torch 2.11"``, ``"cuda"``.
    network
        The network's name, as :func:`split` is asked with it.
    steps
        Batch in samples, time of forward and backward in µs, and device memory in bytes (0 where unknown).
    types
        Number types of data and arithmetic.
    repeats
        How many runs each time is the median of.
    """
    rows = [(batch, time_us, memory_bytes, repeats) for batch, time_us, memory_bytes in steps]
    _native.record_steps(cache, (backend, device, library), network, types, rows)
