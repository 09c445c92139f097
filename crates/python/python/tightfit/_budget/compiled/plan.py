"""Divides the joint graph of one compiled graph so that its step stays within the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from ..._share import as_given, as_needed
from ...errors import DoesNotFit
from ..memory.sizes import Share, text
from . import private, properties
from .candidates import Choice
from .choose import Chooser
from .graph import Graph, Rates, simulate
from .kernels import Kernels
from .moves import Link, Moves
from .offload import write_copies
from .ranks import Ranks
from .unread import blank_unread

__all__ = ["Plan", "Planned", "Terms"]

# Values of PyTorch's `activation_memory_budget`. Their divisions are candidates, until one fits.
_SHARES = (0.8, 0.5, 0.2, 0.1, 0.0)
# The compilations of one graph, after which only a division is chosen whose bytes are known, or else one with the least computed bytes: of all, or of
# PyTorch's.
_MOST = 4
# The share of the room that each division after the second one leaves unused in addition, since computed bytes were too low twice.
_SHY = 0.05
# A division is chosen by its computed peak if that leaves this share of the room unused.
_SPARE = 0.015
# Workspaces of kernels are measured unless PyTorch's division leaves this share of the room unused.
_AMPLE = 0.25
# A division that costs time is replaced by a faster one if Inductor's buffers leave this share of the room unused.
_UNUSED = 0.06
# The loss is assumed to take this many times the bytes of the outputs in 32 bits, until a step has been measured.
_LOSS = 2


@dataclass
class Terms:
    """The budget of a graph, and the bytes outside of its buffers.

    Attributes
    ----------
    budget, outside
        Bytes of the whole program, and bytes outside of the graph's buffers: weights, the optimizer's state, inputs, workspaces.
    others
        The bytes among these that other graphs keep.
    loss
        Bytes of the program's loss, if they were measured.
    assumed
        The assumptions, in words.
    share
        The budget as a share of the need of PyTorch's own division; its bytes are set once that need is known.
    calls
        The number of calls of the graph before its backward pass.
    later
        Bytes for the graphs that run later in the forward pass, while the values of this one are kept; None without such graphs.
    gradients
        Bytes of the gradients of other graphs in the backward pass of this one.
    offloads
        Whether values may be offloaded.
    slack
        Bytes over the budget for which the graph is not refused.
    """

    budget: int
    outside: int
    loss: int | None = None
    assumed: str = ""
    share: Share | None = None
    calls: int = 1
    later: int | None = None
    gradients: int = 0
    offloads: bool = True
    slack: int = 0
    others: int = 0

    @property
    def room(self) -> int:
        return self.budget - self.outside

    @property
    def is_alone(self) -> bool:
        """Whether no other graph runs before the graph's backward pass."""
        return self.calls == 1 and self.later is None


@dataclass
class Planned:
    """A plan in numbers: the predicted peak, the peak of PyTorch's own division, and the chosen division.

    Attributes
    ----------
    saved, moved
        The names of the saved values, and the bytes of the offloaded ones.
    gradients
        Bytes of other graphs' gradients in its backward pass. They are part of both peaks.
    kept, plain_kept
        Bytes that stay on the device between the passes, here and by PyTorch's own division.
    seconds
        The time to choose it, without the time in which PyTorch makes both graphs of it.
    """

    peak: int
    plain: int
    of: str
    overhead_us: float
    again: int
    seconds: float
    nodes: int
    is_plain: bool
    saved: list[str] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    plain_kept: int = 0
    gradients: int = 0

    def times(self, count: int) -> Planned:
        """The plan of this number of calls before a backward pass.

        The first backward pass runs while all calls keep their values, the last one while the gradients of all others exist.
        """
        peak = max(self.peak, self.peak - self.gradients + (count - 1) * self.kept)
        plain = max(self.plain, self.plain - self.gradients + (count - 1) * self.plain_kept)
        moved = {f"{call} {name}": size for call in range(count) for name, size in self.moved.items()}
        return replace(
            self, peak=peak, plain=plain, overhead_us=count * self.overhead_us, again=count * self.again, moved=moved, kept=count * self.kept,
            plain_kept=count * self.plain_kept,
        )  # fmt: skip


