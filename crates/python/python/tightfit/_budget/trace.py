"""Records steps over time for ``tightfit run --trace``: phases, copies, reruns and memory.

Nothing is recorded, and nothing costs time, until :func:`begin` is called. On a GPU, a mark is also an event on the stream, whose time is read
once the GPU has passed it, so that nothing is waited for.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

__all__ = ["Mark", "Record", "Span", "begin", "follow_copies", "record", "rerunning"]

# Microseconds between two samples of the memory. PyTorch takes 10 to 20 us for its statistics.
_EVERY = 100.0


class Mark(NamedTuple):
    """A moment: on the host, in us, and on a stream of the GPU if there is one."""

    host: float
    event: Any


class Span(NamedTuple):
    """An activity between two marks."""

    track: str
    name: str
    begin: Mark
    end: Mark
    bytes: int | None = None


class Record:
    """Spans and samples that are not written yet.

    Attributes
    ----------
    device
        The device of the first model.
    spans
        Spans that have ended.
    memory
        Bytes over time: in use on the GPU, as PyTorch's allocator counts them; on a CPU, which has no such count, resident in the process.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.spans: list[Span] = []
        self.memory: list[tuple[float, int]] = []
        self._sampled = 0.0
        self._resident = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def mark(self, stream: Any = None) -> Mark:
        """Marks the current moment, on the given stream of the GPU or on the current one."""
        event = None
        if self.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event(enable_timing=True)
            event.record(stream or torch.cuda.current_stream(self.device))
        return Mark(self.sample(), event)

    def sample(self) -> float:
        """The time; notes the memory in use, if it was not noted just before."""
        now = time.perf_counter_ns() / 1e3
        if now - self._sampled < _EVERY:
            return now
        self._sampled = now
        if self.device.type == "cuda":
            used = int(torch.cuda.memory_stats_as_nested_dict(self.device)["allocated_bytes"]["all"]["current"])
        else:
            used = self._page * int(os.pread(self._resident, 64, 0).split()[1])
        self.memory.append((now, used))
        return now

    def end(self, track: str, name: str, begin: Mark, bytes: int | None = None, stream: Any = None) -> None:
        """Notes what ends now."""
        self.spans.append(Span(track, name, begin, self.mark(stream), bytes))


# The record of this process, while something is recorded.
record: Record | None = None


def begin(wanted: Record | None) -> None:
    """Records from now on, or stops with None."""
    global record
    record = wanted


_NOTHING: AbstractContextManager[None] = nullcontext()


def rerunning(call: Any) -> AbstractContextManager[None]:
    """Records a rerun."""
    return _NOTHING if record is None else _rerunning(record, call)


@contextmanager
def _rerunning(record: Record, call: Any) -> Iterator[None]:
    mark = record.mark()
    try:
        yield
    finally:
        function = getattr(call, "function", None)
        record.end("reruns", getattr(function, "__name__", str(function)), mark)


def follow_copies(copies: Any) -> None:
    """Records the copies of a device."""
    if record is not None:
        copies.out = _timed(copies.out, "copies to the host", getattr(copies, "stream_out", None))
        copies.into = _timed(copies.into, "copies from the host", getattr(copies, "stream_in", None))


def _timed(copy: Any, track: str, stream: Any) -> Any:
    @functools.wraps(copy)
    def timed(source: Any, target: Any) -> Any:
        if record is None:
            return copy(source, target)
        if stream is not None:
            # The copy waits for it, too.
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        mark = record.mark(stream)
        ticket = copy(source, target)
        record.end(track, "copy", mark, int(target.numel()), stream)
        return ticket

    return timed
