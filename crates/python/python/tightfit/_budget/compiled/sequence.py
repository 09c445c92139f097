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
from .parts import SPARE, Need, mixed, peak_of
from .plan import Plan, Planned

__all__ = ["Divided", "divided", "leasts", "named", "together"]


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
    """The bytes of each graph, given all calls in order; None if the graphs do not fit."""

    def fits(needs: Sequence[Need]) -> bool:
        return peak_of(needs) * (1 + SPARE) <= budget

    levels = _levels(order, graphs)
    level = next((level for level, needs in enumerate(levels) if fits(needs)), None)
    if level is None:
        level = min(range(len(levels)), key=lambda level: peak_of(levels[level]))
        if peak_of(levels[level]) > budget:
            return None
    needs = mixed(levels[level], levels[level - 1], fits) if level else levels[level]
    found = {}
    for key in dict.fromkeys(order):
        last = max(place for place, other in enumerate(order) if other == key)
        others = sum(need.kept for other, need in zip(order[:last], needs, strict=False) if other != key)
        found[key] = Together(others, None if last == len(order) - 1 else needs[last].kept)
    return found


def named(order: Sequence[str]) -> str:
    """A name of the calls of a step."""
    return hashlib.sha256(" ".join(order).encode()).hexdigest()[:16]


def leasts(order: Sequence[str], graphs: Mapping[str, Divided]) -> int:
    """The least bytes that all graphs need together."""
    return min(map(peak_of, _levels(order, graphs)))


def _levels(order: Sequence[str], graphs: Mapping[str, Divided]) -> list[list[Need]]:
    """By price of a byte, the need of each call, with the bytes outside."""

    def need(graph: Divided, level: int) -> Need:
        one = graph.needs[min(level, len(graph.needs) - 1)]
        return Need(one.kept, graph.outside + one.peak)

    return [[need(graphs[key], level) for key in order] for level in range(max(len(graphs[key].needs) for key in order))]
