"""Uneven mini-batches, so that unequal devices finish at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import _native
from ._networks import NetworkLike, name_of
from ._profile import PathLike, Profile, Size, size
from ._renamed import renamed
from .errors import BadInput
from .results import MixedSplit, read_split


def split(
    batch: int,
    devices: Sequence[str],
    *,
    network: NetworkLike,
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    workspace: Size = None,
    sizes: str = "all",
    types: str = "f32",
    layout: str = "nchw",
    multiple_of: int = 1,
    memory: Size | Sequence[Size] = None,
    rest_us: float = 0.0,
    policy: str | None = None,
) -> MixedSplit:
    """Splits a mini-batch across unequal devices so that the slowest finishes as early as possible. Exact.

    Parameters
    ----------
    batch
        Total number of samples over all devices.
    devices
        One name per device, such as ``["K80", "K80", "K20Xm"]``: the full name, or a part that matches no other device.
    network
        A built-in network, an ONNX model (``.onnx``), a network file (``.json``), a layer list, or the name of a program
        that ran under ``tightfit run`` or whose steps :func:`record_steps` kept.
    profile, cache
        Source of the measurements: a :class:`Profile`, files, or a cache; by default, the default cache. If training steps
        of the network were measured (:func:`record_steps`), they are used. Otherwise the convolutions are divided under
        the workspace limit at every batch size, and ``rest_us`` is added for each sample.
    workspace, sizes
        Workspace limit per convolution, and which recorded sizes may be micro-batches.
    multiple_of
        Round each device's share to a multiple of this power of two.
    memory
        Memory of the devices: one size for all, or one per device.
    rest_us
        Time of the other layers, forward and backward, in µs per sample.
    policy
        Old name of ``sizes``.

    Returns
    -------
    MixedSplit
        Samples and step time (µs) of each device, compared with the even split and with each device alone.

    Raises
    ------
    NotProfiled
        If a device has no measurements of the network, or the measured batches do not add up to ``batch``.
    BadInput
        If a name matches no device or several (the message lists them), or if the batch exceeds 1048576.

    Notes
    -----
    A device that would only slow the others down gets 0 samples. Communication is not counted, because it overlaps
    with the backward pass. Source: Oyama et al. 2018, III.E.

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
        "network": name_of(network),
        "batch": batch,
        "devices": list(devices),
        "workspace": size(workspace),
        "sizes": renamed(sizes, policy),
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
    network: NetworkLike,
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    workspace: Size = None,
    sizes: str = "all",
    types: str = "f32",
    layout: str = "nchw",
    multiple_of: int = 1,
    memory: Size | Sequence[Size] = None,
    rest_us: float = 0.0,
    policy: str | None = None,
) -> list[int]:
    """Returns the number of samples for each device: the batches of :func:`split`."""
    found = split(
        batch,
        devices,
        network=network,
        profile=profile,
        cache=cache,
        workspace=workspace,
        sizes=sizes,
        types=types,
        layout=layout,
        multiple_of=multiple_of,
        memory=memory,
        rest_us=rest_us,
        policy=policy,
    )
    return found.batches


def split_times(times: Sequence[Sequence[tuple[int, float]]], batch: int) -> tuple[list[int], float]:
    """Finds the exact split for given times.

    Parameters
    ----------
    times
        For each device, the batches it may get and how long each one takes, in µs or a unit of similar size.
    batch
        Total number of samples over all devices.

    Returns
    -------
    batches : list of int
        Samples of each device.
    time_us : float
        Time of the slowest device.

    Raises
    ------
    NotProfiled
        If no batches add up to ``batch``.
    BadInput
        If the batch exceeds 1048576, or a time is invalid.

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
    """Saves measured training steps of a network in a cache, for :func:`split`.

    Several processes may write to the same cache at once.

    Parameters
    ----------
    cache
        The cache file; created if it does not exist.
    device, library, backend
        The device, library and backend of the times, such as ``"NVIDIA H200"``, ``"torch 2.11"``, ``"cuda"``.
    network
        The network's name, as passed to :func:`split`.
    steps
        Batch in samples, time of forward and backward in µs, and device memory in bytes (0 if unknown).
    types
        Data types of tensors and arithmetic.
    repeats
        Number of runs of which each time is the median.
    """
    rows = [(batch, time_us, memory_bytes, repeats) for batch, time_us, memory_bytes in steps]
    _native.record_steps(cache, (backend, device, library), network, types, rows)
