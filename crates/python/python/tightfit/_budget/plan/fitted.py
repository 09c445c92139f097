"""A plan for one form of inputs: the decisions within the budget, bound to packs and unpacks, or the least budget that was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..._pictures import memory
from ..memory.allocator import budget_for
from ..memory.reservation import InitialReservation
from ..memory.sizes import UNLIMITED, text
from ..record.cost import device_name
from ..record.data import Step
from ..record.recorder import Recorder
from ..record.rehearse import Rehearsal
from .bind import bind
from .counts import Counts
from .decide import Decided
from .liveness import Lives
from .pack_schedule import PackSchedule
from .reserved import reserved
from .simulate import Outcome
from .watch import Assumed, Watch

__all__ = ["Fitted"]

# A plan is not counted as fitting if gaps between blocks take it over its budget by more than this share.
CROWDED = 16
# The order in which backward passes read saved tensors is checked after this number of passes.
ORDERED = 6
# If no other reader asks for a dropped tensor in this number of backward passes, calls are no longer noted to recompute dropped tensors.
SURE_PASSES = 16


@dataclass
class Fitted:
    """A plan of one form of inputs.

    Attributes
    ----------
    step, lives
        The step, and the readers and writers of its tensors.
    whole
        The step and its lives with all saved tensors, including the unread ones.
    decided
        The decisions and the planner's prediction.
    schedule
        The plan bound to packs and unpacks, or None if everything fits and nothing is done.
    seconds
        Time of recording and planning.
    rehearsal
        The recording, and the assumptions about the program.
    watch, stale
        The allocator's counts in its first passes, and whether the plan must be replaced.
    over
        Whether its passes need more than the budget and no other plan was found. It then stays, and the allocator's bound is raised to that need.
    assumed
        The assumed bytes that no recording shows.
    learned, weights
        Whether `assumed` was compared with the first step. Until then, the model's trained parameters, with their versions.
    recorded_s
        The part of `seconds` that recording took.
    used
        The last pass that used it, by number.
    passes, disordered
        The number of its passes, and how many of them had read in another order at the last check.
    there
        The bytes that the allocator had reserved before, if its segments grow.
    card
        The card that times are predicted for, if it is not the device.
    bounds, states
        The bound plan with and without noted calls for unread tensors, once both exist. `states` are the modules and parameters on which the second
        depends, and whether each trains.
    """

    step: Step
    lives: Lives
    decided: Decided
    schedule: PackSchedule | None
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
    there: InitialReservation | None = None
    card: str = ""
    bounds: tuple[PackSchedule, PackSchedule] | None = None
    states: tuple[list[nn.Module], list[nn.Parameter], list[bool]] = field(default_factory=lambda: ([], [], []))

    def is_switched(self, module: nn.Module) -> bool:
        """Decides before each pass whether calls are noted to recompute unread tensors. Returns whether the decision has changed."""
        bound = self.schedule
        if self.bounds is None:
            if bound is None or not bound.dropped or bound.is_asked or bound.ended < SURE_PASSES:
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
        # This runs before the first kernel of a step, while the GPU is idle, so it must be short.
        modules, parameters, before = self.states
        is_same = [part.training for part in modules] + [parameter.requires_grad for parameter in parameters] == before
        self.schedule = spare if is_same and not whole.is_asked and not spare.is_asked else whole
        return self.schedule is not bound

    def is_often_out_of_order(self) -> bool:
        """Whether most of the last passes read in another order than recorded. Must be called once in each pass."""
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
        if self.there is None or self.schedule is None:
            return self.peak
        return max(self.peak, budget_for(reserved(self.lives, self.decisions, None, self.there).bytes))

    @property
    def is_roomy(self) -> bool:
        """Whether there is enough room for the gaps between blocks, as far as that is known."""
        return self.needed <= self.budget + self.budget // CROWDED

    @property
    def fits(self) -> bool:
        """Whether it is within its budget, with its gaps as far as they are known."""
        return self.peak <= self.budget and self.is_roomy

    @property
    def decisions(self) -> dict[int, dict[str, Any]]:
        """The decision for each tensor that is not just kept."""
        return self.schedule.decisions if self.schedule is not None else self.decided.decisions

    @property
    def outcome(self) -> Outcome:
        """The prediction."""
        return self.schedule.outcome if self.schedule is not None else self.decided.outcome

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
        if self.schedule is None:
            within = "" if self.budget >= UNLIMITED else f" and fits in {text(self.budget)}; nothing is changed"
            return f"{name} needs {text(self.plain)}{within}"
        return (
            f"training {name} in {text(self.budget)} (plain needs {text(self.plain)}): {self.does}, about {100 * self.overhead:.1f}% slower, {where}"
        )

    def svg(self) -> str:
        """Live bytes over the step, plain and planned, as an SVG document; the dashed line is the budget."""
        data, lives = self.step.data, self.lives
        names = [f"{operation['name']} in {data['groups'][operation['group']]['name']}" for operation in lives.operations]
        budget = self.budget if self.budget < UNLIMITED else None
        return memory(str(data["name"]), self.decided.plain.live, self.outcome.live, lives.backward_start, budget, names)

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
        if self.schedule is None:
            fits = "" if self.budget >= UNLIMITED else f" fits in {text(self.budget)}; nothing is changed"
            return f"{name}: predicted peak {text(self.peak)}{fits}"
        outcome = self.schedule.outcome
        gap = f" (gap {100 * self.gap:.1f}%)" if self.gap is not None else ""
        dropped = f"{text(self.dropped)} dropped that nothing reads, " if self.dropped else ""
        dropped += f"{text(self.masked)} kept as signs, " if self.masked else ""
        return (
            f"{name}: predicted peak {text(self.peak)} of {text(self.budget)} (plain {text(self.plain)}), "
            f"overhead {100 * self.overhead:.1f}%{gap}, {dropped}{text(outcome.moved)} offloaded, "
            f"{outcome.rebuilt_us / 1e3:.1f} ms recomputed, planned in {self.seconds:.1f} s"
        )
