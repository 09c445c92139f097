"""Divides the joint graph of one compiled graph so that its step stays within the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from ...errors import DoesNotFit
from ..memory.sizes import Share, text
from . import private, properties
from .choose import Choice, Chooser
from .graph import Rates
from .unread import blank_unread

__all__ = ["Plan", "Planned", "Terms"]

# Values of PyTorch's `activation_memory_budget`. Their divisions are candidates, until one fits.
_SHARES = (0.8, 0.5, 0.2, 0.1, 0.0)
# The most divisions whose graphs are lowered to find a faster one, and to find one that fits. One more is lowered before a refusal.
_FASTER, _FITS = 2, 3
# A computed peak is exact to the share _EXACT. A division is chosen by a computed peak if that leaves _SPARE of the room unused. If it leaves more
# than _AMPLE unused, the graphs are not lowered.
_EXACT, _SPARE, _AMPLE = 0.08, 0.015, 0.15
# The bytes of a forward pass are exact to this share without being lowered.
_FORWARD = 0.02
# The loss is assumed to take this many times the bytes of the outputs in 32 bits, until a step has been measured.
_LOSS = 2


@dataclass
class Terms:
    """The budget of a graph, and the bytes outside of its buffers.

    Attributes
    ----------
    budget, outside
        Bytes of the whole program, and bytes outside of the graph's buffers: weights, the optimizer's state, inputs, workspaces.
    loss
        Bytes of the program's loss, if they were measured.
    assumed
        The assumptions, in words.
    share
        The budget as a share of what PyTorch's own division needs; its bytes are set once that is known.
    """

    budget: int
    outside: int
    loss: int | None = None
    assumed: str = ""
    share: Share | None = None

    @property
    def room(self) -> int:
        return self.budget - self.outside


@dataclass
class Planned:
    """A plan in numbers: the predicted peak, the peak of PyTorch's own division, and the chosen division."""

    peak: int
    plain: int
    of: str
    overhead_us: float
    again: int
    seconds: float
    is_plain: bool
    saved: list[str] = field(default_factory=list)


class Plan:
    """Divides one joint graph."""

    def __init__(self, terms: Terms, inner: str, rates: Rates, times_of: Callable[[list[fx.Node]], list[float]]) -> None:
        self.terms = terms
        self.inner = inner
        self.rates = rates
        self.times_of = times_of
        self.planned: Planned | None = None
        self.chooser: Chooser | None = None
        self.nodes: list[fx.Node] = []
        self.choice: Choice | None = None

    def divide(self, module: fx.GraphModule, inputs: Any, **others: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and backward graphs, as a partitioner of PyTorch returns them."""
        started = time.monotonic()
        self.choice = None
        while True:
            copy = private.copied(module)
            blank_unread(copy)
            graphs = private.partition(self._choose, copy, inputs, **others)
            if self.choice is None or self._settles(graphs):
                break
        chooser, choice = self.chooser, self.choice
        if chooser is None or choice is None:
            # The backward pass reads no value of the forward pass.
            return graphs
        peak = self.terms.outside + chooser.peak(choice.division)
        if peak > self.terms.budget:
            raise self._misfit(peak)
        plain = self.terms.outside + chooser.peak(chooser.plain)
        self.planned = Planned(
            peak, plain, choice.of, choice.division.time_us - chooser.plain.time_us, choice.division.again - chooser.plain.again,
            time.monotonic() - started, choice.division is chooser.plain, [self.nodes[place].name for place in sorted(choice.division.saved)],
        )  # fmt: skip
        return graphs

    def _settles(self, graphs: tuple[fx.GraphModule, fx.GraphModule]) -> bool:
        """Whether the division is kept. If not, another one is chosen with the bytes of the lowered copies."""
        assert self.chooser is not None and self.choice is not None
        chooser, room, division = self.chooser, self.terms.room, self.choice.division
        if self.inner != "inductor" or not chooser.seen and chooser.peak(division) < (1 - _AMPLE) * room:
            return True
        if division.saved not in chooser.seen:
            backward = private.lowered(graphs[1], is_backward=True)
            forward = int(division.forward * (1 + _FORWARD))
            if forward > max(room, division.start, backward + division.rest):
                forward = private.lowered(graphs[0], is_backward=False)
            chooser.note(self.choice, forward, backward)
        better = self._better()
        if better is None or better.division.saved == division.saved:
            return True
        self.choice = better
        return False

    @property
    def _room(self) -> float:
        """The room for divisions whose bytes were computed."""
        return self.terms.room * (1 - _SPARE if self.inner == "inductor" else 1)

    def _better(self) -> Choice | None:
        """Another choice, after a division was lowered; None to keep it."""
        assert self.chooser is not None and self.choice is not None
        chooser, room, division = self.chooser, self.terms.room, self.choice.division
        if chooser.peak(division) <= room:
            faster = chooser.fitting(room, _EXACT) if division is not chooser.plain and len(chooser.seen) < _FASTER else None
            return faster if faster is not None and chooser.saves(faster.division, division) else None
        if len(chooser.seen) < _FITS and (found := chooser.fitting(self._room)) is not None:
            return found
        return chooser.lowered(room) or chooser.least()

    def _choose(self, joint: fx.Graph, info: Any) -> list[fx.Node]:
        if self.choice is not None and self.chooser is not None:
            private.nothing_again(joint)
            nodes = [node for node in joint.nodes if node.op != "output"]
            return [nodes[place] for place in sorted(self.choice.division.saved)]
        fuses = self.inner == "inductor"
        kept = private.plainly(joint, info)
        graph, self.nodes = private.read(joint, info, self.rates, lambda node: 0.0, fuses)
        place_of = {node: place for place, node in enumerate(self.nodes)}
        loss = self.terms.loss
        if loss is None:
            loss = _LOSS * sum(_wide(node) for node, value in zip(self.nodes, graph.values, strict=True) if value.kind == "tangent")
        plain = ("PyTorch's own", frozenset(place_of[node] for node in kept))
        self.chooser = Chooser(graph, [plain], loss)
        if self.terms.share is not None:
            self.terms.budget = self.terms.share.of(self.terms.outside + self.chooser.peak(self.chooser.plain))
        if self.chooser.peak(self.chooser.plain) > self.terms.room * (1 - _AMPLE if fuses else 1):
            again = [place for place, value in enumerate(graph.values) if value.kind == "kernel" and value.rerun == "may" and not value.backward]
            for place, time_us in zip(again, self.times_of([self.nodes[place] for place in again]), strict=True):
                graph.values[place].us = time_us
            self.chooser = chooser = Chooser(graph, [plain], loss)

            def is_enough(share: float, saved: list[fx.Node]) -> bool:
                found = chooser.add(f"PyTorch's at {share:g}", frozenset(place_of[node] for node in saved))
                return found is not None and chooser.peak(found.division) <= self._room

            private.candidates(joint, info, _SHARES, is_enough)
        self.choice = self.chooser.fitting(self._room) or self.chooser.least()
        return [self.nodes[place] for place in sorted(self.choice.division.saved)]

    def _misfit(self, needed: int) -> DoesNotFit:
        assert self.chooser is not None and self.choice is not None
        division = self.choice.division
        where = f"Memory peaks in the {division.pass_at} pass, at {division.at} in the compiled graph."
        return DoesNotFit(
            f"the compiled graph does not fit in {text(self.terms.budget)}: the least budget found is {text(needed)} "
            f"({text(self.terms.outside)} of it beside the graph's own buffers). {where}",
            needed, self.terms.budget,
        )  # fmt: skip


def _wide(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return 0
    return properties.elements(value) * 4
