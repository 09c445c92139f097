"""The least cut of time and bytes: which values the forward pass saves, for a price of each byte.

Each value is saved, computed again, or needed in the forward pass alone. What that costs is a cut of a graph with up to three nodes for each value::

    source -- cost of computing again --> v in -- bytes times price, and writing them --> v out -- endless --> u in, for each u that reads v
                                          v in -- reading what was saved --> v read -- endless --> u in, for each fused u that reads v
    what the backward pass reads -- endless --> sink

In a cut, v is saved where `v in` is on the side of the source and `v out` on that of the sink, and computed again where both are on that of the sink.

**Source**: the cut of PyTorch's partitioner, in which nothing costs anything but saved bytes; closures with costs, Picard 1976.
"""

from __future__ import annotations

from .flow import ENDLESS, Flow
from .graph import Graph

__all__ = ["Pricing"]

# Costs are whole picoseconds.
_UNIT = 1e6
# Of the time to read a value: the work of computing it again where it is read, so that chains do not grow without a gain.
_WORK = 0.03


class Pricing:
    """Cuts of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        values = graph.values
        # What only the backward pass reads may be saved, too.
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

    def _again(self, place: int) -> int:
        """The cost of computing a value again."""
        values, root = self.graph.values, self.graph.root
        value = values[place]
        if value.rerun == "never":
            return ENDLESS
        rate = self.graph.rates.memory
        if value.kind in ("input", "view", "none", "part"):
            return 0
        if value.kind == "kernel":
            # What it reads must exist.
            fed = sum(values[root[read]].bytes for read in value.inputs if values[root[read]].kind == "fused")
            return int(_UNIT * (value.us + self.graph.rates.start + 0.5 * fed / rate))
        cost = _WORK * value.bytes / rate
        if value.kind == "reduction":
            cost += 0.5 * sum(values[root[read]].bytes for read in value.inputs) / rate
        if self._read_by_kernel(place, backward=True):
            cost += value.bytes / rate + self.graph.rates.start
        return int(_UNIT * cost) + 1

    def _read_by_kernel(self, place: int, backward: bool) -> bool:
        """Whether a kernel of a pass reads a value, through views."""
        values = self.graph.values
        stack = [place]
        while stack:
            for user in values[stack.pop()].users:
                if values[user].kind == "view":
                    stack.append(user)
                elif values[user].kind == "kernel" and (values[user].backward or values[user].wanted) == backward:
                    return True
        return False

    def cut(self, price: float, saved: dict[int, float], again: dict[int, float]) -> frozenset[int]:
        """What is saved at a price, in microseconds a byte.

        Of the bytes of each value, shares count: one if it is saved (1 where none is given), one if it is computed again (0).
        """
        values, number_of = self.graph.values, self.number
        flow = Flow(2 + 3 * len(self.forward))
        for number, place in enumerate(self.forward):
            value = values[place]
            into, out, read = 2 + 3 * number, 3 + 3 * number, 4 + 3 * number
            if value.rerun == "must":
                flow.arc(into, 1, ENDLESS)
            else:
                flow.arc(0, into, self.again[number] + int(_UNIT * price * again.get(place, 0.0) * self.bytes[number]))
            weight = saved.get(place, 1.0)
            if value.saved and value.kind != "view":
                flow.arc(into, out, int(_UNIT * (self.writing[number] + price * weight * self.bytes[number])) + (not value.resident))
            else:
                flow.arc(into, out, ENDLESS)
            flow.arc(into, read, int(_UNIT * self.reading[number]))
            # Views are seen through: what reads them reads the value.
            stack = list(value.users)
            direct = set(stack)
            while stack:
                user = stack.pop()
                reader = values[user]
                if reader.kind == "view" and value.kind != "view":
                    stack += reader.users
                end = 2 + 3 * number_of[user] if user in number_of else 1
                if user in direct:
                    flow.arc(out, end, ENDLESS)
                if reader.kind in ("fused", "reduction"):
                    flow.arc(read, end, ENDLESS)
            if value.wanted:
                flow.arc(out, 1, ENDLESS)
        source = flow.cut()
        return frozenset(
            place for number, place in enumerate(self.forward) if source[2 + 3 * number] and not source[3 + 3 * number]
        )
