"""A recorded step of a model, to be planned within one budget after another."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .memory.allocator import may_grow, most_reserved, reserve_of, there_on
from .memory.host import host_bytes
from .memory.reservation import InitialReservation
from .memory.sizes import UNLIMITED, Share, text
from .plan.buckets import bucket_bytes
from .plan.fitted import Fitted
from .plan.make import least_of, make_plan, misfit, step_of
from .plan.liveness import Lives
from .plan.simulate import simulate
from .plan.watch import Assumed
from .record.cost import Card, assuming
from .record.measure import MEASURED
from .record.optimizer import optimizer_bytes
from .record.rehearse import CannotRehearse, Rehearsal, rehearse
from .record.times import Times, times_of

__all__ = ["Question"]

# Budgets that are tried to find one that fits with its gaps.
_TRIES = 4


@dataclass(eq=False)
class Question:
    """What is to be planned, without its budget.

    Attributes
    ----------
    card
        The card that times are predicted for; None for the model's own device.
    notes
        What was assumed of the program, in words.
    lowest
        The plan with the least need that was found.
    """

    name: str
    rehearsal: Rehearsal
    device: torch.device
    state: int
    scratch: int
    buckets: int
    host: int | None
    recomputes: bool
    card: Card | None
    notes: list[str]
    lowest: Fitted | None = None

    @classmethod
    def about(
        cls, model: nn.Module, device: torch.device, inputs: Any, kwargs: dict[str, Any] | None, optimizer: Any,
        loss: Callable[[Any], Tensor] | None, host: int | None, recomputes: bool, card: Card | None,
    ) -> Question:  # fmt: skip
        """Records a step on fake tensors.

        Raises
        ------
        BadInput
            If the model cannot be recorded without running it.
        """
        args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        try:
            rehearsal = rehearse(model, args, kwargs or {}, loss)
        except CannotRehearse as error:
            raise BadInput(f"the model cannot be planned without running it: {error}") from error
        state, scratch, guess = optimizer_bytes(optimizer, model, device)
        buckets = bucket_bytes(model, device)
        ranks = f"DistributedDataParallel has {text(buckets)} of buckets" if buckets else ""
        notes = [note for note in (*rehearsal.assumed, guess, ranks) if note]
        return cls(type(model).__name__, rehearsal, device, state, scratch, buckets, host if host is not None else host_bytes(), recomputes, card, notes)

    @classmethod
    def of(cls, fitted: Fitted, host: int | None, recomputes: bool) -> Question:
        """The question that a plan answers, to ask it again for other budgets."""
        assumed, device = fitted.assumed, fitted.watch.device
        name = str(fitted.step.data["name"])
        return cls(name, fitted.rehearsal, device, assumed.state, assumed.scratch, assumed.outside + assumed.reserve, host, recomputes, None, [])

    def within(self, budget: int | Share) -> tuple[Fitted, bool]:
        """Returns a plan within a budget and True. If none fits, it returns the plan with the least need and False."""
        if isinstance(budget, Share):
            budget = budget.of(self.plain)
        fitted = self._planned(budget)
        if not fitted.fits:
            fitted = replace(self._lower(fitted), budget=budget)
        return fitted, fitted.fits

    def planned(self, budget: int | Share) -> Fitted:
        """The plan within a budget.

        Raises
        ------
        BudgetTooSmall
            If none fits.
        """
        fitted, fits = self.within(budget)
        if not fits:
            raise misfit(self.name, fitted.step, fitted.outcome, fitted.budget, fitted.needed)
        return fitted

    def fits(self, budget: int) -> bool:
        """Whether a plan within a budget is found."""
        return self.within(budget)[1]

    def least(self, fitted: Fitted) -> int:
        """The least budget in bytes for which a plan was found."""
        with assuming(self.card):
            least = least_of(fitted)
        if not self._grows:
            return self._lower(least).needed
        # A plan without a limit is made without regard to gaps between blocks. If gaps count, the answer must fit with them.
        found = least.needed
        for _ in range(_TRIES):
            fitted = self._planned(found)
            if fitted.fits:
                break
            found = max(fitted.needed, found + 1)
        return found

    def _lower(self, fitted: Fitted) -> Fitted:
        """The plan with the least need so far. Searches are limited in time, so a later one may miss the plan of an earlier one."""
        if self.lowest is None or fitted.needed < self.lowest.needed:
            self.lowest = fitted
        return self.lowest

    @property
    def _grows(self) -> bool:
        """Whether the gaps between the allocator's blocks are predicted."""
        return self.card is None and may_grow(self.device)

    @functools.cached_property
    def plain(self) -> int:
        """Bytes of a step that keeps everything."""
        return self._kept + self.reserve

    @functools.cached_property
    def reserve(self) -> int:
        """Assumed bytes for libraries, if not measured. They are the same for every budget, so that all plans compare with one plain step."""
        on = torch.device("cuda") if self.card is not None else self.device
        return 0 if self._times is not None and self._times.known else reserve_of(self._kept * 4 // 3, on)

    @functools.cached_property
    def _times(self) -> Times | None:
        return times_of(self.device) if self.device.type in MEASURED and self.card is None else None

    @functools.cached_property
    def _kept(self) -> int:
        """The peak of a step that keeps everything, without the bytes of libraries."""
        outside = Assumed(self.state, self.scratch, self.buckets, 0, 0)
        with assuming(self.card):
            step = step_of(self.rehearsal, self.device, self.name, outside, self._times, self.host, self.recomputes)
        return simulate(Lives(step.data), {}).peak

    def _planned(self, budget: int) -> Fitted:
        """The plan within a budget, or the plan with the least need if none is."""
        outside = Assumed(self.state, self.scratch, self.buckets, self.reserve, 0)
        grows = budget < UNLIMITED and self._grows
        most, there = (most_reserved(budget), there_on(self.device)) if grows else (None, InitialReservation())
        with assuming(self.card):
            fitted = make_plan(
                self.rehearsal, self.device, self.name, budget, outside, time.monotonic(), self._times, self.host, 0, most, there,
                must_have_room=True, must_fit=False, recomputes=self.recomputes,
            )  # fmt: skip
        if self.card is not None:
            fitted.card = self.card.name
        fitted.step.assumed.extend(self.notes)
        if not fitted.fits or fitted.schedule is not None:
            self._lower(fitted)
        return fitted
