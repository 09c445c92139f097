"""Which saved values of a division are offloaded, and when their bytes are on the device.

A value leaves after its last reader in the forward pass, and comes back before its first reader in the backward pass. The values that come back last
leave first: they are away at every peak between the two::

    forward    a made, read .. a leaves            backward             a comes back, read
                    b made, read .. b leaves                b comes back, read

Each direction of the link moves one value after another. A value that has left is held until its copy has ended, or until the room is used up, for
which the device waits. Values come back by the same rule in reversed time: as early as their copies take, unless the room is used up.

**Source**: the two streams and the prefetching of Rhu et al. 2016 (vDNN), section III, with a room in place of a window of layers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .candidates import Candidates
from .graph import Division, Graph, simulate, simulate_passes

__all__ = ["Course", "Link", "Moves", "course", "course_back"]

# Values of less than this share of the bytes of PyTorch's division stay on the device.
_SMALL = 1 / 4096
# The time on the device of the two copies of a value, in addition to their bytes: starting them, and waiting.
_COPIES_US = 10.0
# Copies slow the kernels that run at the same time: by this share of the time of the copies. Measured on an H200: 0.03 for an autoencoder, 0.1 for
# ResNet-50 and GPT-2, 0.3 for Swin, whose host is late as well.
_SLOWS = 0.05
# The most divisions of which the fewest moves are found.
_DIVISIONS = 8


@dataclass(frozen=True)
class Link:
    """Bytes per microsecond of copies to the host and to the device."""

    out: float
    into: float


@dataclass
class Course:
    """The bytes of moved values in one pass.

    Attributes
    ----------
    steps
        By move: in the forward pass, the step before which its bytes are given back; in the backward pass, the step before which they are allocated.
    stall_us
        The time for which the device waits for copies.
    peak
        Bytes at the peak.
    """

    steps: list[int]
    stall_us: float
    peak: int


def course(times: Sequence[float], bytes: Sequence[int], moves: Sequence[tuple[int, int]], rate: float, room: float) -> Course:
    """The course of a forward pass.

    Parameters
    ----------
    times, bytes
        By step, its microseconds, and the bytes that exist, if every moved value is given back right after its last reader.
    moves
        The step of the last reader of each moved value, and its bytes; steps never fall.
    rate
        Bytes per microsecond of the link.
    """
    steps = [len(times)] * len(moves)
    clock = until = stall = 0.0
    held = peak = begun = 0
    # Moves whose copies have begun, and the times at which the copies end.
    waiting: deque[tuple[int, float]] = deque()
    for step, (time, existing) in enumerate(zip(times, bytes, strict=True)):
        while waiting and (waiting[0][1] <= clock or existing + held > room):
            move, end = waiting.popleft()
            stall += max(end - clock, 0.0)
            clock = max(clock, end)
            held -= moves[move][1]
            steps[move] = step
        peak = max(peak, existing + held)
        clock += time
        while begun < len(moves) and moves[begun][0] <= step:
            until = max(until, clock) + moves[begun][1] / rate
            waiting.append((begun, until))
            held += moves[begun][1]
            begun += 1
    return Course(steps, stall + (max(until - clock, 0.0) if waiting else 0.0), peak)


def course_back(times: Sequence[float], bytes: Sequence[int], moves: Sequence[tuple[int, int]], rate: float, room: float) -> Course:
    """The course of a backward pass, whose moves hold the step of the first reader of each moved value."""
    count = len(times)
    found = course(times[::-1], bytes[::-1], [(count - 1 - step, size) for step, size in reversed(moves)], rate, room)
    return Course([count - step for step in reversed(found.steps)], found.stall_us, found.peak)


class Moves:
    """The offloaded values of divisions of one graph.

    Parameters
    ----------
    there
        Whether the value of each place is a tensor on the device.
    """

    def __init__(self, graph: Graph, loss: int, link: Link, there: Sequence[bool], plain: Division) -> None:
        self.graph = graph
        self.loss = loss
        self.link = link
        self.there = there
        self.least_bytes = int(max(plain.forward, plain.backward) * _SMALL) + 1
        self.returned = {graph.root[place] for place, value in enumerate(graph.values) if value.returned}
        self.orders: dict[frozenset[int], tuple[list[int], set[int]]] = {}
        self.movable: dict[frozenset[int], list[int]] = {}

    def fitting(self, known: Candidates, room: float, best: Division | None) -> Division | None:
        """The fastest division with offloaded values that fits and is faster than ``best``."""
        found, looked = None, 0
        _, first, second = simulate_passes(self.graph, known.plain.saved, self.loss, self._order(known.plain))
        forward_us, backward_us = sum(first.times), sum(second.times)

        def bound(division: Division) -> float:
            """A lower bound on the time: at least the bytes over the room are copied, at most for the time of all kernels without a wait."""
            over = max(known.peak(division) - room, 0.0)
            more = max(division.time_us - known.plain.time_us, 0.0)
            return division.time_us + max(over / self.link.out - forward_us, 0.0) + max(over / self.link.into - backward_us - more, 0.0)

        for choice in sorted((*known.theirs, *known.ours.values()), key=lambda one: bound(one.division)):
            limit = found or best
            if limit is not None and bound(choice.division) >= limit.time_us or looked >= _DIVISIONS:
                break
            moved = self._fewest(known, choice.division, room)
            looked += 1
            if moved is not None and (limit is None or moved.time_us < limit.time_us):
                found = moved
        return found

    def least(self, known: Candidates, divisions: Sequence[Division]) -> Division:
        """The division that needs the least bytes if every value is offloaded that can be, with the fewest moves for these bytes."""
        everything = [simulate(self.graph, one.saved, self.loss, self._order(one), frozenset(self._movable(one))) for one in divisions]
        smallest = min(everything, key=lambda one: one.peak)
        return self._fewest(known, smallest, known.peak(smallest)) or smallest

    def _order(self, division: Division) -> tuple[list[int], set[int]]:
        if division.saved not in self.orders:
            self.orders[division.saved] = self.graph.backward_order(set(division.saved))
        return self.orders[division.saved]

    def _movable(self, division: Division) -> list[int]:
        """The values that can be offloaded. The first ones come back last."""
        if division.saved not in self.movable:
            values, root = self.graph.values, self.graph.root
            count = Counter(root[place] for place in division.saved)
            found = [
                place for place in division.saved
                if root[place] == place and count[place] == 1 and place not in self.returned and self.there[place]
                and values[place].kind in ("kernel", "fused", "reduction", "part") and not values[place].resident and values[place].bytes >= self.least_bytes
            ]  # fmt: skip
            _, first, second = simulate_passes(self.graph, division.saved, self.loss, self._order(division), frozenset(found))
            read = [place for place in found if place in second.first and place in first.first]
            self.movable[division.saved] = sorted(read, key=lambda place: (-second.first[place], max(first.last[place], first.first[place])))
        return self.movable[division.saved]

    def _fewest(self, known: Candidates, division: Division, room: float) -> Division | None:
        """The division with the fewest moves with which it fits."""
        movable = self._movable(division)

        def moving(count: int) -> Division:
            return simulate(self.graph, division.saved, self.loss, self._order(division), frozenset(movable[:count]))

        if not movable or known.peak(moving(len(movable))) > room:
            return None
        fewer, more = 0, len(movable)
        while more - fewer > 1:
            middle = (fewer + more) // 2
            if known.peak(moving(middle)) <= room:
                more = middle
            else:
                fewer = middle
        return self._timed(known, division, frozenset(movable[:more]), room)

    def _timed(self, known: Candidates, division: Division, moved: frozenset[int], room: float) -> Division:
        """The division with these values offloaded, and the time for which the device waits."""
        found, first, second = simulate_passes(self.graph, division.saved, self.loss, self._order(division), moved)
        values = self.graph.values
        out = sorted((max(first.last[place], first.first[place]), values[place].bytes) for place in moved)
        back = sorted((second.first[place], values[place].bytes) for place in moved)
        # Rooms in computed bytes.
        forward, backward = room / known.ratios[False], (room - found.rest) / known.ratios[True]
        stall = course(first.times, first.bytes, out, self.link.out, forward).stall_us
        stall += course_back(second.times, second.bytes, back, self.link.into, backward).stall_us
        bytes = sum(values[place].bytes for place in moved)
        slower = _SLOWS * (bytes / self.link.out + bytes / self.link.into)
        return replace(found, time_us=found.time_us + stall + slower + _COPIES_US * len(moved))
