"""Stretches of a forward pass in which autograd saves tensors without hooks.

A hook costs the host several microseconds, for every saved tensor and again when that is read, and most tensors are just kept. So where many
of these follow each other, the hooks are taken away when one module begins, and put back when that one or a later one ends::

    packs     offload  keep  |keep  keep  keep  keep  keep|  keep  recompute
    modules            block.0 begins             block.2 ends

A pass goes by these names and by its place alone. Where a program takes another path there, more may be kept than was planned for, but no tensor
is wrong. If more nodes of autograd's graph are made than in the first passes, or the hooks are not put back, the stretch is given up, and the next
pass sees what happens there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .recorded import ModuleSaves

__all__ = ["Stretch", "stretches"]

# Tensors for which it is worth taking hooks away, which takes time too.
FEWEST = 6


@dataclass
class Stretch:
    """The packs from the first to before the end: the first comes in a call of one module, and the last before one of another ends.

    Attributes
    ----------
    first, end
        These packs.
    begins, ends
        The modules.
    most
        Nodes of the graph that the first pass and those whose memory is watched have made there, at most. Others may make fewer: autocast
        casts a weight once for all passes in one of its blocks.
    """

    first: int
    end: int
    begins: str
    ends: str
    most: int = 0

    def is_usual(self, nodes: int, watched: bool) -> bool:
        """Whether a pass that made so many nodes has kept no more than those."""
        if watched or not self.most:
            self.most = max(self.most, nodes)
        return nodes <= self.most


def stretches(calls: Sequence[ModuleSaves], hooked: Sequence[bool]) -> list[Stretch]:
    """The longest stretches without a pack that needs its hook, in order; calls of modules are in the order in which they ended."""
    # How many packs need their hooks before each.
    before = [0, *accumulate(hooked)]
    # Where a module is called twice without a pack between, the calls cannot be told apart.
    times = Counter((call.name, call.first) for call in calls)
    # Of calls that end at one pack, the first to end comes last.
    ends = sorted((call.end, -place, call.name) for place, call in enumerate(calls))
    ends_of: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        ends_of[call.name].append(call.end)
    found: list[Stretch] = []
    for first, begins in sorted((call.first, call.name) for call in calls if times[call.name, call.first] == 1):
        limit = bisect_right(before, before[first]) - 1
        if found and first < found[-1].end or limit - first < FEWEST:
            continue
        for end, _, name in reversed(ends[bisect_left(ends, (first + FEWEST,)) : bisect_left(ends, (limit + 1,))]):
            # A module that ends several times on the way would put them back too early.
            if sum(first <= other <= end for other in ends_of[name]) == 1:
                found.append(Stretch(first, end, begins, name))
                break
    return found
