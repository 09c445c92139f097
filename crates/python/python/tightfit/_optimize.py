"""Dividing a network's mini-batch so that the fastest algorithms fit a workspace limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import _native
from ._profile import PathLike, Profile, Size, size
from .errors import BadInput
from .results import Front, Optimized, read_fronts, read_optimized

OPERATIONS = ("forward", "backward-data", "backward-filter")


def _words(
    network: str,
    batch: int | None,
    bounds: dict[str, Size],
    policy: str,
    types: str,
    layout: str,
    operations: Sequence[str],
    layers: Sequence[str],
    device: str | None,
    deterministic: bool,
    exact_class: bool,
) -> dict[str, Any]:
    given = {bound: value for bound, value in bounds.items() if value is not None}
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)}: give one of them")
    bound, value = next(iter(given.items()), ("workspace", None))
    return {
        "network": network,
        "batch": batch,
        "operations": list(operations),
        "layers": list(layers),
        "types": types,
        "layout": layout,
        "policy": policy,
        "bound": bound,
        "bytes": size(value),
        "device": device,
        "deterministic": deterministic,
        "exact_class": exact_class,
    }


def optimize(
    network: str,
    batch: int | None = None,
    *,
    workspace: Size = None,
    total_workspace: Size = None,
    one_workspace: Size = None,
    policy: str = "fit",
    types: str = "f32",
    layout: str = "nchw",
    operations: Sequence[str] = OPERATIONS,
    layers: Sequence[str] = (),
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    device: str | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
) -> Optimized:
    """Chooses for every convolution of a network the fastest way to run it within a workspace limit.

    Answers from measurements alone; ``tightfit profile`` makes them. Gives the numbers of
    ``tightfit optimize --backend replay:FILE``. Other Python threads go on meanwhile, and Ctrl-C stops it.

    Parameters
    ----------
    network
        A built-in network (see :func:`networks`) or a file of layers.
    batch
        Mini-batch, in samples; ``None`` takes what the layers of a list state.
    workspace, total_workspace, one_workspace
        A limit for each kernel (WR), one total divided among the kernels (WD), or one workspace that they share; bytes
        or words such as ``"64MiB"``. One of them, or none for no limit.
    policy
        Which recorded sizes may be micro-batches: ``"undivided"``, ``"power-of-two"``, ``"all"`` or ``"fit"``.
    types, layout
        As the command's options.
    operations, layers
        Only these; all layers where none is named.
    profile, cache
        Where the measurements are: a :class:`Profile`, files, or a cache; else the default cache.
    device
        A part of the device's name, where the profile has several.
    deterministic, exact_class
        Only algorithms that give the same bits every time; only those whose arithmetic is of the undivided choice's class.

    Returns
    -------
    Optimized
        Times in µs, workspace in bytes.

    Raises
    ------
    DoesNotFit
        If the limit is too small; ``needed_bytes`` says what would do.
    NotProfiled
        If the measured sizes of some kernel do not add up to the mini-batch.
    BadInput
        For unknown words.

    Notes
    -----
    Source: Oyama et al. 2018, III.B (WR) and III.C (WD).
    """
    bounds = {"workspace": workspace, "total_workspace": total_workspace, "one_workspace": one_workspace}
    words = _words(network, batch, bounds, policy, types, layout, operations, layers, device, deterministic, exact_class)
    return read_optimized(_native.optimize(Profile.of(profile, cache)._recordings, words))


def front(
    network: str,
    layer: str,
    operation: str = "forward",
    batch: int | None = None,
    *,
    workspace: Size = None,
    policy: str = "all",
    types: str = "f32",
    layout: str = "nchw",
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    device: str | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
) -> Front:
    """The Pareto front of one kernel: its configurations that no other beats in both time and workspace.

    Parameters and exceptions are those of :func:`optimize`.

    Returns
    -------
    Front
        Points by rising workspace (bytes), hence falling time (µs).

    Notes
    -----
    Source: Oyama et al. 2018, III.C, whose figure 6 draws it.
    """
    words = _words(network, batch, {"workspace": workspace}, policy, types, layout, [operation], [layer], device, deterministic, exact_class)
    return read_fronts(_native.front(Profile.of(profile, cache)._recordings, words))[0]
