"""Holds the budget of all compiled graphs of a process, and compares the peaks of real steps with it.

Dynamo compiles a graph at its first call, in the first step. Memory that the program uses outside of compiled graphs is known only later::

    call 1   compiled: weights and inputs are allocated; the bytes of the optimizer's state are computed, the bytes of the loss are assumed
    call 2   the calls of a step are known; if its graphs do not fit together, they are compiled once more
    call 3   the peak of a whole step is measured; if it is over the budget, all graphs are compiled once more with that
"""

from __future__ import annotations

import functools
import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, fx

from ..._share import as_given, as_needed
from ...errors import DoesNotFit
from ..memory.peaks import Peaks
from ..memory.sizes import UNLIMITED, Share, text
from ..messages import detail, say
from ..record.cost import device_name
from ..record.optimizer import Optimizers, assumed_bytes, optimizer_bytes
from . import private, properties
from .graph import Rates
from .kept import Kept
from .kernels import Kernels
from .parts import Need, Part, Parts, part_of_split, peak_of, read
from .plan import Plan, Planned, Terms
from .ranks import Ranks
from .sequence import Divided, divided, leasts, named, together
from .sharded import alike, sharded_bytes

__all__ = ["Held", "all_held", "have_run", "held_by"]

# Reserved on a GPU: the bytes that libraries keep, and the budget divided by _ROUNDING for rounded allocations.
_LIBRARIES, _ROUNDING = 48 << 20, 256
# The step before which a whole step has been measured, and the number of steps that are checked.
_SEEN, _LOOKED = 3, 24
_AGAIN = 2
# The most calls of a step that are noted.
_CALLS = 4096
# A later part of a split model may exceed the budget by the budget divided by this.
_SLACK = 16

