"""Predicts what PyTorch's allocator reserves for a step: more than is allocated, because of gaps between blocks.

It takes the caching allocator of a GPU, whose segments grow, for this::

    block     a multiple of 512 bytes; those of at most 1 MiB are in a segment of their own, of which gaps count as none
    request   takes the shortest free block that is long enough, the last one last; else the segment grows by pages
    release   joins free neighbors; no page is given back

Source: ``c10/cuda/CUDACachingAllocator.cpp``, with ``expandable_segments``. Of four plain steps on an H200 it predicts within 2% what was
reserved, of five plans with gaps of 5 to 24% within 3% (docs/results.md).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import accumulate
from typing import NamedTuple

from .rebuild import Lives
from .simulate import Outcome

__all__ = ["Reserved", "reserved"]

ROUND = 512
# The largest block of the segment for small ones, and the pages by which the other grows.
SMALL, PAGE = 1 << 20, 20 << 20


class Reserved(NamedTuple):
    """What the allocator reserves for a step, in bytes, and the first operation at which that is more than was asked for; None if it never is."""

    bytes: int
    at: int | None


def _length(size: int) -> int:
    """Of a block for so many bytes."""
    return -(-size // ROUND) * ROUND


class _Segment:
    """A segment that grows: its free blocks by length, and by both ends."""

    def __init__(self) -> None:
        self.end = 0
        self.free: list[tuple[int, int]] = []
        self.lengths: dict[int, int] = {}
        self.begins: dict[int, int] = {}

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
        place = bisect_left(self.free, (length, -1))
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


def reserved(lives: Lives, outcome: Outcome, most: int | None = None) -> Reserved:
    """What the allocator reserves for a step of which this is predicted, and where that is more than `most`."""
    count = len(lives.operations)
    begins: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    # By operation, how many bytes more there are of small blocks.
    small = [0] * (count + 1)
    segment = _Segment()
    for first, last, size in outcome.spans:
        length = _length(size)
        if length <= SMALL:
            small[first] += length
            small[last + 1] -= length
        elif (first, last) == (0, count - 1):
            # It was there before, and stays.
            segment.take(length)
        else:
            begins[first].append((last, length))
    at, most_small = None, 0
    ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for index, there in enumerate(accumulate(small[:-1])):
        for last, length in begins[index]:
            ends[last].append((segment.take(length), length))
        beside = [_length(size) for size in outcome.beside.get(index, ())]
        most_small = max(most_small, there + sum(length for length in beside if length <= SMALL))
        for length in beside:
            if length > SMALL:
                ends[index].append((segment.take(length), length))
        if at is None and most is not None and segment.end + most_small > most:
            at = index
        for begin, length in ends[index]:
            segment.give(begin, length)
    return Reserved(segment.end + most_small, at)