class Plan:
    """Divides one joint graph.

    The bytes of a division are computed when it is chosen. They are exact once Inductor has fused both graphs, before it generates code. If they do
    not fit, the graph is divided once more with the error that was seen.
    """

    # PyTorch's own divisions that are candidates.
    shares: Sequence[float] = _SHARES

    def __init__(self, terms: Terms, inner: str, rates: Rates, kernels: Kernels, identity: Any = None, ranks: Ranks | None = None) -> None:
        self.terms = terms
        self.inner = inner
        self.rates = rates
        self.kernels = kernels
        self.extra: dict[str, int] = {}
        self.us: dict[str, float] = {}
        self.memory = kernels.memory
        self.identity = identity
        # The ranks of the program, and the number of divisions on which they have agreed.
        self.ranks = ranks
        self.chosen = 0
        self.planned: Planned | None = None
        self.chooser: Chooser | None = None
        self.choice: Choice | None = None
        # The names of the joint graph's nodes.
        self.names: list[str] = []
        self.seconds = 0.0
        # The need of a graph without a backward pass.
        self.inferred: int | None = None
        # The peak of a graph whose copies have their places.
        self.placed = 0

    @property
    def link(self) -> Link:
        """The rates of copies."""
        return self.kernels.link

    def divide(self, module: fx.GraphModule, inputs: Any, **others: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and backward graphs, as a partitioner of PyTorch returns them."""
        blank_unread(module)
        graphs = private.partition(self._choose, module, inputs, **others)
        if self.choice is not None and self.choice.division.moved and self.chooser is not None:
            root = self.chooser.graph.root
            views = {self.names[place]: {name for name, of in zip(self.names, root, strict=True) if of == place} for place in self.choice.division.moved}
            write_copies(*graphs, views)
        if self.inner == "eager":
            self._state()
        return graphs

    def keeps(self, is_backward: bool, peak: int) -> bool:
        """Whether the division is kept, given the bytes that Inductor needs for one of its graphs. If not, another one is chosen.

        Raises
        ------
        DoesNotFit
            If the division with the least bytes does not fit.
        """
        chooser, choice = self.chooser, self.choice
        if chooser is None or choice is None:
            return True
        started = time.monotonic()
        chooser.note(choice, is_backward, peak)
        better = self._better(is_backward)
        self.seconds += time.monotonic() - started
        if better is not None and better.division.key != choice.division.key:
            self.choice = better
            return False
        if is_backward:
            self._state()
        return True

    def room(self, is_backward: bool) -> float:
        """The bytes for the buffers of one of the graphs."""
        assert self.choice is not None
        return self._room - (self.choice.division.rest if is_backward else 0)

    def reaches(self, is_backward: bool, peak: int) -> None:
        """Notes the peak of one of the graphs, once the copies of offloaded values have their places."""
        assert self.choice is not None
        self.placed = max(self.placed, self.terms.outside + peak + (self.choice.division.rest if is_backward else 0))
        if self.planned is not None:
            self.planned.peak = max(self.planned.peak, self.placed)

    def stays(self) -> None:
        """Chooses a division without offloading."""
        assert self.chooser is not None
        self.chooser.moves = self.chooser.smallest = None
        self.choice = self._fastest()

    def infers(self, kernels: list[fx.Node], peak: Callable[[], int]) -> None:
        """Compares the need of a graph without a backward pass with the budget. Its order and reuse of buffers are the compiler's.

        Raises
        ------
        DoesNotFit
            If the graph does not fit.
        """
        found = peak()
        if self.inner == "inductor" and found > self.terms.room * (1 - _AMPLE):
            for node, bytes in zip(kernels, self.kernels.extra(kernels), strict=True):
                self.extra[node.name] = bytes
            found = peak()
        self.inferred = self.terms.outside + found
        if self.inferred > self.terms.budget:
            raise DoesNotFit(
                f"the compiled graph without gradients does not fit in {as_given(self.terms.budget)}: it needs {as_needed(self.inferred, self.terms.budget)}, "
                f"{text(self.terms.outside)} of it outside of the graph's own buffers",
                self.inferred, self.terms.budget,
            )  # fmt: skip

    def _state(self) -> None:
        """Notes the plan in numbers.

        Raises
        ------
        DoesNotFit
            If the division with the least bytes does not fit.
        """
        chooser, choice = self.chooser, self.choice
        if chooser is None or choice is None:
            # The backward pass reads no value of the forward pass.
            return
        # The bytes of later graphs are an estimate, for which nothing is refused.
        is_alone = self.terms.is_alone
        peak = self.terms.outside + chooser.peak(choice.division, is_alone)
        if peak > self.terms.budget + self.terms.slack:
            whole = [chooser.peak(one.division, is_alone) for one in chooser.noted if len(chooser.seen[one.division.key]) == 2]
            raise self._misfit(min(peak, *(self.terms.outside + one for one in whole)) if whole else peak)
        plain = chooser.plain
        self.planned = Planned(
            peak, self.terms.outside + chooser.peak(plain, is_alone), choice.of,
            choice.division.time_us - plain.time_us, choice.division.again - plain.again,
            self.seconds, len(self.names), choice.division.key == plain.key, [self.names[place] for place in sorted(choice.division.saved)],
            {self.names[place]: chooser.graph.values[place].bytes for place in sorted(choice.division.moved)}, choice.division.kept, plain.kept,
            self.terms.gradients,
        )  # fmt: skip

    @property
    def _room(self) -> float:
        """The room for divisions whose bytes are computed."""
        return self.terms.room * (1 - _SPARE if self.inner == "inductor" else 1)

    def _better(self, both: bool) -> Choice | None:
        """Another choice, after one graph or both graphs of a division were seen; None to keep it."""
        assert self.chooser is not None and self.choice is not None
        chooser, room, division = self.chooser, self.terms.room, self.choice.division
        if chooser.peak(division) <= room:
            if division is chooser.plain or not both or len(chooser.noted) >= _MOST - 2 or chooser.peak(division) > (1 - _UNUSED) * room:
                return None
            faster = chooser.fitting(self._room)
            return faster if faster is not None and chooser.saves(faster.division, division) else None
        shy = 1 - _SHY * (len(chooser.noted) - 1)
        if len(chooser.noted) < _MOST - 1 and (found := chooser.fitting(self._room * shy) or chooser.fitting(room)) is not None:
            return found
        return chooser.lowered(room) or chooser.untried()

    def _fastest(self) -> Choice:
        """The fastest division found that fits, or the smallest one."""
        assert self.chooser is not None
        return self.chooser.fitting(self._room) or self.chooser.fitting(self.terms.room) or self.chooser.least()

    def _choose(self, joint: fx.Graph, info: Any) -> list[fx.Node]:
        started = time.monotonic()
        nodes = [node for node in joint.nodes if node.op != "output"]
        names = [node.name for node in nodes]
        if self.choice is None or names != self.names:
            self.names = names
            self._read(joint, info, nodes)
            self.choice = self._fastest()
            self._frees()
        else:
            private.nothing_again(joint)
        self.seconds += time.monotonic() - started
        self.choice = self._agreed(self.choice)
        return [nodes[place] for place in sorted(self.choice.division.saved)]

    def _frees(self) -> None:
        """Ends the compilation if PyTorch's own division needs far fewer bytes than there are.

        Raises
        ------
        Free
            If so.
        """
        assert self.chooser is not None and self.choice is not None
        is_one = self.terms.is_alone and (self.ranks is None or self.ranks.count == 1)
        if self.inner == "inductor" and is_one and self.chooser.peak(self.chooser.plain) <= self.terms.room * (1 - _AMPLE):
            self._state()
            raise private.Free

    def _agreed(self, choice: Choice) -> Choice:
        """The choice of the first rank, if the program has several."""
        if self.ranks is None or self.ranks.count == 1 or self.chooser is None:
            return choice
        saved, moved = ([self.names[place] for place in sorted(places)] for places in choice.division.key)
        told = self.ranks.of_first(f"division {self.chosen}", [saved, moved])
        self.chosen += 1
        place_of = {name: place for place, name in enumerate(self.names)}
        if told is None or told == [saved, moved] or not place_of.keys() >= set(told[0]):
            return choice
        of_first, away = (frozenset(place_of[name] for name in names) for names in told)
        return Choice(simulate(self.chooser.graph, of_first, self.chooser.loss, moved=away), "the first rank")

    def _read(self, joint: fx.Graph, info: Any, nodes: list[fx.Node]) -> None:
        """Reads a joint graph, with PyTorch's own divisions of it."""
        fuses = self.inner == "inductor"
        theirs = private.Divisions(joint, info)
        graph = private.read(joint, info, self.rates, fuses)
        graph.gradients = self.terms.gradients
        graph.hands_on = self.terms.later is not None
        place_of = {node: place for place, node in enumerate(nodes)}
        loss = self.terms.loss
        if loss is None:
            loss = _LOSS * sum(_wide(node) for node, value in zip(nodes, graph.values, strict=True) if value.kind == "tangent")
        plain = ("PyTorch's own", frozenset(place_of[node] for node in theirs.at(1.0)))
        if self.terms.later is not None:
            # Gradients of the outputs count in the peaks of later graphs.
            loss = max(0, self.terms.later - sum(value.bytes for value in graph.values if value.kind == "tangent"))
        terms = loss, self.terms.calls, self.terms.later or 0
        self.chooser = Chooser(graph, plain, *terms)
        if fuses and self.chooser.peak(self.chooser.plain) > self.terms.room * (1 - _AMPLE):
            called = [place for place, value in enumerate(graph.values) if value.kind == "kernel"]
            for place, bytes in zip(called, self.kernels.extra([nodes[place] for place in called]), strict=True):
                graph.values[place].extra = self.extra[nodes[place].name] = bytes
            self.chooser = Chooser(graph, plain, *terms)
        if self.terms.share is not None:
            self.terms.budget = self.terms.share.of(self.terms.outside + self.chooser.peak(self.chooser.plain))
        if self.chooser.peak(self.chooser.plain) > self._room:
            again = [place for place, value in enumerate(graph.values) if value.kind == "kernel" and value.rerun == "may" and not value.backward]
            for place, time_us in zip(again, self.kernels([nodes[place] for place in again]), strict=True):
                graph.values[place].us = time_us
            self.chooser = chooser = Chooser(graph, plain, *terms)
            if self.terms.offloads:
                self._time_all(graph, nodes)
                there = [_on(node, self.kernels.device) for node in nodes]
                chooser.moves = Moves(graph, loss, self.link, there, chooser.plain)
            for share in self.shares:
                found = chooser.add(f"PyTorch's at {share:g}", frozenset(place_of[node] for node in theirs.at(share)))
                if found is not None and chooser.peak(found.division) <= self._room:
                    break

    def _time_all(self, graph: Graph, nodes: list[fx.Node]) -> None:
        """Sets the times of all kernels, which run at the same time as copies."""
        rest = [place for place, value in enumerate(graph.values) if value.kind == "kernel" and not value.us]
        for place, time_us in zip(rest, self.kernels([nodes[place] for place in rest]), strict=True):
            graph.values[place].us = time_us
        self.us = {nodes[place].name: value.us for place, value in enumerate(graph.values) if value.kind == "kernel"}

    def _misfit(self, needed: int) -> DoesNotFit:
        assert self.chooser is not None and self.choice is not None
        division = self.choice.division
        where = f"Memory peaks in the {division.pass_at} pass, at {division.at} in the compiled graph."
        return DoesNotFit(
            f"the compiled graph does not fit in {as_given(self.terms.budget)}: it needs at least {as_needed(needed, self.terms.budget)}, "
            f"{text(self.terms.outside)} of it outside of the graph's own buffers. {where}",
            needed, self.terms.budget,
        )  # fmt: skip


def _wide(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return 0
    return properties.elements(value) * 4


def _on(node: fx.Node, device: torch.device) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.device.type == device.type
