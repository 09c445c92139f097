"""Chooses the values that the forward pass saves, by a least cut of time and bytes at a price per byte.

Each value is saved, recomputed, or used in the forward pass alone. The total cost is the value of a cut. Each value has up to three nodes::

    source -- recompute time --> v in -- bytes times price + time to write --> v out -- endless --> u in, for each reader u of v
                                 v in -- time to read the saved value --> v read -- endless --> u in, for each fused reader u of v
    values read by the backward pass -- endless --> sink

If `v in` is on the source's side and `v out` on the sink's side, v is saved. If both are on the sink's side, v is recomputed.

**Source**: the cut of PyTorch's partitioner, in which only saved bytes have a cost; closures with costs, Picard 1976.
"""

from __future__ import annotations

from typing import Any

from ..._native import least_cut
from .graph import Graph

__all__ = ["ENDLESS", "Pricing", "minimum_cut"]

# Larger than the value of any cut.
ENDLESS = 1 << 62

# Costs are whole picoseconds.
_UNIT = 1e6
# Recomputing a fused value costs this share of the time to read it. Without a cost, chains would grow without a gain.
_WORK = 0.03


class Pricing:
    """Cuts of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        values = graph.values
        # Values that only the backward pass reads may be saved, too.
        self.forward = [place for place, value in enumerate(values) if not value.backward and value.kind != "tangent"]
        self.number = {place: number for number, place in enumerate(self.forward)}
        self.again: list[int] = []
        self.writing: list[float] = []
        self.reading: list[float] = []
        self.bytes: list[int] = []
        for place in self.forward:
            value = values[place]
            self.again.append(self._again(place))
            time = 0.0 if value.resident else value.bytes / graph.rates.memory
            there = value.kind not in ("fused", "reduction") or value.returned or self._read_by_kernel(place, backward=False)
            self.writing.append(0.0 if there else time)
            self.reading.append(time)
            self.bytes.append(0 if value.resident else value.bytes)
        again = sum(cost for cost in self.again if cost < ENDLESS)
        # Microseconds to recompute a byte.
        self.average = max(again, 1) / _UNIT / max(sum(self.bytes), 1)
        self._arcs()

    def _again(self, place: int) -> int:
        """The cost of recomputing a value."""
        values, root = self.graph.values, self.graph.root
        value = values[place]
        if value.rerun == "never":
            return ENDLESS
        rate = self.graph.rates.memory
        if value.kind in ("input", "view", "none", "part"):
            return 0
        if value.kind == "kernel":
            # Fused inputs of a kernel are written to memory first.
            fed = sum(values[root[read]].bytes for read in value.inputs if values[root[read]].kind == "fused")
            return int(_UNIT * (value.us + self.graph.rates.start + 0.5 * fed / rate))
        cost = _WORK * value.bytes / rate
        if value.kind == "reduction":
            cost += 0.5 * sum(values[root[read]].bytes for read in value.inputs) / rate
        if self._read_by_kernel(place, backward=True):
            cost += value.bytes / rate + self.graph.rates.start
        return int(_UNIT * cost) + 1

    def _read_by_kernel(self, place: int, backward: bool) -> bool:
        """Whether a kernel of a pass reads a value, directly or through views."""
        values = self.graph.values
        stack = [place]
        while stack:
            for user in values[stack.pop()].users:
                if values[user].kind == "view":
                    stack.append(user)
                elif values[user].kind == "kernel" and (values[user].backward or values[user].wanted) == backward:
                    return True
        return False

    def _arcs(self) -> None:
        """The arcs whose capacities no price changes, and the ends of the others: two for each value."""
        values, number_of = self.graph.values, self.number
        fixed: list[tuple[int, int, int]] = []
        for number, place in enumerate(self.forward):
            value = values[place]
            into, out, read = 2 + 3 * number, 3 + 3 * number, 4 + 3 * number
            if value.rerun == "must":
                fixed.append((into, 1, ENDLESS))
            fixed.append((into, read, int(_UNIT * self.reading[number])))
            # A reader of a view reads the value.
            stack = list(value.users)
            direct = set(stack)
            while stack:
                user = stack.pop()
                reader = values[user]
                if reader.kind == "view" and value.kind != "view":
                    stack += reader.users
                end = 2 + 3 * number_of[user] if user in number_of else 1
                if user in direct:
                    fixed.append((out, end, ENDLESS))
                if reader.kind in ("fused", "reduction"):
                    fixed.append((read, end, ENDLESS))
            if value.wanted:
                fixed.append((out, 1, ENDLESS))
        count = len(self.forward)
        self.starts = [0] * count + [2 + 3 * number for number in range(count)] + [arc[0] for arc in fixed]
        self.ends = [2 + 3 * number for number in range(count)] + [3 + 3 * number for number in range(count)] + [arc[1] for arc in fixed]
        self.fixed = [arc[2] for arc in fixed]

    def cut(self, price: float, saved: dict[int, float], again: dict[int, float]) -> frozenset[int]:
        """The values to save at a price in microseconds per byte.

        ``saved`` and ``again`` hold, by value, the share of its bytes that is paid for if it is saved (1 by default) or recomputed (0 by default).
        """
        values = self.graph.values
        rerun, save = [], []
        for number, place in enumerate(self.forward):
            value = values[place]
            cost = _UNIT * price * self.bytes[number]
            rerun.append(0 if value.rerun == "must" else self.again[number] + int(again.get(place, 0.0) * cost))
            if value.saved and value.kind != "view":
                save.append(int(_UNIT * self.writing[number] + saved.get(place, 1.0) * cost) + (not value.resident))
            else:
                save.append(ENDLESS)
        near = least_cut(2 + 3 * len(self.forward), self.starts, self.ends, [min(one, ENDLESS) for one in rerun + save] + self.fixed, False)
        return frozenset(place for number, place in enumerate(self.forward) if near[2 + 3 * number] and not near[3 + 3 * number])


def minimum_cut(graph: Any, source: str, sink: str) -> tuple[int, tuple[set[str], set[str]]]:
    """Replaces `networkx.minimum_cut`; the value of the cut is not computed."""
    names = [source, sink, *(name for name in graph if name not in (source, sink))]
    number_of = {name: number for number, name in enumerate(names)}
    starts, ends, capacities = [], [], []
    for start, end, capacity in graph.edges(data="capacity"):
        starts.append(number_of[start])
        ends.append(number_of[end])
        capacities.append(ENDLESS if capacity is None or capacity > ENDLESS >> 16 else int(capacity))
    # Of equal cuts, networkx returns the one nearest to the sink.
    near = least_cut(len(names), starts, ends, capacities, True)
    return 0, ({name for name, is_near in zip(names, near, strict=True) if is_near}, {name for name, is_near in zip(names, near, strict=True) if not is_near})
