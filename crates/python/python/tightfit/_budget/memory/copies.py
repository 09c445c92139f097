"""Copies between the device and the host, and the host's arena.

A GPU has two streams for copies, with events. Bytes change hands on the compute stream alone: before a tensor's bytes are
given back, the compute stream waits for the copy out of them; a tensor is fetched into bytes that the compute stream
allocated, after it has reached that point::

    compute   conv .. E1 ..   wait E2, release   ..   allocate, E3   ..   wait E4, use
    out       wait E1, copy, E2
    in                                                wait E3, copy, E4

No tensor is recorded on another stream, so the allocator reuses bytes at once and memory does not grow.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from ..trace import follow_copies

__all__ = ["Copies", "CpuCopies", "CudaCopies", "copies_for", "current"]


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one: events, streams and random states belong to that, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Copies(Protocol):
    """The interface of a device for a pass: copies of whole storages, as bytes.

    A ticket stands for a copy on its way.
    """

    device: torch.device

    def arena(self, size: int) -> Tensor:
        """Host memory of this many bytes."""

    def pinned(self, size: int) -> Tensor | None:
        """Host memory that the device can access directly, or None if not all of it can be pinned."""

    def pinnable(self, size: int) -> int:
        """The most bytes, up to `size`, that can be pinned at once, found in a few attempts."""

    def begin(self) -> None:
        """Called before a pass. Later copies may overwrite the arena."""

    def room(self, size: int) -> Tensor:
        """Allocates this many bytes on the device."""

    def out(self, tensor: Tensor, host: Tensor) -> Any:
        """Copies a tensor's whole storage to the host."""

    def into(self, host: Tensor, device: Tensor) -> Any:
        """Copies to the device."""

    def wait(self, ticket: Any) -> None:
        """Makes all later work on the device wait for the copy."""


