"""A plan of one form of inputs: decisions within the budget, as they are carried out, or the least budget that was found."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ...errors import DoesNotFit
from ..memory.allocator import There, budget_for, most_reserved
from ..memory.sizes import UNLIMITED, text
from ..record.cost import device_name, rates_of
from ..record.data import Step
from ..record.recorder import Recorder
from ..record.rehearse import Rehearsal
from ..record.step import OUTSIDE, build
from ..record.times import Times
from .bound import Bound, bind, copied_bytes
from .counts import Counts
from .decide import Decided, decide, decide_least
from .liveness import Lives
from .reserved import reserved, with_gaps
from .simulate import Outcome, simulate
from .unread import droppable, without
from .watch import Assumed, Watch

__all__ = ["Fitted", "least_of", "make_plan", "misfit", "short_search", "step_of", "too_small"]

# A plan that needs more than its budget by this share for the gaps between blocks is none, and the steps in which one that needs less is
# searched, between what is possible and what is not.
CROWDED, HALVINGS = 16, 4
# The parts of all bytes that may be moved, in percent, with which a plan is sought before a budget is refused.
LESS_HOST = 25, 0
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
        The decisions and what the planner predicts.
    bound
        The plan as it is carried out; None if everything fits as it is.
    seconds
        Time of recording and planning.
    rehearsal
        What was recorded, and assumed of the program.
    watch, stale
        What the allocator counted in its first passes, and whether another plan takes its place.
    over
        Whether its passes need more than the budget, and no other plan was found: it stays, and the allocator's bound is what they need.
    assumed
        What was planned for that no recording shows.
    learned, weights
        Whether that was compared with what was seen; until then, the model's trained parameters, and how often each had been written to.
    recorded_s
        Time until it was recorded, of `seconds`.
    used
        The last pass that used it, by number.
    passes, disordered
        Its passes, and how many of them had read in another order when these were last looked at.
    there
        What the allocator had reserved before, if its segments grow.
    card
        The card that times are predicted for, if it is not the device.
    bounds, states
        The plan as it is carried out with and without noted calls for what nobody reads, once it is carried out without; and what then showed
        that nobody reads it: modules and parameters, and whether they train.
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
    states: list[tuple[nn.Module | nn.Parameter, bool]] = field(default_factory=list)

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
            for part in (parts[name] for name in spare.looks if name in parts):
                self.states += [(part, part.training), *((parameter, parameter.requires_grad) for parameter in part.parameters(recurse=False))]
        whole, spare = self.bounds
        is_same = all((state.training if isinstance(state, nn.Module) else state.requires_grad) is before for state, before in self.states)
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
        """What was recorded."""
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
        """Whether there is room for the gaps between blocks, as far as that is known."""
        return self.needed <= self.budget + self.budget // CROWDED

    @property
    def decisions(self) -> dict[int, dict[str, Any]]:
        """What becomes of each tensor that is not just kept."""
        return self.bound.decisions if self.bound is not None else self.decided.decisions

    @property
    def outcome(self) -> Outcome:
        """What is predicted."""
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
        """Bytes of what is saved and never read, which the plan drops."""
        return sum(self.lives.bytes[tensor] for tensor in self.step.dropped.keys() - self.step.masked)

    @property
    def masked(self) -> int:
        """Bytes of what is saved and read for its signs alone, which the plan keeps as bits."""
        return sum(self.lives.bytes[tensor] for tensor in self.step.masked)

    @property
    def gap(self) -> float | None:
        """How far the predicted time is above the bound of plans with as much room, as a share of that; None where no bound is known."""
        gap = self.decided.gap_of(self.outcome)
        return None if gap is None else max(0.0, gap)

    def brief(self, name: str) -> str:
        """What a user wants to know first, on one line."""
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
        """What a step does that a plain one does not."""
        outcome = self.outcome
        parts = [(outcome.moved, f"moves {text(outcome.moved)}"), (outcome.rebuilt_us >= 50, f"recomputes {outcome.rebuilt_us / 1e3:.1f} ms")]
        parts += [(self.dropped, f"drops {text(self.dropped)}"), (self.masked, f"keeps {text(self.masked)} as signs")]
        return ", ".join(word for is_so, word in parts if is_so) or "keeps everything in other places"

    @property
    def device(self) -> str:
        """The device that times are predicted for."""
        return f"{self.card}, by its data sheet" if self.card else device_name(self.watch.device)

    def line(self, name: str) -> str:
        """What the plan does, on one line."""
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


def step_of(
    rehearsal: Rehearsal, device: torch.device, name: str, assumed: Assumed, times: Times | None, host: int | None, recomputes: bool = True
) -> Step:
    """A recorded step with all that :func:`make_plan` is given of it."""
    return build(
        rehearsal.recorder, device, rehearsal.gradients, name, (assumed.state, assumed.scratch), assumed.outside + assumed.reserve, times=times,
        host_bytes=host, between_bytes=assumed.between, before_bytes=assumed.before, recomputes=recomputes,
    )  # fmt: skip


def make_plan(
    rehearsal: Rehearsal,
    device: torch.device,
    name: str,
    budget: int,
    assumed: Assumed,
    started: float,
    times: Times | None = None,
    host: int | None = None,
    slack: int = 0,
    most: int | None = None,
    there: There = There(),
    must_have_room: bool = False,
    recomputes: bool = True,
) -> Fitted:
    """Plans a recorded step.

    Parameters
    ----------
    assumed
        Bytes on the device that are not of what was recorded.
    times
        What was measured on the device.
    host
        Bytes of host memory for what is offloaded; None for no limit.
    slack
        Bytes of the budget to leave free where something is given up, if a plan is found for less; else half of them, or none.
    most
        What the allocator may reserve, with the gaps between its blocks, if a plan is found for which it does; None for no limit.
    there
        What it has reserved already.
    must_have_room
        Whether a plan is none for which it reserves much more than that.
    recomputes
        Whether anything is computed again.

    Raises
    ------
    DoesNotFit
        If no plan within the budget is found; it has the least budget found, and names the operation that needs it.
    """
    recorder = rehearsal.recorder
    step = step_of(rehearsal, device, name, assumed, times, host, recomputes)
    lives = Lives(step.data)
    plain = simulate(lives, {})
    whole = step, lives
    if plain.peak > budget:
        step, lives = _least_unsaved(*whole, recorder, device, budget, most, there)
    found = _within(budget, step, lives, recorder, slack, most, there)
    if found is not None and found[0].decisions:
        others = _unsaved(*whole, recorder, device)
        tried = _within(budget, *others, recorder, slack, most, there) if others[0].masked else None
        if tried is not None and tried[0].outcome.time_us < found[0].outcome.time_us:
            (step, lives), found = others, tried
    if found is None:
        # A plan with less of the host's memory is one with more.
        for less in _with_less_host(step, lives):
            tried = _within(budget, *less, recorder, slack, most, there, hurried=True)
            if tried is not None:
                (step, lives), found = less, tried
                break
    if found is None:
        # The search may find for less what it did not find for more.
        step, lives, decided = _least_decided(whole, recorder, device)
        found = decided, _carried_out(step, lives, recorder, decided)
    # Compared with the step as it is without a plan.
    found[0].plain = plain
    grown = there if most is not None else None
    fitted = Fitted(step, lives, *found, budget, time.monotonic() - started, rehearsal, Watch(device), assumed, whole, there=grown)
    if fitted.peak <= budget and (not must_have_room or fitted.is_roomy):
        return fitted
    least = _with_least(fitted)
    if least.peak <= budget and least.is_roomy:
        return least
    raise misfit(name, step, least.outcome, budget, max(least.needed, budget + 1))


def _with_less_host(step: Step, lives: Lives) -> Iterator[tuple[Step, Lives]]:
    """The step with less of the host's memory, where that may change a plan: copies take the place of reruns that may free more."""
    machine = step.data["machine"]
    host, movable = machine["host_bytes"], sum(itertools.compress(lives.bytes, lives.movable))
    for part in LESS_HOST:
        allowed = movable * part // 100
        if host is None or allowed < host:
            less = replace(step, data={**step.data, "machine": {**machine, "host_bytes": allowed}})
            yield less, Lives(less.data)


