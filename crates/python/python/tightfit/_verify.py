"""Runs the optimizers' choices, and compares the results."""

from __future__ import annotations

from collections.abc import Sequence

from . import _native
from ._device import words as device_words
from ._networks import NetworkLike
from ._optimize import OPERATIONS, _words
from ._profile import PathLike, Size
from .errors import BadInput
from .results import Verified, read_verified

#: Seeds are below this, as those of the command.
_SEEDS = 1 << 64


def verify(
    network: NetworkLike,
    batch: int | None = None,
    *,
    workspace: Size = None,
    total_workspace: Size = None,
    one_workspace: Size = None,
    sizes: str = "fit",
    divide: str = "both",
    types: str = "f32",
    layout: str = "nchw",
    operations: Sequence[str] = OPERATIONS,
    layers: Sequence[str] = (),
    full: bool = False,
    values: str = "real",
    alpha: float = 1.0,
    beta: float = 0.0,
    seed: int = 1,
    backend: str = "auto",
    cache: PathLike | None = None,
    device: int = 0,
    threads: int | None = None,
    cudnn: PathLike | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
) -> Verified:
    """Optimizes a network's convolutions, runs the result, and compares it with undivided convolutions and 64-bit arithmetic.

    Does the same as ``tightfit verify``: adds missing measurements to the cache, on the device where the kernels then run.

    Parameters
    ----------
    network, batch, workspace, total_workspace, one_workspace, sizes, divide, types, layout, operations, layers
        As for :func:`tightfit.optimize`.
    full
        Compare every output with 64-bit arithmetic, instead of 4096 per kernel.
    values
        Inputs: ``"real"``, or ``"whole"`` (whole numbers, whose sums are exact).
    alpha, beta, seed
        Scale factors for the result and for the previous contents of the output; where the random numbers of the inputs begin.
    backend
        ``"auto"`` (a GPU if there is one, else the CPU), ``"cpu"`` or ``"cuda"``.
    cache
        The file that keeps measurements, or ``"none"``; by default, the default cache.
    device, threads, cudnn
        The number of the GPU; threads of the CPU; cuDNN's file or folder.
    deterministic, exact_class
        Use only deterministic algorithms; use only algorithms of the same numerical class as the undivided choice.

    Returns
    -------
    Verified
        ``passed`` says whether all results agree; otherwise ``fault`` names the kernels that differ.

    Raises
    ------
    DoesNotFit
        If the limit is too small; ``needed_bytes`` is the smallest limit that would work.
    BackendError
        If the device fails, or measuring takes more memory than there is.
    BadInput
        If a name or option is unknown.

    Notes
    -----
    Errors are relative: the largest difference over the largest output. Source: Oyama et al. 2018, III.

    Examples
    --------
    >>> found = verify("lenet", 4, workspace="1MiB", layers=["conv1"], sizes="undivided", backend="cpu", cache="none")
    >>> found.passed, len(found.kernels)
    (True, 3)
    """
    if backend == "replay":
        raise BadInput("backend='replay': a recording cannot run kernels; use 'auto', 'cpu' or 'cuda'")
    if not isinstance(device, int):
        raise BadInput(f"device={device!r}: kernels run on a GPU, which is named by its number, from 0")
    if not 0 <= seed < _SEEDS:
        raise BadInput(f"seed={seed}: use 0 to 2**64 - 1")
    _, on = device_words(backend, None, cache, device, threads, cudnn)
    bounds = {"workspace": workspace, "total_workspace": total_workspace, "one_workspace": one_workspace}
    what = _words(
        network, batch, bounds, sizes, types, layout, operations, layers, None, deterministic, exact_class, divide
    )
    how = {"full": full, "values": values, "alpha": alpha, "beta": beta, "seed": seed, "on": on}
    return read_verified(*_native.verify(what, how))