class _OnDevice:
    """The methods that do not depend on the kind of device."""

    device: torch.device

    def room(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def _bytes_of(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


class CpuCopies(_OnDevice):
    """Plain copies, for models on the CPU."""

    device = torch.device("cpu")

    def arena(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def pinned(self, size: int) -> Tensor | None:
        return self.arena(size)

    def pinnable(self, size: int) -> int:
        return size

    def begin(self) -> None:
        pass

    def out(self, tensor: Tensor, host: Tensor) -> Any:
        host.copy_(_bytes_of(tensor))

    def into(self, host: Tensor, device: Tensor) -> Any:
        device.copy_(host)

    def wait(self, ticket: Any) -> None:
        pass


# Halvings in the search for the largest size that can be pinned.
_PIN_TRIES = 6


class _Pinned(mmap.mmap):
    """Pinned host memory, which the GPU accesses directly. If no more memory can be pinned, it stays pageable, which is only slower."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        runtime = torch.cuda.cudart()
        self.pinned = int(runtime.cudaHostRegister(self.address, len(self), 0)) == 0
        if not self.pinned:
            _forget_error()

    def __del__(self) -> None:
        # Before the memory is unmapped.
        if self.pinned:
            torch.cuda.synchronize(self.device)
            torch.cuda.cudart().cudaHostUnregister(self.address)


def _forget_error() -> None:
    """Clears the runtime's last error, which the next kernel launch would otherwise report as its own."""
    # The runtime that PyTorch loaded has it; PyTorch's own bindings have no such call.
    for name in (None, f"libcudart.so.{(torch.version.cuda or '12').split('.')[0]}"):
        try:
            ctypes.CDLL(name).cudaGetLastError()
        except (OSError, AttributeError):
            continue
        return


def _tensor_of(memory: _Pinned, size: int) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]


class _Ticket:
    """A running copy. After the wait for it, its event is reused."""

    __slots__ = ("done",)

    def __init__(self, done: Any) -> None:
        self.done = done


@functools.cache
def _driver() -> Any:
    """The driver's asynchronous copy between any two addresses. PyTorch's `copy_` does the same, on the current stream, and takes the host several times
    as long."""
    copy = ctypes.CDLL("libcuda.so.1").cuMemcpyAsync
    copy.argtypes = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
    return copy


class CudaCopies(_OnDevice):
    """Asynchronous copies of one GPU, in and out at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = torch.cuda.current_device() if device.index is None else device.index
        # The stream that computes, and its identity.
        self.computes: tuple[Any, Any] = None, None
        self.stream_out = torch.cuda.Stream(device)
        self.stream_in = torch.cuda.Stream(device)
        # Events for reuse, which nothing will wait for again. A stream that already waits for an event is not affected by a later record of it.
        self.spare: list[Any] = []

    def arena(self, size: int) -> Tensor:
        """Pinned memory of exactly this size (PyTorch's own allocator rounds up to a power of two)."""
        with current(self.device):
            return _tensor_of(_Pinned(-1, max(size, 1)), size)

    def pinned(self, size: int) -> Tensor | None:
        with current(self.device):
            memory = _Pinned(-1, max(size, 1))
            return _tensor_of(memory, size) if memory.pinned else None

    def pinnable(self, size: int) -> int:
        least, most = 0, size
        with current(self.device):
            for _ in range(_PIN_TRIES):
                middle = (least + most) // 2
                if middle == 0:
                    break
                if _Pinned(-1, middle).pinned:
                    least = middle
                else:
                    most = middle
        return least

    def begin(self) -> None:
        # Copies to the device that nothing waited for may still read the arena.
        self.stream_out.wait_stream(self.stream_in)

    def _event(self) -> Any:
        try:
            return self.spare.pop()
        except IndexError:
            # Another thread may have taken the last one.
            return torch.cuda.Event()

    def _compute(self) -> Any:
        """The current stream. `torch.cuda.current_stream` makes an object of it in every call."""
        identity = torch._C._cuda_getCurrentStream(self.index)
        known, stream = self.computes
        if known != identity:
            stream = torch.cuda.Stream(stream_id=identity[0], device_index=identity[1], device_type=identity[2])
            self.computes = identity, stream
        return stream

    def _copy(self, stream: Any, copy: Callable[[], None]) -> _Ticket:
        ready = self._event()
        ready.record(self._compute())
        ready.wait(stream)
        self.spare.append(ready)
        done = self._event()
        # The driver copies in the context of the current device.
        with nullcontext() if torch._C._cuda_getDevice() == self.index else torch.cuda.device(self.index):
            copy()
        done.record(stream)
        return _Ticket(done)

    def _bytes(self, stream: Any, source: int, target: int, size: int) -> _Ticket:
        """Copies bytes from one address to another. The memory on the host must outlive the copy."""
        def copy() -> None:
            status = _driver()(target, source, size, stream.cuda_stream) if size else 0
            if status:
                raise RuntimeError(f"tightfit: the driver refused to copy {size} bytes between device and host (CUresult {status})")

        return self._copy(stream, copy)

    def _tensor(self, stream: Any, source: Tensor, target: Tensor) -> _Ticket:
        """Copies a tensor. PyTorch's allocator of pinned memory learns until when the copy uses its memory."""
        def copy() -> None:
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)

        return self._copy(stream, copy)

    def out(self, tensor: Tensor, host: Tensor) -> Any:
        storage = tensor.untyped_storage()
        return self._bytes(self.stream_out, storage.data_ptr(), host.data_ptr(), storage.nbytes())

    def into(self, host: Tensor, device: Tensor) -> Any:
        return self._bytes(self.stream_in, host.data_ptr(), device.data_ptr(), host.nbytes)

    def out_of(self, part: Tensor, host: Tensor) -> Any:
        """Copies a tensor, which may be a part of a storage, to pinned memory of PyTorch."""
        return self._tensor(self.stream_out, part, host)

    def into_part(self, host: Tensor, part: Tensor) -> Any:
        """Copies pinned memory of PyTorch to a tensor."""
        return self._tensor(self.stream_in, host, part)

    def wait(self, ticket: Any) -> None:
        done, ticket.done = ticket.done, None
        if done is not None:
            done.wait(self._compute())
            self.spare.append(done)


def copies_for(device: torch.device) -> Copies:
    """Copies for models on this device."""
    copies = CudaCopies(device) if device.type == "cuda" else CpuCopies()
    follow_copies(copies)
    return copies
