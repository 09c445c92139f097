"""The operators by which compiled graphs offload saved values.

The forward graph copies a value to pinned host memory on a separate stream, and gives back its bytes later. The backward graph copies it back
ahead of its first reader::

    compute   last reader  ..  release, free x   ..          ..  allocate y   ..  wait, first reader
    out                 offload x -> host
    in                                                            prefetch host -> y

The results of `release` and `wait` share the bytes of their first argument, so that every reader depends on the copy. On a CPU, the copies are
plain copies at the time of the call. Pinned memory comes from PyTorch's own pool, which reuses it once the copies from it have ended.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..memory.copies import Copies, CudaCopies, copies_for

__all__ = ["NAMESPACE", "copies_of", "offload", "prefetch", "release", "wait"]

NAMESPACE = "tightfit"
# Inductor leaves the layout of arguments as it is.
_TAGS = (torch.Tag.flexible_layout,)

_library = torch.library.Library(NAMESPACE, "DEF")
# Inductor has a rule for the layout of its argument.
_library.define("offload(Tensor x) -> Tensor")
_library.define("release(Tensor(a) host, Tensor x) -> Tensor(a)", tags=_TAGS)
_library.define("prefetch(Tensor host, Device device) -> Tensor", tags=_TAGS)
_library.define("wait(Tensor(a) x) -> Tensor(a)", tags=_TAGS)

_copies: dict[torch.device, Copies] = {}
# Running copies, by the address of the memory that they write, and the memory that they read. Nobody else gets either before the wait for the copy.
_running: dict[int, tuple[Any, Tensor]] = {}


def copies_of(device: torch.device) -> CudaCopies:
    """The copies of a GPU, by the streams that all its graphs share."""
    if device not in _copies:
        _copies[device] = copies_for(device)
    return _copies[device]  # type: ignore[return-value]


def _like(x: Tensor, device: torch.device, pin: bool = False) -> Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device, pin_memory=pin)


def _flat(x: Tensor) -> Tensor:
    """The memory of a tensor, with the gaps between its elements, so that one copy moves it."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.size(), x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((extent,), (1,))


def _offload(x: Tensor) -> Tensor:
    host = _like(x, torch.device("cpu"), x.is_cuda)
    if x.is_cuda:
        _running[host.data_ptr()] = copies_of(x.device).out_of(_flat(x), _flat(host)), x
    else:
        _flat(host).copy_(_flat(x))
    return host


def _release(host: Tensor, x: Tensor) -> Tensor:
    if x.is_cuda:
        copies_of(x.device).wait(_running.pop(host.data_ptr())[0])
    return host


def _prefetch(host: Tensor, device: torch.device) -> Tensor:
    x = _like(host, device)
    if x.is_cuda:
        _running[x.data_ptr()] = copies_of(x.device).into_part(_flat(host), _flat(x)), host
    else:
        _flat(x).copy_(_flat(host))
    return x


def _wait(x: Tensor) -> Tensor:
    if x.is_cuda:
        copies_of(x.device).wait(_running.pop(x.data_ptr())[0])
    return x


for _name, _run in (("offload", _offload), ("release", _release), ("prefetch", _prefetch), ("wait", _wait)):
    _library.impl(_name, _run, "CompositeExplicitAutograd")

torch.library.register_fake(f"{NAMESPACE}::offload", lambda x: _like(x, torch.device("cpu")), lib=_library)
torch.library.register_fake(f"{NAMESPACE}::release", lambda host, x: host, lib=_library)
torch.library.register_fake(f"{NAMESPACE}::prefetch", _like, lib=_library)
torch.library.register_fake(f"{NAMESPACE}::wait", lambda x: x, lib=_library)

offload = torch.ops.tightfit.offload.default
release = torch.ops.tightfit.release.default
prefetch = torch.ops.tightfit.prefetch.default
wait = torch.ops.tightfit.wait.default
