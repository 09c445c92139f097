"""Workspace limits of convolutions, set by the program itself while it runs under ``tightfit run``::

    tightfit run -- python train.py

    names = tightfit.torch.name_layers(student, "student.")     # in train.py, before the first step
    tightfit.set_limits(workspace="64MiB", layers=names.layers)
    tightfit.set_limits(tune="cached")                          # for all convolutions
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence

from ._native import parse_size
from .errors import BadInput, Error, NotPreloaded

__all__ = ["set_limits"]

# As in tightfit.h.
_BAD_VALUE = -1
_OFF = -2


def set_limits(
    *,
    workspace: str | int | None = None,
    total_workspace: str | int | None = None,
    sizes: str | None = None,
    tune: str | None = None,
    layers: Sequence[str] | None = None,
) -> int:
    """Sets limits for the convolutions that this process plans from now on.

    Settings that are not given stay as they are, and ``"default"`` takes back the setting of an earlier call. A convolution that was planned before
    keeps the workspace that was reported to the framework, and runs in less where it can. Layers with equal convolutions on one thread share the
    least of their limits, because frameworks keep one plan for them. So call this before the first step.

    Parameters
    ----------
    workspace
        The most that each convolution may use, such as ``"64MiB"``, or in bytes; ``"auto"`` for the workspace of the framework's own choice.
    total_workspace
        Instead, the most that all convolutions of a device may use together; not with ``layers``. It keeps its size on a
        device where it is in use.
    sizes
        Micro-batch sizes: ``"undivided"``, ``"power-of-two"``, ``"all"`` or ``"fit"``.
    tune
        How configurations are found: ``"measure"`` (between the program's calls), ``"first"`` (before a convolution first
        runs), ``"cached"`` or ``"heuristic"``.
    layers
        The layers to set this for, by the names of :func:`tightfit.torch.name_layers`; ``None`` for all convolutions. The setting of a layer comes
        before the setting for all.

    Returns
    -------
    int
        How many convolutions (one operation of one shape on one device each) were planned before and cannot follow: more workspace was reported to
        the framework, or less than the new limit allows, other sizes or another mode would have to be tried, or a CUDA graph has captured them.

    Raises
    ------
    NotPreloaded
        If tightfit's library is not preloaded, or changes nothing in this process.
    BadInput
        If a value is invalid; nothing is changed then.
    """
    given = {"workspace": workspace, "total-workspace": total_workspace, "sizes": sizes, "tune": tune}
    words = {name: str(value) for name, value in given.items() if value is not None}
    if not words:
        raise BadInput("nothing to set: give workspace, total_workspace, sizes or tune")
    for name, value in words.items():
        if "," in value or "\0" in value:
            raise BadInput(f"{name} is {value!r}: a value has no comma and no null character")
    for size in (workspace, total_workspace):
        # The library judges the size; this warns of a number without a unit.
        if isinstance(size, str):
            with contextlib.suppress(BadInput):
                parse_size(size)
    names = None if layers is None else [layers] if isinstance(layers, str) else list(layers)
    if any("\0" in name for name in names or []):
        raise BadInput(f"{names}: a name has no null character")
    try:
        library = ctypes.PyDLL(None)
        function, last_error = library.tightfitSetLimits, library.tightfitLastError
    except (AttributeError, OSError):
        raise NotPreloaded(
            "tightfit's library is not preloaded, so nothing limits convolutions: start the program with "
            "`tightfit run -- python ..`"
        ) from None
    function.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int]
    last_error.restype = ctypes.c_char_p
    array = None if names is None else (ctypes.c_char_p * (len(names) + 1))(*(name.encode() for name in names))
    settings = ",".join(f"{name}={value}" for name, value in words.items())
    result = int(function(settings.encode(), array, 0 if names is None else len(names)))
    if result >= 0:
        return result
    message = (last_error() or b"").decode(errors="replace")
    if result == _BAD_VALUE:
        raise BadInput(message)
    if result == _OFF:
        raise NotPreloaded(message)
    raise Error(message)
