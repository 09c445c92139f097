"""A plan of one form of inputs: decisions within the budget, as they are carried out, or the least budget that was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..memory.allocator import There, budget_for
from ..memory.sizes import UNLIMITED, text
from ..record.cost import device_name
from ..record.data import Step
from ..record.recorder import Recorder
from ..record.rehearse import Rehearsal
from .bound import Bound, bind
from .counts import Counts
from .decide import Decided
from .liveness import Lives
from .reserved import reserved
from .simulate import Outcome
from .watch import Assumed, Watch

__all__ = ["Fitted"]

# A plan does not count if it needs more than its budget by this share for the gaps between blocks.
CROWDED = 16
# Passes of a plan after which the order in which their backward passes read is looked at.
ORDERED = 6
# If no other reader asks for dropped tensors in this number of backward passes, no more calls are noted to make them again.
SURE = 16


@dataclass
class Fitted:
    """A plan of one form of inputs.

    Attributes
    ----------
    step, lives
        The step, and who reads and writes its tensors.
    whole
        The same before anything is left out that no backward pass reads.
    decided
        The decisions and the planner's prediction.
    bound
        The plan as it is carried out, or None if everything fits as it is.
    seconds
        Time of recording and planning.
    rehearsal
        The recording, and the assumptions about the program.
    watch, stale
        The allocator's counts in its first passes, and whether another plan takes its place.
    over
        Whether its passes need more than the budget, and no other plan was found. Then it stays, and the allocator's bound is their need.
    assumed
        The bytes that were planned for and that no recording shows.
    learned, weights
        Whether that was compared with the first step; until then, the model's trained parameters, and the version of each.
    recorded_s
        Time until it was recorded, of `seconds`.
    used
        The last pass that used it, by number.
    passes, disordered
        Its passes, and how many of them had read in another order when these were last looked at.
    there
        The bytes that the allocator had reserved before, if its segments grow.
    card
        The card that times are predicted for, if it is not the device.
    bounds, states
        The plan as it is carried out with and without noted calls for tensors that nobody reads, once it is carried out without; and the modules and
        parameters that showed it, with whether they train.
    """

    step: Step
    lives: Lives
    decided: Decided
    bound: Bound | None
    budget: int
    seconds: float
    rehearsal: Rehearsal
    watch: Watch
    assumed: Assumed
    whole: tuple[Step, Lives]
    stale: bool = False
    over: bool = False
    learned: bool = False
    weights: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    recorded_s: float = 0.0
    used: int = 0
    passes: int = 0
    disordered: int = 0
    counts: Counts = field(default_factory=Counts)
    there: There | None = None
    card: str = ""
    bounds: tuple[Bound, Bound] | None = None
    states: tuple[list[nn.Module], list[nn.Parameter], list[bool]] = field(default_factory=lambda: ([], [], []))

    def is_switched(self, module: nn.Module) -> bool:
        """Decides whether calls are noted to make again what nobody reads; asked before each pass. Returns whether that has changed."""
        bound = self.bound
        if self.bounds is None:
            if bound is None or not bound.dropped or bound.is_asked or bound.ended < SURE:
                return False
            spare = bind(self.step, self.lives, self.decided.decisions, self.recorder, spares=True)
            if not spare.looks:
                spare = bound
            spare.expect(module)
            self.bounds = bound, spare
            parts = dict(module.named_modules())
            modules = [parts[name] for name in spare.looks if name in parts]
            parameters = [parameter for part in modules for parameter in part.parameters(recurse=False)]
            self.states = modules, parameters, [part.training for part in modules] + [parameter.requires_grad for parameter in parameters]
        whole, spare = self.bounds
        # This is asked before the first kernel of a step, when nothing else is queued.
        modules, parameters, before = self.states
        is_same = [part.training for part in modules] + [parameter.requires_grad for parameter in parameters] == before
        self.bound = spare if is_same and not whole.is_asked and not spare.is_asked else whole
        return self.bound is not bound

    def is_often_out_of_order(self) -> bool:
        """Whether most of the last passes read in another order than recorded; asked once in each."""
        self.passes += 1
        if self.passes % ORDERED:
            return False
        before, self.disordered = self.disordered, self.counts.out_of_order
        return 2 * (self.disordered - before) > ORDERED

    @property
    def recorder(self) -> Recorder:
        """The recording."""
        return self.rehearsal.recorder

    @property
    def peak(self) -> int:
        """Predicted peak in bytes."""
        return self.outcome.peak

    @property
    def needed(self) -> int:
        """The least budget in bytes for this plan, where that is known with the gaps between blocks."""
        if self.there is None or self.bound is None:
            return self.peak
        return max(self.peak, budget_for(reserved(self.lives, self.decisions, None, self.there).bytes))

    @property
    def is_roomy(self) -> bool:
        """Whether there is enough room for the gaps between blocks, as far as that is known."""
        return self.needed <= self.budget + self.budget // CROWDED

    @property
    def decisions(self) -> dict[int, dict[str, Any]]:
        """The decision for each tensor that is not just kept."""
        return self.bound.decisions if self.bound is not None else self.decided.decisions

    @property
    def outcome(self) -> Outcome:
        """The prediction."""
        return self.bound.outcome if self.bound is not None else self.decided.outcome

    @property
    def plain(self) -> int:
        """Predicted peak in bytes if everything is kept."""
        return self.decided.plain.peak

    @property
    def overhead(self) -> float:
        """Predicted added time, as a share of the step."""
        return self.outcome.time_us / max(self.decided.plain.time_us, 1e-9) - 1

    @property
    def dropped(self) -> int:
        """Bytes of tensors that are saved and never read, which the plan drops."""
        return sum(self.lives.bytes[tensor] for tensor in self.step.dropped.keys() - self.step.masked)

    @property
    def masked(self) -> int:
        """Bytes of tensors that are saved and read for their signs alone, which the plan keeps as bits."""
        return sum(self.lives.bytes[tensor] for tensor in self.step.masked)

    @property
    def gap(self) -> float | None:
        """The difference of the predicted time from the bound of plans with this room, as a share of the bound, or None without a bound."""
        gap = self.decided.gap_of(self.outcome)
        return None if gap is None else max(0.0, gap)

    def brief(self, name: str) -> str:
        """The first facts for a user, on one line."""
        where = f"predicted for {self.device}"
        if self.peak > self.budget:
            return f"{name} does not fit in {text(self.budget)} (plain needs {text(self.plain)}); it needs at least {text(self.peak)}"
        if self.bound is None:
            within = "" if self.budget >= UNLIMITED else f" and fits in {text(self.budget)}; nothing is changed"
            return f"{name} needs {text(self.plain)}{within}"
        return (
            f"training {name} in {text(self.budget)} (plain needs {text(self.plain)}): {self.does}, about {100 * self.overhead:.1f}% slower, {where}"
        )

    @property
    def does(self) -> str:
        """The actions of a step that a plain step does not have."""
        outcome = self.outcome
        parts = [(outcome.moved, f"moves {text(outcome.moved)}"), (outcome.rebuilt_us >= 50, f"recomputes {outcome.rebuilt_us / 1e3:.1f} ms")]
        parts += [(self.dropped, f"drops {text(self.dropped)}"), (self.masked, f"keeps {text(self.masked)} as signs")]
        return ", ".join(word for is_so, word in parts if is_so) or "keeps everything in other places"

    @property
    def device(self) -> str:
        """The device that times are predicted for."""
        return f"{self.card}, by its data sheet" if self.card else device_name(self.watch.device)

    def line(self, name: str) -> str:
        """The actions of the plan, on one line."""
        if self.peak > self.budget:
            return f"{name}: does not fit in {text(self.budget)} (plain {text(self.plain)}); the least budget found is {text(self.peak)}"
        if self.bound is None:
            fits = "" if self.budget >= UNLIMITED else f" fits in {text(self.budget)}; nothing is changed"
            return f"{name}: predicted peak {text(self.peak)}{fits}"
        outcome = self.bound.outcome
        gap = f" (gap {100 * self.gap:.1f}%)" if self.gap is not None else ""
        dropped = f"{text(self.dropped)} dropped that nothing reads, " if self.dropped else ""
        dropped += f"{text(self.masked)} kept as signs, " if self.masked else ""
        return (
            f"{name}: predicted peak {text(self.peak)} of {text(self.budget)} (plain {text(self.plain)}), "
            f"overhead {100 * self.overhead:.1f}%{gap}, {dropped}{text(outcome.moved)} offloaded, "
            f"{outcome.rebuilt_us / 1e3:.1f} ms recomputed, planned in {self.seconds:.1f} s"
        )
