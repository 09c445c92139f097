"""A recorded step of a model, to be planned within one budget after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput, DoesNotFit
from .memory.allocator import There
from .memory.cap import may_grow, most_reserved, reserve_of, there_on
from .memory.host import host_bytes
from .memory.sizes import UNLIMITED, Share, text
from .plan.buckets import bucket_bytes
from .plan.fitted import Fitted, least_of, make_plan
from .plan.watch import Assumed
from .record.cost import Card, assuming
from .record.measure import MEASURED
from .record.optimizer import optimizer_bytes
from .record.rehearse import CannotRehearse, Rehearsal, rehearse
from .record.times import times_of

__all__ = ["Question"]


@dataclass
class Question:
    """What is to be planned, without its budget.

    Attributes
    ----------
    card
        The card that times are predicted for; None for the model's own device.
    notes
        What was assumed of the program, in words.
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
        """What a plan answers, asked again within other budgets."""
        assumed, device = fitted.assumed, fitted.watch.device
        name = str(fitted.step.data["name"])
        return cls(name, fitted.rehearsal, device, assumed.state, assumed.scratch, assumed.outside + assumed.reserve, host, recomputes, None, [])

    def within(self, budget: int | Share) -> tuple[Fitted, bool]:
        """A plan within a budget, or else the one that needs least; and whether it fits."""
        if isinstance(budget, Share):
            budget = self._bytes_of(budget)
        try:
            return self._planned(budget, True), True
        except DoesNotFit as error:
            fitted = self._planned(error.needed_bytes, False, budget)
        fitted.budget = budget
        return fitted, False

    def fits(self, budget: int) -> bool:
        """Whether a plan within a budget is found."""
        try:
            self._planned(budget, True)
        except DoesNotFit:
            return False
        return True

    def least(self, fitted: Fitted) -> int:
        """The least budget in bytes for which a plan is found."""
        with assuming(self.card):
            return least_of(fitted)

    def _bytes_of(self, share: Share) -> int:
        """The bytes of a share; what libraries need is a part of them."""
        budget = share.of(self._planned(UNLIMITED, False, 1).plain)
        for _ in range(2):
            budget = share.of(self._planned(UNLIMITED, False, budget).plain)
        return budget

    def _planned(self, budget: int, must_have_room: bool, given: int | None = None) -> Fitted:
        """A plan; `given` is the budget of which a part is for libraries, if it is not this one."""
        limit = budget if given is None else given
        on = torch.device("cuda") if self.card is not None else self.device
        times = times_of(self.device) if self.device.type in MEASURED and self.card is None else None
        # What operations need beside their results is known where they were measured.
        reserve = reserve_of(limit, on) if limit < UNLIMITED and not (times and times.known) else 0
        outside = Assumed(self.state, self.scratch, self.buckets, reserve, 0)
        grows = limit < UNLIMITED and may_grow(self.device)
        most, there = (most_reserved(limit), there_on(self.device)) if grows and budget < UNLIMITED else (None, There())
        with assuming(self.card):
            fitted = make_plan(
                self.rehearsal, self.device, self.name, budget, outside, time.monotonic(), times, self.host, 0, most, there,
                must_have_room=must_have_room, recomputes=self.recomputes,
            )  # fmt: skip
        if self.card is not None:
            fitted.card = self.card.name
        fitted.step.assumed.extend(self.notes)
        return fitted
