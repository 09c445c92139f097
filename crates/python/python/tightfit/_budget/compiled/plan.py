"""Divides the joint graph of one compiled graph so that its step stays within the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from ...errors import DoesNotFit
from ..memory.sizes import Share, text
from . import private
from .choose import Choice, Chooser
from .graph import Rates
from .unread import blank_unread

__all__ = ["Plan", "Planned", "Terms"]

# Values of PyTorch's `activation_memory_budget`. The division for each is a candidate.
_SHARES = (1.0, 0.75, 0.5, 0.3, 0.15, 0.05, 0.0)
# The most copies of the graphs that are lowered. No copy is lowered if the computed peak is below this share of the room.
_COPIES, _AMPLE = 2, 0.6
# A division that leaves less than this share of the room unused is kept.
_CLOSE = 0.06
# A forward pass is not lowered if it takes less than this share of the backward pass.
_BELOW = 0.9
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

    def __init__(self, terms: Terms, inner: str, rates: Rates, time_of: Callable[[fx.Node], float]) -> None:
        self.terms = terms
        self.inner = inner
        self.rates = rates
        self.time_of = time_of
        self.planned: Planned | None = None
        self.chooser: Chooser | None = None
        self.nodes: list[fx.Node] = []
        self.choice: Choice | None = None

    def divide(self, module: fx.GraphModule, inputs: Any, **others: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and backward graphs, as a partitioner of PyTorch returns them."""
        started = time.monotonic()
        self.choice = None
        for copies in range(_COPIES + 2):
            copy = private.copied(module)
            blank_unread(copy)
            graphs = private.partition(self._choose, copy, inputs, **others)
            if self.choice is None or self._settles(graphs, copies):
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

    def _settles(self, graphs: tuple[fx.GraphModule, fx.GraphModule], copies: int) -> bool:
        """Whether the division is kept. If not, another one is chosen with the bytes of the lowered copies."""
        assert self.chooser is not None and self.choice is not None
        chooser, room, division = self.chooser, self.terms.room, self.choice.division
        if self.inner != "inductor" or copies > _COPIES or division is chooser.plain and chooser.peak(division) < _AMPLE * room:
            return True
        if division.saved not in chooser.seen:
            backward = private.lowered(graphs[1], is_backward=True)
            # The forward pass is nearly always far below: saved values exist at its end and at the beginning of the backward pass.
            is_below = division.forward < _BELOW * max(division.start, backward + division.rest)
            forward = int(division.forward / _BELOW) if is_below else private.lowered(graphs[0], is_backward=False)
            chooser.note(division, forward, backward)
        peak = chooser.peak(division)
        if peak <= room and (division is chooser.plain or peak >= (1 - _CLOSE) * room):
            return True
        better = chooser.fitting(room) or chooser.least()
        if better.division.saved == division.saved:
            return True
        if peak <= room and better.division.time_us >= division.time_us:
            return True
        self.choice = better
        return False

    def _choose(self, joint: fx.Graph, info: Any) -> list[fx.Node]:
        if self.choice is not None and self.chooser is not None:
            private.nothing_again(joint)
            nodes = [node for node in joint.nodes if node.op != "output"]
            return [nodes[place] for place in sorted(self.choice.division.saved)]
        fuses = self.inner == "inductor"
        (_, kept), = private.candidates(joint, info, (1.0,))
        graph, self.nodes = private.read(joint, info, self.rates, lambda node: 0.0, fuses)
        place_of = {node: place for place, node in enumerate(self.nodes)}
        loss = self.terms.loss
        if loss is None:
            loss = _LOSS * sum(_wide(node) for node, value in zip(self.nodes, graph.values, strict=True) if value.kind == "tangent")
        plain = ("PyTorch's own", frozenset(place_of[node] for node in kept))
        self.chooser = Chooser(graph, [plain], loss)
        if self.terms.share is not None:
            self.terms.budget = self.terms.share.of(self.terms.outside + self.chooser.peak(self.chooser.plain))
        if self.chooser.peak(self.chooser.plain) > self.terms.room * _likely(fuses):
            for value, node in zip(graph.values, self.nodes, strict=True):
                if value.kind == "kernel" and value.rerun != "never" and not value.backward:
                    value.us = self.time_of(node)
            theirs = [plain] + [
                (f"PyTorch's at {share:g}", frozenset(place_of[node] for node in saved))
                for share, saved in private.candidates(joint, info, _SHARES[1:])
            ]
            self.chooser = Chooser(graph, theirs, loss)
        self.choice = self.chooser.fitting(self.terms.room) or self.chooser.least()
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


def _likely(fuses: bool) -> float:
    """A computed peak above this share of the room may be over it once the graphs are lowered."""
    return 0.85 if fuses else 1.0


def _wide(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return 0
    return private.elements(value) * 4
