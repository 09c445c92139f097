"""A joint graph as plain data, and the simulation of its divisions: bytes at the peak, and time.

A joint graph holds the forward pass and then the backward pass. A division names the values that the forward pass saves. The backward pass
recomputes the others, each right before its first reader::

    joint     x -> conv -> y -> relu -> z -> ..        gradients of z, of y, of x
    saved y   forward: conv, relu, ..                  backward: relu again, then as in the joint graph

Inductor fuses operations of the kinds ``fused`` and ``reduction``, and most of their results are never written to memory. A value is written
if it is saved or returned, if an unfused kernel reads it, or if one of its readers waits for another unfused kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# Inductor writes a value to memory if computing it reads more values than this, with several readers or with one.
_READS_SHARED, _READS = 4, 8

__all__ = ["Division", "Graph", "Order", "Pass", "Rates", "Value", "simulate", "simulate_passes"]


@dataclass
class Value:
    """One node of a joint graph.

    Attributes
    ----------
    kind
        ``input``, ``tangent`` (the gradient of an output), ``view`` (shares the bytes of its first input), ``part`` (one of several results),
        ``fused`` (computed where it is read), ``reduction`` (fused, over many elements), ``kernel`` (one library call), ``none`` (a size, or a
        group of results).
    bytes
        Bytes of the value; 0 for views.
    inputs
        Places of the values that it reads.
    forward, backward
        Whether the forward pass needs it, and whether it depends on the gradients of the outputs.
    wanted
        Whether the backward pass returns it or needs it.
    returned
        Whether the forward pass returns it.
    resident
        Whether the program holds it anyway: parameters, buffers and inputs.
    rerun
        Whether it is recomputed: ``may``, ``must`` or ``never``.
    saved
        Whether it can be saved.
    us
        Time of a kernel in microseconds.
    apart
        Whether its readers run in another kernel: the sum over a batch is complete only when a kernel ends.
    extra
        Bytes that a kernel uses while it runs, in addition to its operands and results.
    stored
        Whether Inductor never computes it once more in each reader, as random numbers.
    """

    name: str
    kind: str
    bytes: int
    inputs: tuple[int, ...]
    forward: bool = False
    backward: bool = False
    wanted: bool = False
    returned: bool = False
    resident: bool = False
    rerun: str = "never"
    saved: bool = True
    us: float = 0.0
    extra: int = 0
    apart: bool = False
    stored: bool = False
    users: list[int] = field(default_factory=list)


@dataclass
class Rates:
    """Speed of a device: bytes per microsecond of its memory, and microseconds to start a kernel."""

    memory: float
    start: float = 2.0


class Graph:
    """The values of a joint graph, in its order.

    Attributes
    ----------
    fuses
        Whether the inner compiler fuses operations. If not, every value is written to memory.
    gradients
        Bytes of the gradients of other graphs that exist in the backward pass.
    hands_on
        Whether its outputs are read by later graphs alone, so they are free once the backward passes of these have run.
    """

    def __init__(self, values: list[Value], rates: Rates, fuses: bool = True) -> None:
        self.values = values
        self.rates = rates
        self.fuses = fuses
        self.gradients = 0
        self.hands_on = False
        for value in values:
            value.users = []
        for place, value in enumerate(values):
            for read in value.inputs:
                values[read].users.append(place)
        # A view shares the bytes of its root.
        self.root: list[int] = []
        for place, value in enumerate(values):
            self.root.append(self.root[value.inputs[0]] if value.kind == "view" and value.inputs else place)
        # The attributes that passes read most often.
        self.bytes = [value.bytes for value in values]
        self.inputs = [value.inputs for value in values]
        self.is_fused = [value.kind in ("fused", "reduction") for value in values]
        self.is_called = [value.kind in ("kernel", "part") for value in values]
        self.ends_phase = [value.kind in ("kernel", "part") or value.apart for value in values]
        # Forward passes in order, by the values that only the backward pass reads.
        self.forward_orders: dict[frozenset[int], Order] = {}

    def forward_of(self, saved: Iterable[int]) -> Order:
        """The forward pass of a division: values that it needs itself, and saved values that only the backward pass reads."""
        stack = [place for place in saved if not self.values[place].forward]
        more: set[int] = set()
        while stack:
            place = stack.pop()
            if place not in more and not self.values[place].forward:
                more.add(place)
                stack += self.values[place].inputs
        key = frozenset(more)
        found = self.forward_orders.get(key)
        if found is None:
            places = (place for place, value in enumerate(self.values) if (value.forward or place in more) and value.kind != "input")
            found = self.forward_orders[key] = Order(self, list(places))
        return found

    def backward_order(self, saved: set[int]) -> tuple[list[int], set[int]]:
        """The backward pass of a division in PyTorch's order, and the values that it recomputes."""
        values = self.values
        order: list[int] = []
        known = set(saved)
        again: set[int] = set()
        for place, value in enumerate(values):
            if place in known or not (value.backward or value.wanted):
                continue
            needed: list[int] = []
            stack = [place]
            seen = set()
            while stack:
                one = stack.pop()
                if one in known or one in seen:
                    continue
                seen.add(one)
                needed.append(one)
                if values[one].kind not in ("input", "tangent"):
                    stack += values[one].inputs
            needed.sort()
            order += needed
            known.update(needed)
            again.update(one for one in needed if not values[one].backward and values[one].kind not in ("input", "tangent"))
        return order, again