def _within(
    budget: int, step: Step, lives: Lives, recorder: Recorder, slack: int, most: int | None, there: There, hurried: bool = False
) -> tuple[Decided, Bound | None] | None:
    """Decisions within a budget, as they are carried out; `hurried`, after short searches."""
    plain = simulate(lives, {})
    if plain.peak <= budget:
        decided = Decided({}, plain, plain, True)
        bound = _carried_out(step, lives, recorder, decided)
        if bound is None or bound.outcome.peak <= budget:
            return decided, bound
    # Searches near what is decided come behind it, so a short search will do where it finds anything. A long one comes before slack is given
    # up, which may be what gaps need.
    copies = copied_bytes(recorder)
    tries = dict.fromkeys([(slack + copies, True), (slack + copies, False), (slack // 2 + copies, True), (copies, True), (0, True)])
    for spared, is_short in tries:
        if hurried and not is_short:
            continue
        target = max(budget - spared, 1)
        decided = decide(step.data, target, lives, is_short)
        if decided.fits:
            break
    # Where decisions can only take effect later than planned, the peak may be higher: plan for less.
    for again in range(6):
        if decided.decisions and decided.fits:
            decided = with_gaps(step.data, target, lives, decided, most, there, hurried=hurried or again > 0)
        if decided.outcome.peak > target:
            # None are near.
            decided = decide(step.data, target, lives, is_short)
        if not decided.fits:
            return None
        bound = _carried_out(step, lives, recorder, decided)
        peak = bound.outcome.peak if bound is not None else decided.outcome.peak
        if peak <= budget:
            return decided, bound
        target = max(target - (peak - budget), 1)
    return None


def _unsaved(
    step: Step, lives: Lives, recorder: Recorder, device: torch.device, masks: Callable[[int], bool] | None = lambda _: True
) -> tuple[Step, Lives]:
    """The step in which nothing is saved that no backward pass reads, which costs nothing; and the signs alone of those for which `masks` holds
    of what is read for its signs."""
    dropped = droppable(step, lives, recorder, masks)
    if not dropped:
        return step, lives
    step = without(step, lives, dropped, recorder, rates_of(device))
    return step, Lives(step.data)


def _least_unsaved(
    step: Step, lives: Lives, recorder: Recorder, device: torch.device, budget: int, most: int | None, there: There
) -> tuple[Step, Lives]:
    """The same with as few signs as the budget needs, the largest first, if these do without anything else; else with none."""

    def fits(found: tuple[Step, Lives]) -> bool:
        bound = bind(*found, {}, recorder)
        return bound.outcome.peak <= budget and (most is None or reserved(found[1], {}, most, there).at is None)

    none, best = _unsaved(step, lives, recorder, device, None), _unsaved(step, lives, recorder, device)
    if fits(none) or not fits(best):
        return none
    order = sorted(best[0].masked, key=lambda tensor: -lives.bytes[tensor])
    low, high = 0, len(order)
    while low + 1 < high:
        middle = (low + high) // 2
        tried = _unsaved(step, lives, recorder, device, set(order[:middle]).__contains__)
        if fits(tried):
            best, high = tried, middle
        else:
            low = middle
    return best


def _least_decided(whole: tuple[Step, Lives], recorder: Recorder, device: torch.device) -> tuple[Step, Lives, Decided]:
    """The decisions that need least, and the step that they are for: without signs, or with all of them and nothing else."""
    step, lives = _unsaved(*whole, recorder, device, None)
    found = step, lives, decide_least(step.data, lives)
    step, lives = _unsaved(*whole, recorder, device)
    if step.masked:
        kept = simulate(lives, {})
        if kept.peak < found[2].outcome.peak:
            return step, lives, Decided({}, kept, kept, True)
    return found


def short_search(step: Step, recorder: Recorder, budget: int, device: torch.device) -> tuple[Outcome, Outcome]:
    """What a short search would have carried out for a budget, whether that holds or not, and what keeping everything takes."""
    lives = Lives(step.data)
    plain = simulate(lives, {})
    step, lives = _unsaved(step, lives, recorder, device)
    decided = decide(step.data, max(1, budget), lives, hurried=True)
    bound = _carried_out(step, lives, recorder, decided)
    return bound.outcome if bound is not None else decided.outcome, plain


def least_of(fitted: Fitted) -> int:
    """The least budget in bytes for which a plan of this step is found."""
    step, lives, decided = _least_decided(fitted.whole, fitted.recorder, fitted.watch.device)
    return _with_least(_decided_for(replace(fitted, step=step, lives=lives), decided)).needed


def _decided_for(fitted: Fitted, decided: Decided) -> Fitted:
    """The same step with other decisions."""
    return replace(fitted, decided=decided, bound=_carried_out(fitted.step, fitted.lives, fitted.recorder, decided))


def _carried_out(step: Step, lives: Lives, recorder: Recorder, decided: Decided) -> Bound | None:
    """Decisions as they are carried out; None if everything is kept."""
    return bind(step, lives, decided.decisions, recorder) if decided.decisions or step.dropped else None


def _with_least(fitted: Fitted) -> Fitted:
    """The plan that is found to need least with the gaps between blocks, from one that needs least without them."""
    best, low = fitted, fitted.peak
    for _ in range(HALVINGS):
        if fitted.there is None or best.needed - low <= best.needed // 64:
            break
        budget = (low + best.needed) // 2
        decided = decide(fitted.step.data, budget, fitted.lives, hurried=True)
        if decided.fits and decided.decisions:
            decided = with_gaps(fitted.step.data, budget, fitted.lives, decided, most_reserved(budget), fitted.there, hurried=True)
        tried = _decided_for(fitted, decided)
        if tried.needed < best.needed:
            best = tried
        if tried.needed > budget:
            low = budget
    return best


def misfit(name: str, step: Step, outcome: Outcome, budget: int, least: int) -> DoesNotFit:
    """Says what does not fit, the least that does, and why."""
    host = step.data["machine"]["host_bytes"]
    # Where all that may be moved has room there, it is not what binds.
    movable = sum(tensor["bytes"] for tensor in step.data["tensors"] if tensor["residence"] == "movable")
    beside = f" and at most {text(host)} of host memory" if host is not None and host < movable else ""
    found = f"{least} bytes ({text(least)})" if least >= 1 << 10 else text(least)
    gaps = f", with {text(least - outcome.peak)} for gaps between the blocks of PyTorch's allocator" if least > outcome.peak else ""
    return DoesNotFit(
        f"{name} does not fit in {text(budget)}{beside}: the least budget found is {found}{gaps}. {_peak(step, outcome, budget)}",
        least,
        budget,
    )


def too_small(name: str, lasting: int, budget: int) -> DoesNotFit:
    """Says that a budget is too small for what stays from step to step, whatever is planned."""
    return DoesNotFit(
        f"{name} does not fit in {text(budget)}: weights, gradients and the optimizer's state alone take {lasting} bytes "
        f"({text(lasting)}); give a larger budget, or use an optimizer that keeps less state",
        lasting,
        budget,
    )


# What is no operation of PyTorch: what autograd saves, reads again or holds.
_HELD = ("pack", "unpack", "held")


def _peak(step: Step, outcome: Outcome, budget: int) -> str:
    """Where memory peaks, and what to do about it."""
    operation = step.data["operations"][outcome.at]
    if operation["stage"] == "update":
        # Weights, gradients and state have the same size for any batch.
        return "Memory peaks in the optimizer's update; give a larger budget, or use an optimizer that keeps less state"
    group = step.data["groups"][operation["group"]]["name"]
    module = "outside the model's submodules" if group == OUTSIDE else f"in {group}"
    name = operation["name"].removeprefix("aten.")
    what = module if name in _HELD else f"at {name} {module}"
    scratch, limit = int(operation["workspace_bytes"]), ""
    if "convolution" in name and 0 < outcome.peak - budget <= scratch:
        what += f", of which {text(scratch)} are workspace"
        limit = ", or limit workspaces (`tightfit run --workspace`)"
    return f"Memory peaks in the {operation['stage']} pass, {what}; give a larger budget or a smaller batch{limit}"
