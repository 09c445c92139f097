"""Makes a plan of a recorded step within a budget, or finds the least budget."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import torch

from ..._share import as_given, as_needed
from ...errors import BudgetTooSmall, DoesNotFit
from ..memory.allocator import most_reserved
from ..memory.reservation import InitialReservation
from ..memory.sizes import text
from ..record.cost import rates_of
from ..record.data import Step
from ..record.recorder import Recorder
from ..record.rehearse import Rehearsal
from ..record.step import OUTSIDE, build
from ..record.times import Times
from .bind import bind, copied_bytes
from .decide import Decided, decide, decide_least
from .fitted import Fitted
from .liveness import Lives
from .pack_schedule import PackSchedule
from .reserved import reserved, with_gaps
from .simulate import Outcome, simulate
from .unread import droppable, without
from .watch import Assumed, Watch

__all__ = ["least_of", "make_plan", "misfit", "short_search", "step_of", "too_small"]

# Bisection steps in the search for the least budget with gaps between blocks.
MAX_HALVINGS = 4
# Before a budget is refused, plans are searched with less host memory: these percentages of all movable bytes.
LESS_HOST = 25, 0

# A step, its decisions, and how they are carried out.
_Plan: TypeAlias = tuple[Step, Lives, Decided, PackSchedule | None]


def step_of(
    rehearsal: Rehearsal, device: torch.device, name: str, assumed: Assumed, times: Times | None, host: int | None, recomputes: bool = True
) -> Step:
    """Builds the step of a recording from the arguments of :func:`make_plan`."""
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
    there: InitialReservation = InitialReservation(),
    must_have_room: bool = False,
    must_fit: bool = True,
    recomputes: bool = True,
) -> Fitted:
    """Plans a recorded step.

    Parameters
    ----------
    assumed
        Bytes on the device that do not belong to the recording.
    times
        Measurements of the device.
    host
        Bytes of host memory for offloaded tensors, or None for no limit.
    slack
        Bytes of the budget to leave free if anything is moved or recomputed. If no plan leaves them free, half of them are tried, then none.
    most
        The most bytes that the allocator should reserve, including gaps between its blocks; None for no limit.
    there
        The allocator's reservation before the step.
    must_have_room
        Whether a plan is refused if the allocator would reserve much more than `most`.
    must_fit
        Whether an error is raised if no plan within the budget is found. Otherwise the plan with the least need is returned.
    recomputes
        Whether tensors may be recomputed.

    Raises
    ------
    BudgetTooSmall
        If `must_fit`, and no plan within the budget is found. The error states the least budget found, and names the operation that needs it.
    """
    recorder = rehearsal.recorder
    step = step_of(rehearsal, device, name, assumed, times, host, recomputes)
    lives = Lives(step.data)
    plain = simulate(lives, {})
    whole = step, lives
    grown = there if most is not None else None
    made: list[Fitted] = []
    for step, lives, decided, bound in _candidates(budget, whole, plain, recorder, device, slack, most, there):
        # Compared with the step as it is without a plan.
        decided.plain = plain
        made.append(Fitted(step, lives, decided, bound, budget, time.monotonic() - started, rehearsal, Watch(device), assumed, whole, there=grown))
        if made[-1].peak <= budget and (not must_have_room or made[-1].is_roomy):
            return made[-1]
    least = min(map(_with_least, made), key=lambda fitted: fitted.needed)
    if least.fits or not must_fit:
        return least
    raise misfit(name, least.step, least.outcome, budget, max(least.needed, budget + 1))


def _candidates(
    budget: int, whole: tuple[Step, Lives], plain: Outcome, recorder: Recorder, device: torch.device, slack: int, most: int | None, there: InitialReservation
) -> Iterator[_Plan]:
    """Plans within a budget, the best one first. A later plan is used if the earlier ones leave no room for gaps. If no plan fits, it is the plan
    with the lowest peak that was found."""

    def within(of: tuple[Step, Lives], hurried: bool = False) -> list[_Plan]:
        found = _within(budget, *of, recorder, slack, most, there, hurried)
        return [(*of, *found)] if found is not None else []

    first = _least_unsaved(*whole, recorder, device, budget, most, there) if plain.peak > budget else whole
    plans = within(first)
    if plans and plans[0][2].decisions and (others := _unsaved(*whole, recorder, device))[0].masked:
        plans = sorted(plans + within(others), key=lambda plan: plan[2].outcome.time_us)
    if not plans:
        # A plan that fits in less host memory is also valid here.
        plans = next(filter(None, (within(less, hurried=True) for less in _with_less_host(*first))), [])
    if not plans:
        # The search for the least budget may find a plan that the other searches missed.
        step, lives, decided = _least_decided(whole, recorder, device)
        plans = [(step, lives, decided, _carried_out(step, lives, recorder, decided))]
    yield from plans
    if first[0].masked:
        # The first plan fits with signs alone. This one moves or recomputes tensors in their place.
        yield from within(_unsaved(*whole, recorder, device, None))


def _with_less_host(step: Step, lives: Lives) -> Iterator[tuple[Step, Lives]]:
    """The step with less host memory, if that may change the plan: reruns may free more bytes than the copies that they replace."""
    machine = step.data["machine"]
    host, movable = machine["host_bytes"], sum(itertools.compress(lives.bytes, lives.movable))
    for part in LESS_HOST:
        allowed = movable * part // 100
        if host is None or allowed < host:
            less = replace(step, data={**step.data, "machine": {**machine, "host_bytes": allowed}})
            yield less, Lives(less.data)


def _within(
    budget: int, step: Step, lives: Lives, recorder: Recorder, slack: int, most: int | None, there: InitialReservation, hurried: bool = False
) -> tuple[Decided, PackSchedule | None] | None:
    """Finds decisions within a budget, and binds them to packs and unpacks. If `hurried`, all searches are short."""
    plain = simulate(lives, {})
    if plain.peak <= budget:
        decided = Decided({}, plain, plain, True)
        bound = _carried_out(step, lives, recorder, decided)
        if bound is None or bound.outcome.peak <= budget:
            return decided, bound
    # `with_gaps` improves the decisions later, so a short search is enough if it finds any. A long search runs before slack is given up, because
    # gaps may need the slack.
    copies = copied_bytes(recorder)
    tries = dict.fromkeys([(slack + copies, True), (slack + copies, False), (slack // 2 + copies, True), (copies, True), (0, True)])
    for spared, is_short in tries:
        if hurried and not is_short:
            continue
        target = max(budget - spared, 1)
        decided = decide(step.data, target, lives, is_short)
        if decided.fits:
            break
    # Bound decisions may take effect later than planned, so the peak may be higher. If so, plan for less.
    for again in range(6):
        if decided.decisions and decided.fits:
            decided = with_gaps(step.data, target, lives, decided, most, there, hurried=hurried or again > 0)
        if decided.outcome.peak > target:
            # There are no decisions for the lower target near the earlier ones, so search again.
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
    """The step without saved tensors that no backward pass reads. Dropping them costs no time. If only the signs of a tensor are read and `masks`
    holds for it, only the signs are saved."""
    dropped = droppable(step, lives, recorder, masks)
    if not dropped:
        return step, lives
    step = without(step, lives, dropped, recorder, rates_of(device))
    return step, Lives(step.data)


def _least_unsaved(
    step: Step, lives: Lives, recorder: Recorder, device: torch.device, budget: int, most: int | None, there: InitialReservation
) -> tuple[Step, Lives]:
    """The step without unread tensors, with as few tensors saved as signs as the budget requires, the largest first. If signs alone are not enough,
    no tensor is saved as signs."""

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
    """The decisions with the lowest peak, and their step: without signs, or with all possible signs and nothing moved or recomputed."""
    step, lives = _unsaved(*whole, recorder, device, None)
    found = step, lives, decide_least(step.data, lives)
    step, lives = _unsaved(*whole, recorder, device)
    if step.masked:
        kept = simulate(lives, {})
        if kept.peak < found[2].outcome.peak:
            return step, lives, Decided({}, kept, kept, True)
    return found


def short_search(step: Step, recorder: Recorder, budget: int, device: torch.device) -> tuple[Outcome, Outcome]:
    """The outcome of a short search within a budget, even if it finds nothing that fits, and the outcome of keeping everything."""
    lives = Lives(step.data)
    plain = simulate(lives, {})
    step, lives = _unsaved(step, lives, recorder, device)
    decided = decide(step.data, max(1, budget), lives, hurried=True)
    bound = _carried_out(step, lives, recorder, decided)
    return bound.outcome if bound is not None else decided.outcome, plain


def least_of(fitted: Fitted) -> Fitted:
    """The plan of this step with the least need that is found."""
    step, lives, decided = _least_decided(fitted.whole, fitted.recorder, fitted.watch.device)
    return _with_least(_decided_for(replace(fitted, step=step, lives=lives), decided))


def _decided_for(fitted: Fitted, decided: Decided) -> Fitted:
    """The same step with other decisions."""
    return replace(fitted, decided=decided, schedule=_carried_out(fitted.step, fitted.lives, fitted.recorder, decided))


def _carried_out(step: Step, lives: Lives, recorder: Recorder, decided: Decided) -> PackSchedule | None:
    """Decisions bound to packs and unpacks, or None if everything is kept."""
    return bind(step, lives, decided.decisions, recorder) if decided.decisions or step.dropped else None


def _with_least(fitted: Fitted) -> Fitted:
    """Starting from a plan with the lowest peak, searches for the plan with the least need including gaps between blocks."""
    best, low = fitted, fitted.peak
    for _ in range(MAX_HALVINGS):
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


def misfit(name: str, step: Step, outcome: Outcome, budget: int, needed: int) -> BudgetTooSmall:
    """The error for a budget that is too small: the name of the model, the least budget found, and the reason."""
    operation = step.data["operations"][outcome.at]
    host = step.data["machine"]["host_bytes"]
    # Host memory that holds all movable tensors is not the limiting factor.
    movable = sum(tensor["bytes"] for tensor in step.data["tensors"] if tensor["residence"] == "movable")
    beside = f" and at most {text(host)} of host memory" if host is not None and host < movable else ""
    gaps = f", with {text(needed - outcome.peak)} for gaps between the blocks of PyTorch's allocator" if needed > outcome.peak else ""
    return BudgetTooSmall(
        f"{name} does not fit in {as_given(budget)}{beside}: it needs at least {as_needed(needed, budget)}{gaps}. {_peak(step, outcome, budget)}",
        needed,
        budget,
        needed,
        step.data["groups"][operation["group"]]["name"],
    )


def too_small(name: str, lasting: int, budget: int) -> DoesNotFit:
    """The error for a budget that is smaller than the bytes that stay from step to step under any plan."""
    return DoesNotFit(
        f"{name} does not fit in {as_given(budget)}: weights, gradients and the optimizer's state alone take "
        f"{text(lasting, enough=True)}; give a larger budget, or use an optimizer that keeps less state",
        lasting,
        budget,
    )


# An event that is not an operation of PyTorch: autograd saves, reads again or holds a tensor.
_HELD = ("pack", "unpack", "held")


def _peak(step: Step, outcome: Outcome, budget: int) -> str:
    """Describes where memory peaks, and gives advice."""
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
