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


class _Allocator:
    def __init__(self) -> None:
        self.large = _Segment()
        # Of small blocks: now, and at most.
        self.small = self.most_small = 0

    def take(self, size: int) -> tuple[int, int]:
        """The place and the length of a block; none for a small one."""
        length = -(-size // ROUND) * ROUND
        if length > SMALL:
            return self.large.take(length), length
        self.small += length
        self.most_small = max(self.most_small, self.small)
        return -1, length

    def give(self, begin: int, length: int) -> None:
        if length > SMALL:
            self.large.give(begin, length)
        else:
            self.small -= length

    @property
    def bytes(self) -> int:
        return self.large.end + self.most_small


def reserved(lives: Lives, outcome: Outcome, most: int | None = None) -> Reserved:
    """What the allocator reserves for a step of which this is predicted, and where that is more than `most`."""
    allocator, at = _Allocator(), None
    count = len(lives.operations)
    begins: list[list[int]] = [[] for _ in range(count)]
    ends: list[list[int]] = [[] for _ in range(count)]
    for number, (first, last, size) in enumerate(outcome.spans):
        if not size:
            continue
        if (first, last) == (0, count - 1):
            # It was there before, and stays.
            allocator.take(size)
        else:
            begins[first].append(number)
            ends[last].append(number)
    taken: dict[int, tuple[int, int]] = {}
    for index in range(count):
        for number in begins[index]:
            taken[number] = allocator.take(outcome.spans[number][2])
        beside = [allocator.take(size) for size in outcome.beside.get(index, ()) if size]
        if at is None and most is not None and allocator.bytes > most:
            at = index
        for block in (*beside, *(taken.pop(number) for number in ends[index])):
            allocator.give(*block)
    return Reserved(allocator.bytes, at)