@dataclass
class Division:
    """The bytes and time of a division.

    Attributes
    ----------
    saved
        Places of the values that the forward pass saves.
    forward, backward
        Peak bytes of each pass, resident values excluded.
    start
        Bytes when the backward pass begins, including the program's loss.
    rest
        Bytes of outputs, their gradients, and gradients of other graphs. They count in the backward pass, but are no buffers of its graph.
    time_us
        Time that differs between divisions: memory traffic of fused kernels, and kernels that run again.
    live
        Places of the values that exist at the peak.
    at
        The name of the operation at the peak.
    pass_at
        The pass of that operation.
    again
        The number of recomputed values.
    moved
        Places of the saved values that are offloaded. They are on the device up to their last reader in the forward pass, and from their first reader
        in the backward pass.
    kept
        Bytes of the saved values and the results that stay on the device between the passes.
    """

    saved: frozenset[int]
    forward: int
    backward: int
    start: int
    rest: int
    time_us: float
    live: set[int]
    at: str
    pass_at: str
    again: int
    moved: frozenset[int] = frozenset()
    kept: int = 0

    @property
    def peak(self) -> int:
        """Peak bytes of both passes."""
        return max(self.forward, self.backward, self.start)

    @property
    def key(self) -> tuple[frozenset[int], frozenset[int]]:
        """The decisions of the division."""
        return self.saved, self.moved


def simulate(
    graph: Graph, saved: Iterable[int], loss: int = 0, backward: tuple[list[int], set[int]] | None = None, moved: frozenset[int] = frozenset()
) -> Division:
    """Simulates a division. The program's loss and the outputs' gradients take ``loss`` more bytes when the backward pass begins.

    ``backward`` is the division's `Graph.backward_order`, if it is known.
    """
    return simulate_passes(graph, saved, loss, backward, moved)[0]


