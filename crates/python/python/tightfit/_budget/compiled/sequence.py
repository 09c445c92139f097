"""Graphs that a program calls one after another before a backward pass: of a model with graph breaks, of several models, of blocks compiled one by one.

Dynamo compiles a graph at its first call, when nobody knows the later ones, so early graphs may take the room of later ones. Once a step has shown
all calls, the lowest price of a byte at which all graphs fit together gives the bytes that each of them may keep::

    call        graph 0        graph 1        graph 0        graph 2        backward
    kept        by the first call --------------------------------------->
                               by the second call ------------->
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .kept import Together
from .parts import Need, peak_of
from .plan import Plan, Planned

__all__ = ["Divided", "divided", "leasts", "named", "together"]

_HALVINGS = 10
# All graphs may need this share more than computed.
_SPARE = 0.02


@dataclass(frozen=True)
class Divided:
    """The divisions of a graph, from PyTorch's own to the one with the least bytes, and the bytes outside of the buffers of all graphs."""

    outside: int
    needs: Sequence[Need]


def divided(plan: Plan, planned: Planned, outside: int, is_last: bool) -> Divided:
    """The divisions of a graph that was compiled alone."""
    chooser = plan.chooser
    if chooser is None:
        # PyTorch's caches held it.
        return Divided(outside, [Need(planned.kept, planned.peak - plan.terms.outside)])
    with_loss = is_last and chooser.calls == 1
    found = [*chooser.levels(), chooser.least().division]
    return Divided(outside, [Need(division.kept, chooser.peak(division, with_loss)) for division in found])


def together(order: Sequence[str], graphs: Mapping[str, Divided], budget: int) -> dict[str, Together] | None:
    """The bytes of each graph, given all calls in order. None if the graphs do not fit together."""
    levels = [_at(order, graphs, level) for level in range(max(len(graphs[key].needs) for key in order))]
    fits = next((level for level, needs in enumerate(levels) if peak_of(needs) * (1 + _SPARE) <= budget), None)
    if fits is None:
        fits = min(range(len(levels)), key=lambda level: peak_of(levels[level]))
        if peak_of(levels[fits]) > budget:
            return None
    needs = levels[fits]
    if fits:
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            mixed = [_mixed(less, more, share) for less, more in zip(levels[fits], levels[fits - 1], strict=True)]
            if peak_of(mixed) * (1 + _SPARE) <= budget:
                low, needs = share, mixed
            else:
                high = share
    found = {}
    for key in order:
        last = max(place for place, other in enumerate(order) if other == key)
        others = sum(need.kept for other, need in zip(order[:last], needs, strict=False) if other != key)
        found[key] = Together(others, None if last == len(order) - 1 else needs[last].kept)
    return found


def named(order: Sequence[str]) -> str:
    """A name of the calls of a step."""
    return hashlib.sha256(" ".join(order).encode()).hexdigest()[:16]


def leasts(order: Sequence[str], graphs: Mapping[str, Divided]) -> int:
    """The least bytes that all graphs need together."""
    return min(peak_of(_at(order, graphs, level)) for level in range(max(len(graphs[key].needs) for key in order)))


def _at(order: Sequence[str], graphs: Mapping[str, Divided], level: int) -> list[Need]:
    """The need of each call at a price of a byte, with the bytes outside."""
    needs = {key: one.needs[min(level, len(one.needs) - 1)] for key, one in graphs.items()}
    return [Need(needs[key].kept, graphs[key].outside + needs[key].peak) for key in order]


def _mixed(less: Need, more: Need, share: float) -> Need:
    return Need(*(int(one + share * (other - one)) for one, other in ((less.kept, more.kept), (less.peak, more.peak))))
