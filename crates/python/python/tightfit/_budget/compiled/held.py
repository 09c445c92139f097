"""Holds the budget of all compiled graphs of a process, and compares the peaks of real steps with it.

Dynamo compiles a graph at its first call, in the first step. Memory that the program uses outside of compiled graphs is known only later::

    call 1   compiled: weights and inputs are allocated; the bytes of the optimizer's state are computed, the bytes of the loss are assumed
    call 3   the peak of a whole step is measured; if it is over the budget or far below it, all graphs are compiled once more with that peak
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, fx

from ..memory.sizes import UNLIMITED, Share, text
from ..messages import detail, say
from ..record.cost import device_name
from ..record.optimizer import Optimizers, assumed_bytes, optimizer_bytes
from . import private, properties
from .graph import Rates
from .kept import Kept
from .kernels import Kernels
from .plan import Plan, Planned, Terms

__all__ = ["Held", "all_held", "have_run", "held_by"]

# Reserved on a GPU: the bytes that libraries keep, and the budget divided by _ROUNDING for rounded allocations.
_LIBRARIES, _ROUNDING = 48 << 20, 256
# The call of a graph at which a whole step has been measured, and the last call at which steps are checked.
_SEEN, _LOOKED = 3, 24
# Graphs are compiled again if a division costs time while this share of the budget stays unused.
_UNUSED = 0.04
_AGAIN = 2

_held: dict[tuple[str, int | Share], Held] = {}


def all_held() -> list[Held]:
    """All graphs of the process, by device and budget."""
    return list(_held.values())


def held_by(device: torch.device, budget: int | Share) -> Held:
    """The graphs on a device within a budget."""
    key = (str(device), budget)
    if key not in _held:
        _held[key] = Held(device, budget)
    return _held[key]


def have_run() -> bool:
    """Whether a compiled graph has run more than once, so training has begun."""
    return any(graph.calls > 1 for held in _held.values() for graph in held.graphs.values())


class Held:
    """All compiled graphs of a process on one device, within one budget."""

    def __init__(self, device: torch.device, budget: int | Share) -> None:
        self.device = device
        # Of a share, the bytes are known once a graph was read.
        self.share = budget if isinstance(budget, Share) else None
        self.budget = UNLIMITED if isinstance(budget, Share) else budget
        self.kept = Kept(device)
        self.kernels = Kernels(device, self.kept)
        self.graphs: dict[str, _Graph] = {}
        # By graph, the bytes that existed when it was compiled first, and whether the optimizer's state was among them. Later, bytes exist that steps
        # were measured to take.
        self.there: dict[str, tuple[int, bool]] = {}
        # The number of times that all graphs were compiled again with a measured peak.
        self.again = 0

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda" and torch.cuda.is_available())

    def terms(self, key: str, graph: fx.GraphModule, inputs: Sequence[Any], optimizer: Any) -> Terms:
        """The terms of a graph that are known before its joint graph."""
        trained = [value for value in _tensors(inputs) if isinstance(value, torch.nn.Parameter) and value.requires_grad]
        sizes = [properties.elements(value) * value.itemsize for value in trained]
        found = optimizer or _optimizers(trained)
        if found is None:
            state, _, assumed = assumed_bytes(sizes, self.device)
        else:
            state, _, assumed = optimizer_bytes(found, None, self.device)
        there = sum({id(value): _size(value) for value in _tensors(inputs)}.values())
        reserve = 0
        if self.on_gpu:
            there = int(torch.cuda.memory_allocated(self.device))
            total = int(torch.cuda.mem_get_info(self.device)[1])
            reserve = _LIBRARIES + min(self.budget, total) // _ROUNDING
        there, has_state = self.there.setdefault(key, (there, bool(found is not None and found.state)))
        outside = there + (0 if has_state else state) + reserve + self.kept.surplus.get(key, 0)
        # Rounded coarsely, since it is part of the keys of PyTorch's caches of compiled graphs.
        step = max(1, (self.budget if self.budget < UNLIMITED else outside) >> 9)
        return Terms(self.budget, -(-outside // step) * step, assumed=assumed, share=self.share)

    def compile(
        self, graph: fx.GraphModule, inputs: Sequence[Any], inner: str, settings: dict[str, Any], optimizer: Any
    ) -> Callable[..., Any]:
        """Compiles a graph of the program so that its steps stay within the budget."""
        if not torch.is_grad_enabled():
            # Nothing is saved, so nothing is planned.
            return private.compile_with(inner, None, graph, inputs, settings)
        limit = str(self.share or self.budget)
        key = _key(graph, inputs, limit, inner)
        terms = self.terms(key, graph, inputs, optimizer)
        plan = Plan(terms, inner, Rates(self.kernels.memory), self.kernels, ("tightfit", private.source(), limit, terms.outside, terms.loss))
        run = private.compile_with(inner, plan, graph, inputs, settings)
        one = self.graphs[key] = _Graph(key, plan, *self._numbers(key, plan, terms))
        if one.planned is not None:
            if self.share is not None:
                self.budget = terms.budget if self.budget == UNLIMITED else max(self.budget, terms.budget)
            say(brief(one.planned, terms, self.device))
            detail(line(one.planned, terms))
        self.kept.save()
        return _Runs(self, one, run)

    def _numbers(self, key: str, plan: Plan, terms: Terms) -> tuple[Planned | None, bool]:
        """The plan of a graph in numbers, and whether an earlier process made it and PyTorch's caches held the graph."""
        place = f"{key} {terms.outside}"
        if plan.planned is not None:
            self.kept.plans[place] = {**asdict(plan.planned), "saved": [], "seconds": 0.0, "budget": terms.budget}
            return plan.planned, False
        found = dict(self.kept.plans.get(place, {}))
        budget = found.pop("budget", 0)
        try:
            planned = Planned(**found)
        except TypeError:
            # Unknown, or written by another version.
            return None, True
        terms.budget = budget
        return planned, True

    @property
    def planned(self) -> list[Planned]:
        """The plans of its graphs."""
        return [graph.planned for graph in self.graphs.values() if graph.planned is not None]

    def called(self, one: _Graph) -> None:
        """Called before each call of a graph: checks the peak of the steps so far."""
        one.calls += 1
        if not self.on_gpu or not torch.is_grad_enabled() or one.calls > _LOOKED or one is not next(iter(self.graphs.values())):
            return
        if one.calls == _SEEN - 1:
            torch.cuda.reset_peak_memory_stats(self.device)
        elif one.calls >= _SEEN:
            self._look(one)

    def _look(self, first: _Graph) -> None:
        planned = self.planned
        if not planned:
            return
        seen = int(torch.cuda.max_memory_allocated(self.device))
        predicted = max(one.peak for one in planned)
        gives_up = any(not one.is_plain for one in planned)
        over = seen > self.budget
        if first.calls == _SEEN:
            detail(f"compiled: a step took {text(seen)} of {text(self.budget)} (predicted {text(predicted)})")
        elif not over:
            return
        # A plan of an earlier process was compared with a step there.
        new = not first.is_kept
        unused = new and gives_up and seen < (1 - _UNUSED) * self.budget and first.calls == _SEEN and predicted - seen > _UNUSED / 2 * self.budget
        if not (over or unused) or self.again >= _AGAIN:
            return
        self.again += 1
        for graph in self.graphs.values():
            self.kept.surplus[graph.key] = self.kept.surplus.get(graph.key, 0) + seen - predicted
        self.kept.save()
        say(
            f"compiled: {text(abs(seen - predicted))} {'more' if seen > predicted else 'less'} than predicted exist beside the graphs; "
            "all is compiled once more with that"
        )
        self.graphs.clear()
        private.reset()


