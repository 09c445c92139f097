"""Predicts what PyTorch's allocator reserves for a step: more than is allocated, because of gaps between blocks.

It takes the caching allocator of a GPU, whose segments grow, for this::

    block     a multiple of 512 bytes; those of at most 1 MiB are in a segment of their own, of which gaps count as none
    request   takes the shortest free block that is long enough, the last one last; else the segment grows by pages
    release   joins free neighbors; no page is given back

Source: ``c10/cuda/CUDACachingAllocator.cpp``, with ``expandable_segments``. docs/results.md has how far predictions are off.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from .rebuild import Lives
from .simulate import Block, Outcome, Span

__all__ = ["Reserved", "SMALL", "There", "reserved"]

_Made = TypeVar("_Made", Block, Span)
ROUND = 512
# The largest block of the segment for small ones, and the pages by which the other grows.
SMALL, PAGE = 1 << 20, 20 << 20


class There(NamedTuple):
    """What the allocator has reserved before a step, in segments for large blocks that do not grow: bytes, and its free blocks. What stays
    from step to step is in these, as far as it is there."""

    bytes: int = 0
    free: Sequence[int] = ()

    @property
    def taken(self) -> int:
        return self.bytes - sum(self.free)


class Reserved(NamedTuple):
    """What the allocator reserves for a step, in bytes, and the first operation at which that is more than was asked for; None if it never is."""

    bytes: int
    at: int | None


def _length(size: int) -> int:
    """Of a block for so many bytes."""
    return -(-size // ROUND) * ROUND


class _Segment:
    """A segment that grows, and free blocks of others: by length, and by both ends."""

    def __init__(self, others: Sequence[int] = ()) -> None:
        self.end = 0
        self.free: list[tuple[int, int]] = []
        self.lengths: dict[int, int] = {}
        self.begins: dict[int, int] = {}
        # These are below, and touch none.
        place = 0
        for length in others:
            place -= length + ROUND
            self._add(place, length)

    def _add(self, begin: int, length: int) -> None:
        self.lengths[begin] = length
        self.begins[begin + length] = begin
        insort(self.free, (length, begin))

    def _remove(self, begin: int) -> int:
        length = self.lengths.pop(begin)
        del self.begins[begin + length]
        self.free.pop(bisect_left(self.free, (length, begin)))
        return length

    def take(self, length: int) -> int:
        """The place of a block of this length."""
        place = bisect_left(self.free, (length,))
        # The one at the end can grow, so it counts as the longest.
        if place < len(self.free) - 1 and sum(self.free[place]) == self.end:
            place += 1
        if place < len(self.free):
            begin = self.free[place][1]
            there = self._remove(begin)
        else:
            begin = self.begins.get(self.end, self.end)
            there = self._remove(begin) if begin < self.end else 0
            pages = -(-(length - there) // PAGE)
            self.end += pages * PAGE
            there += pages * PAGE
        if there > length:
            self._add(begin + length, there - length)
        return begin

    def give(self, begin: int, length: int) -> None:
        """Releases a block."""
        if begin in self.begins:
            before = self.begins[begin]
            length += self._remove(before)
            begin = before
        if begin + length in self.lengths:
            length += self._remove(begin + length)
        self._add(begin, length)


class _Replay:
    """A step, as the allocator sees it."""

    def __init__(self, lives: Lives, outcome: Outcome, there: There) -> None:
        self.lives = lives
        self.outcome = outcome
        count = len(lives.operations)
        self.segment = _Segment(there.free)
        self.before = there.bytes
        # By operation, spans that begin there, blocks that end there, and how many bytes more there are of small ones.
        self.begins: list[list[Span]] = [[] for _ in range(count)]
        self.ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.small = [0] * (count + 1)
        # The most small bytes that an operation takes and gives back.
        self.beside = [0] * count
        taken = there.taken
        for span in outcome.spans:
            length = _length(span.bytes)
            if length <= SMALL:
                self.small[span.first] += length
                self.small[span.last + 1] -= length
            elif (span.first, span.last) != (0, count - 1):
                self.begins[span.first].append(span)
            elif taken >= length:
                # It stays from step to step, and is there.
                taken -= length
            else:
                self.segment.take(length)

    def run(self, most: int | None) -> Reserved:
        at, most_small = None, 0
        for index, small in enumerate(accumulate(self.small[:-1])):
            self.one(index)
            most_small = max(most_small, small + self.beside[index])
            if at is None and most is not None and self.before + self.segment.end + most_small > most:
                at = index
            for begin, length in self.ends[index]:
                self.segment.give(begin, length)
        return Reserved(self.before + self.segment.end + most_small, at)

    def one(self, index: int) -> None:
        """Fetches, reruns and then the operation itself."""
        spans = {span.tensor: span for span in self.begins[index]}
        own = [spans.pop(tensor) for tensor in self.lives.operations[index]["writes"] if tensor in spans]
        calls = self.outcome.reruns.get(index, ())
        rebuilt = {number for call in calls for number, _ in (*call.copies, *call.makes)}
        stay = {number: spans.pop(tensor) for number in rebuilt if (tensor := self.outcome.stay.get(number)) in spans}
        for span in spans.values():
            self.hold(span)
        held: dict[int, tuple[int, int]] = {}

        def take(block: Block) -> None:
            span = stay.get(block.number)
            if span is not None:
                self.hold(span)
            elif (length := _length(block.bytes)) > SMALL:
                held[block.number] = self.segment.take(length), length

        for call in calls:
            for block in call.copies:
                take(block)
            if call.operation >= 0:
                self.call(index, call.operation, call.makes, take)
            for number in call.drops:
                if number in held:
                    self.segment.give(*held.pop(number))
        self.call(index, index, own, self.hold)

    def call(self, index: int, operation: int, makes: Sequence[_Made], take: Callable[[_Made], None]) -> None:
        """A call at `index` of an operation, whose results `take` takes, among its workspaces."""
        workspaces = self.lives.workspaces[operation]
        results = iter([made for made in makes if made.bytes > SMALL])
        # Those of whose place nothing is known come first.
        for made in islice(results, max(0, sum(made.bytes > SMALL for made in makes) - workspaces.count(0))):
            take(made)
        blocks: list[tuple[int, int] | None] = []
        small = 0
        for size in workspaces:
            if size < 0:
                block = blocks[-1 - size]
                if block is not None:
                    self.segment.give(*block)
            elif size == 0:
                if (made := next(results, None)) is not None:
                    take(made)
            elif (length := _length(size)) > SMALL:
                blocks.append((self.segment.take(length), length))
            else:
                blocks.append(None)
                small += length
        self.beside[index] = max(self.beside[index], small)

    def hold(self, span: Span) -> None:
        length = _length(span.bytes)
        self.ends[span.last].append((self.segment.take(length), length))


def reserved(lives: Lives, outcome: Outcome, most: int | None = None, there: There = There()) -> Reserved:
    """What the allocator reserves for a step of which this is predicted, and where that is more than `most`."""
    return _Replay(lives, outcome, there).run(most)
