"""Least cuts of small directed graphs.

**Source**: flow by levels, Dinic 1970.
"""

from __future__ import annotations

__all__ = ["ENDLESS", "Flow"]

# Larger than the value of any cut.
ENDLESS = 1 << 62


class Flow:
    """A graph with a source (node 0) and a sink (node 1). Capacities are whole numbers."""

    def __init__(self, nodes: int) -> None:
        self.heads: list[int] = []
        self.left: list[int] = []
        # The numbers of an arc and its reverse differ in the last bit.
        self.of: list[list[int]] = [[] for _ in range(nodes)]

    def arc(self, start: int, end: int, capacity: int) -> None:
        """Adds an arc and its reverse."""
        if capacity > 0 and start != end:
            self.of[start].append(len(self.heads))
            self.heads.append(end)
            self.left.append(min(capacity, ENDLESS))
            self.of[end].append(len(self.heads))
            self.heads.append(start)
            self.left.append(0)

    def cut(self) -> list[bool]:
        """Whether each node is on the source's side, in the least cut that is nearest to the source."""
        while (levels := self._levels())[1] >= 0:
            self._push(levels)
        return [level >= 0 for level in levels]

    def last_cut(self) -> list[bool]:
        """Whether each node is on the source's side, in the least cut that is nearest to the sink."""
        self.cut()
        near = [True] * len(self.of)
        near[1] = False
        stack = [1]
        while stack:
            node = stack.pop()
            for arc in self.of[node]:
                start = self.heads[arc]
                if near[start] and self.left[arc ^ 1]:
                    near[start] = False
                    stack.append(start)
        return near

    def _levels(self) -> list[int]:
        heads, left, of = self.heads, self.left, self.of
        levels = [-1] * len(of)
        levels[0] = 0
        front = [0]
        while front:
            following = []
            for node in front:
                level = levels[node] + 1
                for arc in of[node]:
                    if left[arc] and levels[heads[arc]] < 0:
                        levels[heads[arc]] = level
                        following.append(heads[arc])
            front = following
        return levels

    def _push(self, levels: list[int]) -> None:
        """Sends flow along paths of rising levels until no path is left."""
        heads, left, of = self.heads, self.left, self.of
        places = [0] * len(of)
        path: list[int] = []
        node = 0
        while True:
            if node == 1:
                least = min(left[arc] for arc in path)
                first = -1
                for position, arc in enumerate(path):
                    left[arc] -= least
                    left[arc ^ 1] += least
                    if first < 0 and not left[arc]:
                        first = position
                # The search goes on from the start of the first full arc.
                node = heads[path[first] ^ 1]
                del path[first:]
                continue
            arcs, place = of[node], places[node]
            while place < len(arcs):
                arc = arcs[place]
                if left[arc] and levels[heads[arc]] == levels[node] + 1:
                    break
                place += 1
            places[node] = place
            if place < len(arcs):
                path.append(arcs[place])
                node = heads[arcs[place]]
            elif path:
                node = heads[path.pop() ^ 1]
                places[node] += 1
            else:
                return