_held: dict[tuple[str, int | Share], Held] = {}
_ranks = Ranks()


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
    """Whether the backward pass of a compiled graph has run, so training has begun."""
    return any(held.is_backward or held.steps or held.again for held in _held.values())


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
        # By graph, the bytes at its first compilation and whether the optimizer's state was among them. Bytes that other graphs kept are left out. Later,
        # bytes exist that steps were measured to take.
        self.there: dict[str, tuple[int, bool]] = {}
        # By graph, the calls before a backward pass for which it was planned.
        self.calls: dict[str, int] = {}
        # The calls of graphs in this step and in the last one, up to the backward pass, and the graphs whose calls were looked at.
        self.order: list[str] = []
        self.last: list[str] = []
        self.looked: set[str] = set()
        # Whether an earlier process had other calls in a step.
        self.was_other = False
        # The number of times that all graphs were compiled again with a measured peak.
        self.again = 0
        # Steps whose backward pass has begun, and whether the backward pass of the current step has.
        self.steps = 0
        self.is_backward = False
        # The peaks of the forward pass and of the loss in the step that is measured.
        self.passes: list[int] = []
        # Of the model that DistributedDataParallel split last.
        self.parts: Parts | None = None

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda" and torch.cuda.is_available())

    def terms(self, key: str, inputs: Sequence[Any], optimizer: Any, part: Part | None = None) -> Terms:
        """The terms of a graph, or of a part of a model, that are known before its joint graph."""
        if part is not None:
            inputs = part.inputs
            if self.parts is None or self.parts.split is not part.split:
                self.parts = Parts(part.split)
        trained = [value for value in _tensors(inputs) if isinstance(value, torch.nn.Parameter) and value.requires_grad]
        sizes = [properties.elements(value) * value.itemsize for value in trained]
        found = optimizer or _optimizers(trained)
        if found is None and _ranks.count > 1:
            # Parameters of split and sharded models are not the optimizer's own tensors.
            found = _optimizers(None)
        if not torch.is_grad_enabled():
            # Training takes no step now.
            state, assumed = 0, ""
        elif found is None:
            state, _, assumed = assumed_bytes(sizes, self.device)
        else:
            state, _, assumed = optimizer_bytes(found, None, self.device)
        there = sum({id(value): _size(value) for value in _tensors(inputs)}.values())
        reserve = 0
        if self.on_gpu:
            there = int(torch.cuda.memory_allocated(self.device))
            total = int(torch.cuda.mem_get_info(self.device)[1])
            reserve = _LIBRARIES + min(self.budget, total) // _ROUNDING
        elif part is not None:
            there += part.buckets
        sharded = sharded_bytes(found) if part is None and _ranks.count > 1 and torch.is_grad_enabled() else 0
        if sharded:
            # Buffers of communication in a backward pass: the parameters that are gathered next, as received and as copied, and the gradients before.
            reserve += 3 * sum(sizes)
            there += 0 if self.on_gpu else sharded
        has_state, others = False, 0
        if torch.is_grad_enabled():
            others = self._others(key) if part is None else 0
            before = there - self._kept_by_others(key) if self.on_gpu and part is None else there
            before, has_state = self.there.setdefault(key, (before, bool(found is not None and found.state)))
            there = before + others
        outside = there + (0 if has_state else state) + reserve
        if part is not None and self.parts is not None:
            outside += self.parts.kept
        if torch.is_grad_enabled():
            outside += self.kept.surplus.get(key, 0)
        # Rounded coarsely, since it is part of the keys of PyTorch's caches of compiled graphs.
        step = max(1, (self.budget if self.budget < UNLIMITED else outside) >> 9)
        return Terms(self.budget, -(-outside // step) * step, assumed=assumed, share=self.share, gradients=sharded, others=others)

    def compile(
        self, graph: fx.GraphModule, inputs: Sequence[Any], inner: str, settings: dict[str, Any], optimizer: Any, offloads: bool = True
    ) -> Callable[..., Any]:
        """Compiles a graph of the program so that its steps stay within the budget."""
        if self.share is not None and not torch.is_grad_enabled():
            # The share is of the need of training.
            return private.compile_with(inner, None, graph, inputs, settings)
        limit = str(self.share or self.budget)
        key = _key(graph, inputs, limit, inner)
        part = part_of_split() if torch.is_grad_enabled() else None
        terms = self.terms(key, inputs, optimizer, part)
        terms.offloads = offloads
        _ranks.next_graph()
        # The rank with the least room decides.
        terms.outside = terms.budget + _ranks.largest("room", terms.outside - terms.budget)
        parts = self._together(key, part, terms, inner, settings)
        identity = ("tightfit", private.source(), limit, terms.outside, terms.loss, terms.calls, terms.later, terms.gradients, offloads)
        is_among = terms.share is None and torch.is_grad_enabled() and bool(terms.others or part is None and key in self.kept.together)
        if is_among:
            # The step that shows all calls may be over the budget.
            terms.slack = terms.budget
        plan = Plan(terms, inner, Rates(self.kernels.memory), self.kernels, identity, _ranks)
        try:
            run = private.compile_with(inner, plan, graph, inputs, settings)
        except DoesNotFit as error:
            if part is not None:
                raise DoesNotFit(f"{error}. {part.splits}", error.needed_bytes, error.limit_bytes) from None
            if torch.is_grad_enabled() or not have_run():
                raise
            say(f"{error}; it runs nevertheless, since training has begun")
            return private.compile_with(inner, None, graph, inputs, settings)
        if not plan.chosen:
            # Another rank may wait for the division of a graph that comes from a cache here.
            _ranks.tell("division 0", None)
        if plan.inferred is not None:
            detail(f"compiled graph without gradients: predicted peak {text(plan.inferred)} fits in {text(terms.budget)}")
        if not torch.is_grad_enabled():
            return run
        # Modules that are alike may be compiled one by one. Together, they are one graph that is called several times.
        is_new = key not in self.graphs
        one = self.graphs.setdefault(key, _Graph(key))
        one.plan = plan
        one.outside, one.is_part = terms.outside - terms.others, part is not None
        one.planned = self._numbers(key, plan, terms)
        if one.planned is not None:
            if self.share is not None:
                self.budget = terms.budget if self.budget == UNLIMITED else max(self.budget, terms.budget)
            if parts is None and is_new:
                say(brief(one.planned.times(self.calls[key]), terms, self.device))
            detail(line(one.planned, terms))
        if is_among and one.planned is not None and key not in self.kept.together:
            self._refuse(self._expected([*self.order, key]))
        if part is not None and parts is not None:
            parts.note(part, one.planned)
            if part.is_last and len(parts.planned) == part.count:
                say(brief(parts.whole, terms, self.device))
        self.kept.save()
        return _Runs(self, one, run)

    def _together(self, key: str, part: Part | None, terms: Terms, inner: str, settings: dict[str, Any]) -> Parts | None:
        """Sets the bytes for later parts of a model, or the number of calls of a graph before its backward pass. Returns the parts."""
        if part is None:
            if torch.is_grad_enabled():
                if key not in self.calls:
                    self.calls[key] = self.kept.calls.get(key) or alike()
                terms.calls = self.calls[key]
                among = self.kept.together.get(key)
                if among is not None and among.kept is not None:
                    terms.later = max(0, terms.room - terms.calls * among.kept)
            return None
        parts = self.parts
        assert parts is not None
        terms.gradients = part.later_gradients
        place = _place(key, terms)
        if not parts.reads and (terms.share is not None or place not in self.kept.later):
            parts.reads = [read(one, inner, self.kernels, settings, terms.offloads) for one in part.rest]
        if terms.share is not None:
            parts.budget = parts.budget or terms.share.of(terms.outside + parts.need)
            terms.budget, terms.share = parts.budget, None
        if part.number:
            # Earlier parts are compiled. If this one needs a little more than computed, all are compiled once more after the first steps.
            terms.slack = terms.budget // _SLACK
        if place not in self.kept.later:
            self.kept.later[place] = parts.later(part, terms.room) or 0
        terms.later = None if part.is_last else self.kept.later[place]
        return parts

    def _numbers(self, key: str, plan: Plan, terms: Terms) -> Planned | None:
        """The plan of a graph in numbers; an earlier process made it if PyTorch's caches held the graph."""
        place = _place(key, terms)
        if plan.planned is not None:
            self.kept.plans[place] = {**asdict(plan.planned), "saved": [], "seconds": 0.0, "budget": terms.budget}
            return plan.planned
        found = dict(self.kept.plans.get(place, {}))
        budget = found.pop("budget", 0)
        try:
            planned = Planned(**found)
        except TypeError:
            # Unknown, or written by another version.
            return None
        terms.budget = budget
        return planned

    @property
    def planned(self) -> list[Planned]:
        """The plans of its graphs."""
        return [graph.planned for graph in self.graphs.values() if graph.planned is not None]

    @property
    def predicted(self) -> int:
        """The predicted peak of the last step."""
        return max([self._peak(self.last), *(graph.predicted for graph in self.graphs.values())])

    def called(self, one: _Graph) -> None:
        """Called before each call of a graph: checks the peak of the steps so far."""
        if self.steps > _LOOKED or not torch.is_grad_enabled():
            return
        if self.is_backward:
            self.is_backward = False
            self.steps += 1
            for graph in self.graphs.values():
                graph.waiting = 0
            self.last, self.order = self.order, []
            if not self._join(self.last):
                self._step()
        if not one.is_part and len(self.order) < _CALLS:
            self.order.append(one.key)
        one.waiting += 1
        one.at_once = max(one.at_once, one.waiting)

    def _others(self, key: str) -> int:
        """Bytes that other graphs of a step keep at the last call of a graph, as far as they are known."""
        known = self.kept.together.get(key)
        return self._kept_by_others(key) if known is None else known.others

    def _kept_by_others(self, key: str) -> int:
        """Bytes kept by other graphs that were called in this step."""
        if self.is_backward or self.share is not None:
            return 0
        graphs = [graph for graph in self.graphs.values() if graph.key != key]
        # Calls without a backward pass, as in an evaluation, keep nothing.
        return sum(min(graph.waiting, self.calls.get(graph.key, 1)) * graph.planned.kept for graph in graphs if graph.planned is not None)

    def _expected(self, order: list[str]) -> list[str]:
        """The calls of a step, given the first ones: each graph is called as often as there are modules like its own."""
        found: Counter[str] = Counter()
        calls = [key for key in order if not found.update([key]) and found[key] <= self.calls.get(key, 1)]
        return calls + [key for key, count in found.items() for _ in range(self.calls.get(key, 1) - count)]

    def _divided(self, order: Sequence[str]) -> dict[str, Divided]:
        found = {}
        for key in dict.fromkeys(order):
            graph = self.graphs.get(key)
            if graph is not None and graph.planned is not None:
                found[key] = divided(graph.plan, graph.planned, graph.outside, key == order[-1])
        return found

    def _refuse(self, order: list[str]) -> None:
        """Refuses a budget that these calls cannot meet.

        Raises
        ------
        DoesNotFit
            If their graphs do not fit together.
        """
        if self._peak(order) <= self.budget or have_run():
            return
        graphs = self._divided(order)
        needed = leasts([key for key in order if key in graphs], graphs)
        if needed > self.budget:
            raise DoesNotFit(
                f"{len(graphs)} compiled graphs do not fit together in {as_given(self.budget)}: they need at least {as_needed(needed, self.budget)}",
                needed, self.budget,
            )  # fmt: skip

    def _peak(self, order: list[str]) -> int:
        """The predicted peak of a step with these calls."""
        graphs = [graph for key in order if (graph := self.graphs.get(key)) is not None and graph.planned is not None]
        needs = [Need(graph.planned.kept, graph.outside + graph.planned.peak - graph.plan.terms.outside) for graph in graphs if graph.planned]
        return peak_of(needs)

    def _join(self, order: list[str]) -> bool:
        """Compiles all graphs of a step once more if they do not fit one after another."""
        if len(set(order)) < 2 or self.share is not None or self.looked.issuperset(order):
            return False
        self.looked.update(order)
        known = {one.step for key in order if (one := self.kept.together.get(key)) is not None}
        if _ranks.largest(f"known {len(self.looked)}", len(known - {named(order)})) and not self.was_other:
            # Of another program with the same graphs.
            self.was_other = True
            for key in order:
                self.kept.together.pop(key, None)
            self._compile_again()
            return True
        if known or _ranks.largest(f"sequence {len(self.looked)}", self._peak(order)) <= self.budget:
            return False
        if not self._share(order):
            return False
        say("compiled: the graphs of a step do not fit as they were compiled; all are compiled once more, together")
        self._compile_again()
        return True

    def _share(self, order: list[str]) -> bool:
        """Shares the budget among the graphs of a step. Returns whether they fit."""
        graphs = self._divided(order)
        planned = [key for key in order if key in graphs]
        found = together(planned, graphs, self.budget)
        if found is None:
            needed = as_needed(leasts(planned, graphs), self.budget)
            say(f"compiled: the graphs of a step need at least {needed}, more than {as_given(self.budget)}; training goes on")
            return False
        for key, one in found.items():
            self.kept.together[key] = replace(one, others=_ranks.largest(f"others {key} {self.again}", one.others), step=named(order))
        self.kept.save()
        return True

    def _compile_again(self) -> None:
        self.graphs.clear()
        self.looked.clear()
        self.steps = 0
        private.reset()

    def returned(self, results: Any) -> None:
        """Called with the results of each call of a graph, to see when the backward pass begins."""
        if self.steps <= _LOOKED and torch.is_grad_enabled():
            for value in results if isinstance(results, list | tuple) else (results,):
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    value.grad_fn.register_prehook(self._begins)
                    break
            if self.on_gpu and self.steps == _SEEN - 2:
                self._passed()

    def _begins(self, gradients: Any) -> None:
        if not self.is_backward and self.on_gpu and self.steps == _SEEN - 2:
            self._passed()
        self.is_backward = True

    def _passed(self) -> None:
        """Notes the peak of a part of the step."""
        self.passes.append(int(torch.cuda.max_memory_allocated(self.device)))
        torch.cuda.reset_peak_memory_stats(self.device)

    def _step(self) -> None:
        """Called when a step has ended and the next one begins."""
        if not self.on_gpu:
            return
        if self.steps == _SEEN - 2:
            _peaks().restart()
        elif self.steps >= _SEEN - 1:
            self._look()

    def _look(self) -> None:
        if not self.planned:
            return
        is_first = self.steps == _SEEN - 1
        # Programs reset the statistics of the allocator in the middle of a step.
        seen = _peaks().of(self.device)
        if _ranks.count > 1:
            if not is_first:
                # Ranks compile again together or not at all.
                return
            seen = _ranks.largest(f"step {self.again}", seen)
        predicted = self.predicted
        over = seen > self.budget
        if is_first:
            passes = [*self.passes[-2:], int(torch.cuda.max_memory_allocated(self.device))] if self.on_gpu else []
            parts = ", ".join(f"{text(peak)} in {part}" for part, peak in zip(("the forward pass", "the loss", "the rest"), passes, strict=False))
            detail(f"compiled: a step took {text(seen)} of {text(self.budget)} (predicted {text(predicted)}){f': {parts}' if parts else ''}")
        elif not over:
            return
        # A step that takes less than predicted changes nothing: the error is of this division, and the next one might be over the budget.
        if not over or self.again >= _AGAIN:
            return
        self.again += 1
        often = [graph for graph in self.graphs.values() if graph.at_once != self.calls.get(graph.key, 1)]
        for graph in often:
            self.kept.calls[graph.key] = self.calls[graph.key] = graph.at_once
        for graph in () if often else self.graphs.values():
            self.kept.surplus[graph.key] = self.kept.surplus.get(graph.key, 0) + seen - predicted
            graph.outside += seen - predicted
        if not often and any(key in self.kept.together for key in self.last):
            self._share(self.last)
        self.kept.save()
        why = (
            f"a graph is called {max(graph.at_once for graph in often)} times before its backward pass" if often
            else f"{text(seen - predicted)} more than predicted exist beside the graphs"
        )  # fmt: skip
        say(f"compiled: {why}; all is compiled once more with that")
        self._compile_again()


@functools.cache
def _peaks() -> Peaks:
    return Peaks()


class _Graph:
    """One compiled graph.

    Attributes
    ----------
    waiting, at_once
        Calls of this step so far, and the most of any step, before the backward pass.
    outside
        Bytes outside of the buffers of all graphs.
    is_part
        Whether it is a part of a split model.
    """

    plan: Plan
    planned: Planned | None

    def __init__(self, key: str) -> None:
        self.key = key
        self.waiting = self.outside = 0
        self.is_part = False
        self.at_once = 1

    @property
    def predicted(self) -> int:
        """The predicted peak of a step, with the bytes that all calls of the graph keep."""
        return 0 if self.planned is None else self.planned.times(self.at_once).peak


class _Runs:
    """Runs a compiled graph."""

    def __init__(self, held: Held, graph: _Graph, run: Callable[..., Any]) -> None:
        self.held = held
        self.graph = graph
        self.run = run
        self._boxed_call = getattr(run, "_boxed_call", False)

    def __call__(self, *args: Any) -> Any:
        # While a model is split, each part runs once on fake tensors.
        if any(type(value).__name__ == "FakeTensor" for value in args):
            return self.run(*args)
        self.held.called(self.graph)
        results = self.run(*args)
        self.held.returned(results)
        return results


def brief(planned: Planned, terms: Terms, device: torch.device) -> str:
    """The first line for a user."""
    if planned.is_plain:
        return f"the compiled model needs {text(planned.plain)} and fits in {text(terms.budget)}; nothing is changed"
    return (
        f"training a compiled model in {text(terms.budget)} (plain needs {text(planned.plain)}): {_ways(planned)}, for "
        f"{planned.overhead_us / 1e3:.1f} ms more in a step, predicted for {device_name(device)}"
    )


def _ways(planned: Planned) -> str:
    moved = f"offloads {text(sum(planned.moved.values()))}" if planned.moved else ""
    return " and ".join(filter(None, (moved, "recomputes" if planned.again or not moved else "")))


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


def _optimizers(trained: list[Any] | None) -> Optimizers | None:
    """The program's optimizers of these parameters, or all of them."""
    mine = {id(parameter) for parameter in trained or ()}
    found = []
    for one in gc.get_objects():
        # isinstance would follow weak references.
        if issubclass(type(one), torch.optim.Optimizer) and getattr(one, "param_groups", None):
            if trained is None or any(id(parameter) in mine for group in one.param_groups for parameter in group["params"]):
                found.append(one)
    return Optimizers(found) if found else None


def _place(key: str, terms: Terms) -> str:
    """The key under which the plan of a graph is kept."""
    return f"{key} {terms.outside}"


def _key(graph: fx.GraphModule, inputs: Sequence[Any], budget: str, inner: str) -> str:
    shapes = [(tuple(map(str, value.shape)), str(value.dtype)) if isinstance(value, Tensor) else str(type(value)) for value in inputs]
    return hashlib.sha256(repr((graph.code, shapes, budget, inner, private.source().hex())).encode()).hexdigest()[:24]