class _Graph:
    """One compiled graph; ``is_kept`` if an earlier process planned it."""

    def __init__(self, key: str, plan: Plan, planned: Planned | None, is_kept: bool) -> None:
        self.key = key
        self.plan = plan
        self.planned = planned
        self.is_kept = is_kept
        self.calls = 0


class _Runs:
    """Runs a compiled graph."""

    def __init__(self, held: Held, graph: _Graph, run: Callable[..., Any]) -> None:
        self.held = held
        self.graph = graph
        self.run = run
        self._boxed_call = getattr(run, "_boxed_call", False)

    def __call__(self, *args: Any) -> Any:
        self.held.called(self.graph)
        return self.run(*args)


def brief(planned: Planned, terms: Terms, device: torch.device) -> str:
    """The first line for a user."""
    if planned.is_plain:
        return f"the compiled model needs {text(planned.plain)} and fits in {text(terms.budget)}; nothing is changed"
    return (
        f"training a compiled model in {text(terms.budget)} (plain needs {text(planned.plain)}): recomputes, for {planned.overhead_us / 1e3:.1f} ms "
        f"more in a step, predicted for {device_name(device)}"
    )


def line(planned: Planned, terms: Terms) -> str:
    """A plan in one line."""
    assumed = f"; assuming that {terms.assumed}" if terms.assumed else ""
    if planned.is_plain:
        return f"compiled graph: predicted peak {text(planned.peak)} fits in {text(terms.budget)}; nothing is changed{assumed}"
    planning = f"planned in {planned.seconds:.1f} s for {planned.nodes} nodes" if planned.seconds else "planned by an earlier process"
    return (
        f"compiled graph: predicted peak {text(planned.peak)} of {text(terms.budget)} (plain {text(planned.plain)}), "
        f"{planned.overhead_us / 1e3:.1f} ms more, by {planned.of}, {planning}{assumed}"
    )


def _tensors(inputs: Sequence[Any]) -> list[Tensor]:
    return [value for value in inputs if isinstance(value, Tensor)]


def _size(value: Tensor) -> int:
    return int(properties.elements(value) * value.itemsize)


def _optimizers(trained: list[Any]) -> Optimizers | None:
    """The program's optimizers of these parameters."""
    mine = {id(parameter) for parameter in trained}
    found = []
    for one in gc.get_objects():
        # isinstance would follow weak references.
        if issubclass(type(one), torch.optim.Optimizer) and getattr(one, "param_groups", None):
            if any(id(parameter) in mine for group in one.param_groups for parameter in group["params"]):
                found.append(one)
    return Optimizers(found) if found else None


def _key(graph: fx.GraphModule, inputs: Sequence[Any], budget: str, inner: str) -> str:
    shapes = [(tuple(map(str, value.shape)), str(value.dtype)) if isinstance(value, Tensor) else str(type(value)) for value in inputs]
    return hashlib.sha256(repr((graph.code, shapes, budget, inner, private.source().hex())).encode()).hexdigest()[:24]