def simulate_passes(
    graph: Graph, saved: Iterable[int], loss: int = 0, backward: tuple[list[int], set[int]] | None = None, moved: frozenset[int] = frozenset()
) -> tuple[Division, Pass, Pass]:
    """As `simulate`, with both passes."""
    kept = set(saved)
    values, root = graph.values, graph.root
    held = {root[place] for place in kept if place not in moved} | {root[place] for place, value in enumerate(values) if value.returned}
    first = Pass(graph, graph.forward_of(kept), held)
    order, again = backward or graph.backward_order(kept)
    there = {root[place] for place in kept if place not in moved and not values[root[place]].resident}
    wanted = {root[place] for place, value in enumerate(values) if value.wanted}
    second = Pass(graph, Order(graph, [place for place in order if values[place].kind not in ("input", "tangent")]), wanted, there, moved)
    returned = sum(values[place].bytes for place in held - there if values[place].returned and not values[place].resident)
    tangents = sum(value.bytes for value in values if value.kind == "tangent")
    start = sum(values[place].bytes for place in there) + returned + tangents + loss
    rest = (0 if graph.hands_on else returned) + tangents + graph.gradients
    time = first.traffic + second.traffic + sum(values[place].us for place in again)
    if start > max(second.peak + rest, first.peak):
        at, live, which = "the loss", set(there), "backward"
    elif first.peak > second.peak + rest:
        at, live, which = first.at, first.live, "forward"
    else:
        at, live, which = second.at, second.live, "backward"
    division = Division(frozenset(kept), first.peak, second.peak + rest, start, rest, time, live, at, which, len(again), moved, start - tangents - loss)
    return division, first, second


class Order:
    """The values of a pass in Inductor's order.

    Attributes
    ----------
    phase
        By place, the number of kernels in a row that a value waits for; -1 for values of other passes. Kernels, and sums over a batch, begin a phase.
    stored
        Fused values that Inductor writes to memory instead of computing them again for each reader.
    """

    def __init__(self, graph: Graph, order: list[int]) -> None:
        inputs, ends, values = graph.inputs, graph.ends_phase, graph.values
        self.phase = phase = [-1] * len(values)
        for place in order:
            begun = 0
            for read in inputs[place]:
                after = phase[read]
                if after >= 0:
                    after += ends[read]
                    if after > begun:
                        begun = after
            phase[place] = begun + (values[place].kind == "kernel")
        self.order = self._together(graph, order) if graph.fuses else order
        self.stored = self._stored(graph)

    def _together(self, graph: Graph, order: list[int]) -> list[int]:
        """The order in which recomputed values of one phase that read each other are computed together, by the kernel that the first needs."""
        values, phase = graph.values, self.phase
        leader = [-1] * len(values)

        def leading(place: int) -> int:
            while leader[place] != place:
                leader[place] = place = leader[leader[place]]
            return place

        for place in order:
            value = values[place]
            if value.backward or not (graph.is_fused[place] or value.kind == "view"):
                continue
            leader[place] = place
            for read in value.inputs:
                if leader[read] >= 0 and phase[read] == phase[place]:
                    one, other = leading(read), leading(place)
                    leader[max(one, other)] = min(one, other)
        groups: dict[int, list[int]] = {}
        for place in order:
            if leader[place] >= 0:
                groups.setdefault(leading(place), []).append(place)
        moved: list[int] = []
        for place in order:
            if leader[place] < 0:
                moved.append(place)
            else:
                # The first member of a group that is met brings all.
                moved += groups.pop(leading(place), ())
        return moved

    def _stored(self, graph: Graph) -> set[int]:
        """The fused values that read many values themselves."""
        values, root, phase, is_fused = graph.values, graph.root, self.phase, graph.is_fused
        stored: set[int] = set()
        count = [1] * len(values)
        for place in self.order:
            if not is_fused[place]:
                continue
            value = values[place]
            read = sum([count[source] for source in {root[one] for one in value.inputs}])
            users = sum([phase[user] >= 0 for user in value.users])
            if value.stored or read > (_READS_SHARED if users > 1 else _READS):
                stored.add(place)
            elif value.kind != "reduction":
                count[place] = read
        return stored


