"""Dividing a network's mini-batch so that the fastest algorithms fit a workspace limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import _native
from ._networks import NetworkLike, name_of
from ._profile import PathLike, Profile, Size, size
from ._renamed import renamed
from .errors import BadInput
from .results import Front, Optimized, read_fronts, read_optimized

OPERATIONS = ("forward", "backward-data", "backward-filter")


def _words(
    network: NetworkLike,
    batch: int | None,
    bounds: dict[str, Size],
    sizes: str,
    types: str,
    layout: str,
    operations: Sequence[str],
    layers: Sequence[str],
    device: str | None,
    deterministic: bool,
    exact_class: bool,
    divide: str,
) -> dict[str, Any]:
    given = {bound: value for bound, value in bounds.items() if value is not None}
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)}: give one of them")
    bound, value = next(iter(given.items()), ("workspace", None))
    return {
        "network": name_of(network),
        "batch": batch,
        "operations": list(operations),
        "layers": list(layers),
        "types": types,
        "layout": layout,
        "sizes": sizes,
        "bound": bound,
        "bytes": size(value),
        "device": device,
        "deterministic": deterministic,
        "exact_class": exact_class,
        "divide": divide,
    }


def optimize(
    network: NetworkLike,
    batch: int | None = None,
    *,
    workspace: Size = None,
    total_workspace: Size = None,
    one_workspace: Size = None,
    sizes: str = "fit",
    types: str = "f32",
    layout: str = "nchw",
    operations: Sequence[str] = OPERATIONS,
    layers: Sequence[str] = (),
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    device: str | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
    divide: str = "both",
    policy: str | None = None,
) -> Optimized:
    """Finds the fastest way to run each convolution of a network within a workspace limit.

    Uses existing measurements only; ``tightfit profile`` makes them. Returns the same numbers as
    ``tightfit optimize --backend replay:FILE``. Other Python threads keep running, and Ctrl-C stops it.

    Parameters
    ----------
    network
        A built-in network (see :func:`networks`), an ONNX model (``.onnx``), a network file (``.json``), a layer list, or
        the name of a program that ran under ``tightfit run``; or what :func:`network` returned.
    batch
        Mini-batch size, in samples; ``None`` uses the one stated in the file.
    workspace, total_workspace, one_workspace
        A limit per kernel (WR), one total divided among the kernels (WD), or one workspace that they share; bytes, or strings such as ``"64MiB"``.
        Give at most one of them. By default nothing is limited.
    sizes
        Which recorded sizes may be micro-batches: ``"undivided"``, ``"power-of-two"``, ``"all"`` or ``"fit"``.
    types, layout
        The same as the options of the command.
    operations, layers
        Include only these; without ``layers``, all layers.
    profile, cache
        Source of the measurements: a :class:`Profile`, files, or a cache; by default, the default cache.
    device
        Part of the device's name, if the profile has several devices.
    deterministic, exact_class
        Use only deterministic algorithms; use only algorithms of the same numerical class as the undivided choice.
    divide
        Along what to divide: ``"batch"``, ``"space"``, ``"both"`` or ``"off"``.
    policy
        Old name of ``sizes``.

    Returns
    -------
    Optimized
        Times in µs, workspace in bytes.

    Raises
    ------
    DoesNotFit
        If the limit is too small; ``needed_bytes`` is the smallest limit that would work.
    NotProfiled
        If the measured sizes of a kernel do not add up to the mini-batch.
    BadInput
        If a name or option is unknown.

    Notes
    -----
    Source: Oyama et al. 2018, III.B (WR) and III.C (WD).

    Examples
    --------
    >>> recorded = "profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz"
    >>> best = optimize("alexnet-1col", 256, workspace="64MiB", layers=["conv2"], operations=["forward"], profile=recorded)
    >>> best.kernels[0]
    <Kernel conv2 forward: 8 x 32 legacy:winograd-nonfused, 1.51 ms, 55.5 MiB>
    """
    bounds = {"workspace": workspace, "total_workspace": total_workspace, "one_workspace": one_workspace}
    words = _words(network, batch, bounds, renamed(sizes, policy), types, layout, operations, layers, device, deterministic, exact_class, divide)
    return read_optimized(*_native.optimize(Profile.of(profile, cache)._recordings, words))


def front(
    network: NetworkLike,
    layer: str,
    operation: str = "forward",
    batch: int | None = None,
    *,
    workspace: Size = None,
    sizes: str = "all",
    types: str = "f32",
    layout: str = "nchw",
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    device: str | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
    divide: str = "both",
    policy: str | None = None,
) -> Front:
    """Returns the Pareto front of one kernel: the configurations that no other one beats in both time and workspace.

    Parameters and exceptions are the same as of :func:`optimize`.

    Returns
    -------
    Front
        Points in order of rising workspace (bytes), hence falling time (µs).

    Notes
    -----
    Source: Oyama et al. 2018, III.C, whose figure 6 draws it.

    Examples
    --------
    >>> recorded = "profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz"
    >>> points = front("alexnet-1col", "conv2", batch=256, profile=recorded).points
    >>> points[0].workspace_bytes < points[-1].workspace_bytes and points[0].time_us > points[-1].time_us
    True
    """
    words = _words(network, batch, {"workspace": workspace}, renamed(sizes, policy), types, layout, [operation], [layer], device, deterministic, exact_class, divide)
    return read_fronts(_native.front(Profile.of(profile, cache)._recordings, words))[0]
