"""Makes a plan of a recorded step within a budget, or finds the least budget."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import torch

from ...errors import DoesNotFit
from ..memory.allocator import There, most_reserved
from ..memory.sizes import text
from ..record.cost import rates_of
from ..record.data import Step
from ..record.recorder import Recorder
from ..record.rehearse import Rehearsal
from ..record.step import OUTSIDE, build
from ..record.times import Times
from .bound import Bound, bind, copied_bytes
from .decide import Decided, decide, decide_least
from .fitted import Fitted
from .liveness import Lives
from .reserved import reserved, with_gaps
from .simulate import Outcome, simulate
from .unread import droppable, without
from .watch import Assumed, Watch

__all__ = ["least_of", "make_plan", "misfit", "short_search", "step_of", "too_small"]

# Steps in the search for a plan that needs less with the gaps between blocks, between possible and impossible budgets.
HALVINGS = 4
# The parts of all bytes that may be moved, in percent, with which a plan is sought before a budget is refused.
LESS_HOST = 25, 0

# A step, its decisions, and how they are carried out.
_Plan: TypeAlias = tuple[Step, Lives, Decided, Bound | None]


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
        Bytes on the device that do not belong to the recording.
    times
        Measurements of the device.
    host
        Bytes of host memory for offloaded tensors, or None for no limit.
    slack
        Bytes of the budget to leave free where something is given up, if a plan is found for less; else half of them, or none.
    most
        Bytes that the allocator may reserve, with the gaps between its blocks, if a plan is found for which it does, or None for no limit.
    there
        Bytes that it has reserved already.
    must_have_room
        Whether a plan is refused for which it reserves much more than that.
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
    grown = there if most is not None else None
    made: list[Fitted] = []
    for step, lives, decided, bound in _candidates(budget, whole, plain, recorder, device, slack, most, there):
        # Compared with the step as it is without a plan.
        decided.plain = plain
        made.append(Fitted(step, lives, decided, bound, budget, time.monotonic() - started, rehearsal, Watch(device), assumed, whole, there=grown))
        if made[-1].peak <= budget and (not must_have_room or made[-1].is_roomy):
            return made[-1]
    least = min(map(_with_least, made), key=lambda fitted: fitted.needed)
    if least.peak <= budget and least.is_roomy:
        return least
    raise misfit(name, least.step, least.outcome, budget, max(least.needed, budget + 1))


def _candidates(
    budget: int, whole: tuple[Step, Lives], plain: Outcome, recorder: Recorder, device: torch.device, slack: int, most: int | None, there: There
) -> Iterator[_Plan]:
    """Plans within a budget; the later ones are for budgets in which an earlier one leaves no room for gaps. Without any, the plan that is found
    to need least."""

    def within(of: tuple[Step, Lives], hurried: bool = False) -> list[_Plan]:
        found = _within(budget, *of, recorder, slack, most, there, hurried)
        return [(*of, *found)] if found is not None else []

    first = _least_unsaved(*whole, recorder, device, budget, most, there) if plain.peak > budget else whole
    plans = within(first)
    if plans and plans[0][2].decisions and (others := _unsaved(*whole, recorder, device))[0].masked:
        plans = sorted(plans + within(others), key=lambda plan: plan[2].outcome.time_us)
    if not plans:
        # A plan with less of the host's memory is one with more.
        plans = next(filter(None, (within(less, hurried=True) for less in _with_less_host(*first))), [])
    if not plans:
        # The search may find for less what it did not find for more.
        step, lives, decided = _least_decided(whole, recorder, device)
        plans = [(step, lives, decided, _carried_out(step, lives, recorder, decided))]
    yield from plans
    if first[0].masked:
        # Signs fit without anything else; tensors can be moved or recomputed instead.
        yield from within(_unsaved(*whole, recorder, device, None))


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
    """The step in which no tensor is saved that no backward pass reads, which costs nothing. If `masks` holds for a tensor that is read for its
    signs, only the signs are saved."""
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
    """The outcome of a short search for a budget, whether the budget holds or not, and of keeping everything."""
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
    """Decisions in the form for hooks, or None if everything is kept."""
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


# An event that is not an operation of PyTorch: autograd saves, reads again or holds a tensor.
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