class Pass:
    """One pass in order: its peak, the values alive there, and the memory traffic of its fused kernels in microseconds.

    Attributes
    ----------
    bytes, times
        By step: bytes that exist, and microseconds.
    first, last
        By place, its first and last step on the device.
    """

    def __init__(
        self, graph: Graph, ordered: Order, held: set[int], there: Iterable[int] = (), fetched: frozenset[int] = frozenset()
    ) -> None:
        values, root, is_fused, is_called = graph.values, graph.root, graph.is_fused, graph.is_called
        order, phase, stored = ordered.order, ordered.phase, ordered.stored
        # By place: whether a value is written, its last reader, through views, and how long a value that is not written is needed.
        exists, last, ends = [False] * len(values), [-1] * len(values), [-1] * len(values)
        # The phases in which each value is read by fused kernels, as bits. A value that is not written is computed in each of them.
        reads = [0] * len(values)
        called = [False] * len(values)
        sources: set[int] = set()
        for number in range(len(order) - 1, -1, -1):
            place = order[number]
            own = 1 << phase[place]
            if is_fused[place] and graph.fuses and root[place] == place and place not in held:
                if called[place]:
                    is_written = True
                elif values[place].kind == "reduction" or values[place].apart:
                    is_written = reads[place] & ~own != 0
                else:
                    is_written = place in stored and reads[place].bit_count() > 1
            else:
                is_written = root[place] == place and values[place].kind not in ("view", "none")
            exists[place] = is_written
            end = number
            if not is_written and values[place].kind != "none":
                end = max(end, ends[root[place]], last[place])
            ends[place] = end
            runs_in = own if is_written else reads[place] or own
            is_call = is_called[place]
            for read in graph.inputs[place]:
                if end > last[read]:
                    last[read] = end
                source = root[read]
                if end > last[source]:
                    last[source] = end
                if is_call:
                    called[source] = True
                else:
                    reads[source] |= runs_in
                    sources.add(source)
        bytes_moved = sum([graph.bytes[place] for place in order if exists[place] and is_fused[place]])
        for source in sources:
            count = reads[source].bit_count()
            if phase[source] >= 0:
                if not exists[source]:
                    continue
                # A kernel does not read its own results from memory.
                count -= is_fused[source] and reads[source] >> phase[source] & 1
            bytes_moved += graph.bytes[source] * count
        self.traffic = bytes_moved / graph.rates.memory
        self.last = last
        self._timeline(graph, order, held, there, exists, fetched)

    def _timeline(
        self, graph: Graph, order: list[int], held: set[int], there: Iterable[int], exists: list[bool], fetched: frozenset[int]
    ) -> None:
        values, bytes_of, root, is_fused, last = graph.values, graph.bytes, graph.root, graph.is_fused, self.last
        self.first = {place: number for number, place in enumerate(order)}
        arrivals: dict[int, list[int]] = {}
        if fetched:
            for number in range(len(order) - 1, -1, -1):
                for read in graph.inputs[order[number]]:
                    if root[read] in fetched:
                        self.first[root[read]] = number
            for place in fetched:
                if last[place] >= 0:
                    arrivals.setdefault(self.first[place], []).append(place)
        frees: list[list[int]] = [[] for _ in range(len(order) + 1)]
        now = 0
        live: set[int] = set()
        for place in there:
            now += bytes_of[place]
            live.add(place)
            if place not in held and last[place] >= 0:
                frees[last[place]].append(place)
        self.peak, self.at, self.live = now, values[order[0]].name if order else "", set(live)
        best = -1
        made: list[tuple[int, int]] = []
        self.bytes: list[int] = []
        self.times: list[float] = []
        for number, place in enumerate(order):
            for arrived in arrivals.get(number, ()):
                now += bytes_of[arrived]
                made.append((number, arrived))
                frees[last[arrived]].append(arrived)
            if exists[place]:
                now += bytes_of[place]
                made.append((number, place))
                if place not in held:
                    frees[max(last[place], number)].append(place)
            self.bytes.append(now + values[place].extra)
            self.times.append(values[place].us or 2 * bytes_of[place] * (exists[place] and is_fused[place]) / graph.rates.memory)
            if now + values[place].extra > self.peak:
                self.peak, best = now + values[place].extra, number
            for free in frees[number]:
                now -= bytes_of[free]
        if best < 0:
            return
        self.at = values[order[best]].name
        freed = {place for number in range(best) for place in frees[number]}
        self.live = {place for place in live if place not in freed} | {place for number, place in made if number <= best and place not in freed}
