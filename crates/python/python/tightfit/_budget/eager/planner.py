"""Makes the plans of one model, from a recording, from measurements on its device, and from assumptions until the real step was seen."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import DoesNotFit
from ..memory.allocator import expand_segments, most_reserved, reserve_of, slack_of, there_on, within
from ..memory.copies import Copies, copies_for
from ..memory.host import pin_limits
from ..memory.reservation import InitialReservation
from ..memory.sizes import UNLIMITED, Share, text
from ..messages import say
from ..plan import workspaces
from ..plan.fitted import Fitted
from ..plan.liveness import Lives
from ..plan.make import make_plan, short_search, step_of, too_small
from ..plan.simulate import simulate
from ..plan.watch import SPARE_BYTES, Assumed, allocated, differences, tries_algorithms, watches, with_room
from ..record.cost import bytes_of_call, rates_of
from ..record.measure import MEASURED, measure, measure_copies, start_libraries
from ..record.optimizer import bytes_of_model, lasting_bytes, optimizer_bytes
from ..record.rehearse import Rehearsal
from ..record.rerunnable import CONVOLUTIONS
from ..record.step import build
from ..record.times import Times, times_of
from .host_arena import Arenas

__all__ = ["Planner"]

# The share of a budget by which a plan must be too careful for another to take its place.
CAREFUL_DIVISOR = 50
# How many times what a convolution reads and writes its workspace may have, for all that is known before it is measured.
WORKSPACE_FACTOR = 4


class Planner:
    """Makes plans of one model under one budget, and learns from what their first passes took.

    Attributes
    ----------
    name
        The model, for lines.
    budget
        Bytes on the device.
    recomputes
        Whether anything is computed again.
    optimizer
        The optimizer, as soon as it is known.
    copies
        Copies of the model's device, as soon as that is known.
    host
        Host memory for offloaded tensors.
    reserve
        Measured bytes of the budget that no recording shows; None until they were measured.
    gaps
        Bytes of the budget that are left to gaps between blocks, beyond the predicted gaps.
    grows
        Whether the allocator's segments grow, so that gaps are predicted.
    planned
        Whether there was a plan. Then training has begun, and a plan that is too crowded does not end it.
    outputs
        Outputs of the last pass, weakly.
    """

    def __init__(
        self,
        name: str,
        budget: int | Share,
        optimizer: Any = None,
        copies: Copies | None = None,
        host_budget: int | None = None,
        recomputes: bool = True,
    ) -> None:
        self.name = name
        self.budget = UNLIMITED if isinstance(budget, Share) else budget
        # A share of what plain needs, until the first recorded step says what that is.
        self.share = budget if isinstance(budget, Share) else None
        self.recomputes = recomputes
        self.optimizer = optimizer
        self.copies = copies
        self.host = Arenas(name, host_budget)
        self.reserve: int | None = None
        self.gaps = 0
        self.grows = False
        self.planned = False
        self.outputs: list[weakref.ref[Tensor]] = []
        # Bytes of an unknown optimizer's state, bytes that no recording of each form shows, and bytes between its passes, once they were seen.
        self._state: int | None = None
        self._reserves: dict[Any, int] = {}
        self._between: dict[Any, int] = {}
        # Forms of which a plan needed more than the budget. Their plans are not replaced for being too careful, because that might repeat.
        self._exceeded: set[Any] = set()

    def copies_on(self, device: torch.device) -> Copies:
        """Copies of a device, and host memory for them: a model may have moved to another one."""
        if self.copies is not None and self.copies.device != device:
            self.copies, self.host = None, Arenas(self.name, self.host.budget)
        if self.copies is None:
            self.copies = copies_for(device)
        return self.copies

    def check(self, module: nn.Module, device: torch.device) -> None:
        """Checks before a first step is recorded what no plan can change.

        Raises
        ------
        DoesNotFit
            If no step can meet the budget.
        """
        lasting = lasting_bytes(self.optimizer, module, device)
        if lasting > self.budget:
            raise too_small(self.name, lasting, self.budget)

    def plan(
        self, rehearsal: Rehearsal, module: nn.Module | None, device: torch.device, signature: Any, started: float
    ) -> Fitted:
        """Plans a recorded step, whose inputs have this form; `started` is when its recording began.

        Raises
        ------
        DoesNotFit
            If no plan within the budget is found.
        """
        if self.share is not None:
            self._settle_share(self.share, rehearsal, module, device, signature)
        assumed, guess = self._assumed(rehearsal, module, device, signature)
        times = None
        if not self._fits_easily(rehearsal, device, assumed):
            times = self._measured(rehearsal, module, device, assumed)
        if times is not None:
            if workspaces.may_be_chosen():
                assumed, _ = self._assumed(rehearsal, module, device, signature)
                times = self._with_workspaces(rehearsal, module, device, assumed, times)
            workspaces.settle()
        assumed, _ = self._assumed(rehearsal, module, device, signature)
        self.grows = expand_segments(device)
        fitted = self._within(rehearsal, device, assumed, started, times)
        self.planned = True
        fitted.step.assumed.extend((*rehearsal.assumed, *([guess] if guess else [])))
        if module is not None and fitted.schedule is not None:
            fitted.schedule.expect(module)
        fitted.weights = [(weight, weight._version) for weight in module.parameters() if weight.requires_grad] if module is not None else []
        return fitted

    def _settle_share(self, share: Share, rehearsal: Rehearsal, module: nn.Module | None, device: torch.device, signature: Any) -> None:
        """Turns a share into bytes, by the memory of a recorded step that keeps everything."""
        if device.type == "cuda" and torch.cuda.is_available():
            # Measurements for that may take all of it.
            self.budget = int(torch.cuda.mem_get_info(device)[1])
        times = self._measured(rehearsal, module, device, self._assumed(rehearsal, module, device, signature)[0])
        # Where nothing was measured, what libraries need is a share of the budget.
        for _ in range(3):
            assumed, _ = self._assumed(rehearsal, module, device, signature)
            step = step_of(rehearsal, device, self.name, assumed, times, self.host.bytes(), self.recomputes)
            self.budget = share.of(simulate(Lives(step.data), {}).peak)
        self.share = None

    def exceeded(self, fitted: Fitted, signature: Any) -> bool:
        """Learns what steps of a plan took; whether that is over the budget, for the next plan of this form to mend."""
        seen = fitted.watch.seen
        if seen <= self.budget:
            return False
        # The prediction was too low by this difference.
        self._reserves[signature] = fitted.assumed.reserve + seen - min(self.budget, fitted.peak) + SPARE_BYTES
        self._exceeded.add(signature)
        return True

    def before(self, device: torch.device) -> int:
        """Bytes on a device of the last pass's outputs that the program still has."""
        there = [output for output in (reference() for reference in self.outputs) if output is not None]
        # Others, such as sparse ones, have no storage.
        found = [output for output in there if type(output) is Tensor and output.layout is torch.strided and output.device == device]
        return sum({output.untyped_storage()._cdata: output.untyped_storage().nbytes() for output in found}.values())

    def learn(self, fitted: Fitted, module: nn.Module | None, device: torch.device, signature: Any) -> None:
        """Compares what was assumed for a plan with what its first step has shown, once the optimizer has updated the model."""
        if fitted.learned or fitted.stale or tries_algorithms(fitted.watch) or all(weight._version == version for weight, version in fitted.weights):
            return
        fitted.learned, fitted.weights = True, []
        seen, _ = self._assumed(fitted.rehearsal, module, device, signature)
        seen = seen._replace(reserve=fitted.assumed.reserve, between=fitted.assumed.between)
        if self.optimizer is None and self._state is None and watches(device):
            # The memory that came with the update is its state.
            self._state = max(0, seen.outside - fitted.assumed.outside)
            seen = seen._replace(state=self._state, outside=seen.outside - self._state)
        growth = fitted.watch.growth(fitted.lives, fitted.outcome, fitted.step.given, fitted.assumed.before) if fitted.schedule is not None else None
        between = 0
        if growth is not None:
            seen = seen._replace(reserve=with_room(growth.passes), between=with_room(growth.between))
            between = growth.meeting + seen.between
        more = sum(seen[:4]) - sum(fitted.assumed[:4])
        # The forward pass, with the outputs that are there now.
        forward = max(fitted.outcome.live[: fitted.step.given], default=0) + seen.before - fitted.assumed.before
        over = max(fitted.peak, between, forward) + more > self.budget
        careful = fitted.schedule is not None and more < -max(self.budget // CAREFUL_DIVISOR, SPARE_BYTES) and signature not in self._exceeded
        # Less than a thousandth of the budget is no reason.
        reasons = differences(fitted.assumed, seen, self.budget // 1000)
        if over and reasons:
            self._exceeded.add(signature)
        if reasons and (over or careful):
            self._reserves[signature], self._between[signature] = seen.reserve, seen.between
            say(f"{self.name} is planned anew, as its first step was seen: {'; '.join(reasons)}")
            fitted.stale = True

    def _assumed(
        self, rehearsal: Rehearsal, module: nn.Module | None, device: torch.device, signature: Any
    ) -> tuple[Assumed, str]:
        """The bytes that need room in addition to the recorded step, as far as they are known; and the guess among them, in words."""
        state, scratch, guess = optimizer_bytes(self.optimizer, module, device)
        there = state if self.optimizer is not None and self.optimizer.state else 0
        if self.optimizer is None and self._state is not None:
            state = there = self._state
            guess = ""
        known = there + bytes_of_model(module) + _bytes_of_inputs(rehearsal, device)
        outside = max(0, allocated(device) - known)
        before = min(outside, self.before(device))
        between = self._between.get(signature, 0)
        return Assumed(state, scratch, outside - before, self._reserve(device, signature), between, before), guess

    def _reserve(self, device: torch.device, signature: Any) -> int:
        """Bytes of the budget that no recording shows: as they were seen of this form, or else the most that was measured, is usual, or was seen of
        other forms."""
        seen = self._reserves.get(signature)
        if seen is not None:
            return seen
        return max(self.reserve if self.reserve is not None else reserve_of(self.budget, device), *self._reserves.values(), 0)

    def _within(
        self, rehearsal: Rehearsal, device: torch.device, assumed: Assumed, started: float, times: Times | None
    ) -> Fitted:
        """A plan whose host memory is taken.

        Raises
        ------
        DoesNotFit
            If no plan is found within the budget and within the memory that can be pinned.
        """
        slack, most, there = slack_of(self.budget, device), None, InitialReservation()
        if self.grows:
            there = there_on(device)
            most = most_reserved(self.budget) - self.gaps
        else:
            slack += self.gaps
        refused: list[int] = []
        while True:
            host = self.host.bytes()
            try:
                fitted = make_plan(
                    rehearsal, device, self.name, self.budget, assumed, started, times, host, slack, most, there,
                    must_have_room=not self.planned, recomputes=self.recomputes,
                )  # fmt: skip
            except DoesNotFit as error:
                if not refused:
                    raise
                limit = f"{error}. Of the {text(refused[0])} of host memory that a plan needs, {text(host or 0)} can be pinned{pin_limits(refused[0])}"
                raise DoesNotFit(limit, error.needed_bytes, error.limit_bytes) from None
            size = fitted.schedule.host_bytes if fitted.schedule is not None else 0
            if not size or self.host.take(size, self.copies_on(device)):
                break
            refused.append(size)
        if refused:
            say(
                f"{self.name}: of the {text(refused[0])} of host memory that its plan needs, {text(self.host.bytes() or 0)} can be "
                f"pinned{pin_limits(refused[0])}; planned within that"
            )
        return fitted

    def _fits_easily(self, rehearsal: Rehearsal, device: torch.device, assumed: Assumed) -> bool:
        """Whether everything can be kept whatever is measured: then nothing is."""
        if device.type not in MEASURED:
            return True
        step = build(rehearsal.recorder, device, rehearsal.gradients, self.name, (assumed.state, assumed.scratch))
        reserve = max(assumed.reserve, reserve_of(self.budget, device))
        if device.type == "cuda":
            sizes = [bytes_of_call(operation) for operation in rehearsal.recorder.operations if operation.name in CONVOLUTIONS]
            reserve = max(reserve, WORKSPACE_FACTOR * max(sizes, default=0))
        return simulate(Lives(step.data), {}).peak + allocated(device) + reserve <= self.budget

    def _with_workspaces(
        self, rehearsal: Rehearsal, module: nn.Module | None, device: torch.device, assumed: Assumed, times: Times
    ) -> Times:
        """The measurements under the limit on workspaces for which a short search finds the fastest plan. The limit holds from then on."""

        def searched(times: Times) -> workspaces.Searched:
            step = step_of(rehearsal, device, self.name, assumed, times, self.host.bytes(), self.recomputes)
            found, plain = short_search(step, rehearsal.recorder, self.budget - slack_of(self.budget, device), device)
            return workspaces.Searched(found.peak <= self.budget, found.time_us, found.peak, plain.time_us)

        sizes = workspaces.limits(rehearsal.recorder, times, self.budget)
        if not sizes:
            return times
        best, own = None, searched(times)
        found = own
        # A limit that gains nothing even at no cost is not measured.
        if not searched(workspaces.times_at_best(rehearsal.recorder, times, sizes[-1])).is_better_than(own):
            return times
        try:
            for size in sizes:
                if not workspaces.choose(size):
                    break
                workspaces.inherit(times, times_of(device))
                tried = self._measured(rehearsal, module, device, assumed)
                if tried is None:
                    break
                within = searched(tried)
                if within.is_better_than(found):
                    best, times, found = size, tried, within
        finally:
            # Also where Ctrl-C ends a measurement.
            workspaces.choose(best)
        if best is not None:
            say(
                f"{self.name}: convolutions get at most {text(best)} of workspace each: {found.gain_over(own)}, and a step that keeps everything "
                f"takes {100 * (found.plain_us / own.plain_us - 1):.1f}% longer, as predicted"
            )
        return times

    def _measured(
        self, rehearsal: Rehearsal, module: nn.Module | None, device: torch.device, assumed: Assumed
    ) -> Times | None:
        """The measurements of the device, after measuring the operations of this step; None where nothing is measured."""
        if device.type not in MEASURED or os.environ.get("TIGHTFIT_MEASURE") == "0":
            return None
        times = times_of(device)
        on_gpu = device.type == "cuda"
        before = torch.cuda.memory_allocated(device) if on_gpu else bytes_of_model(module)
        # The optimizer's state may not be there yet, and will not go while this is measured.
        there = self.optimizer is not None and self.optimizer.state
        free = self.budget - before - (0 if there else assumed.state + assumed.scratch)
        copies = self.copies_on(device)
        if on_gpu:
            start_libraries(device)
        with within(self.budget, device):
            measure_copies(copies, times, free)
            timed = functools.partial(measure, rehearsal.recorder, device, rates_of(device), times, free)
            done = workspaces.apart(timed, device) if workspaces.may_be_chosen() else timed()
        if done:
            times.save()
        if self.reserve is None and times.rates:
            # Libraries keep workspaces for each thread. The workspaces of this thread are counted; the backward pass has others.
            self.reserve = max(0, torch.cuda.memory_allocated(device) - before) if on_gpu else 0
        return times


def _bytes_of_inputs(rehearsal: Rehearsal, device: torch.device) -> int:
    return sum(
        storage.bytes
        for storage in rehearsal.recorder.storages
        if storage.external is not None and storage.external[0] in ("input", "unknown") and storage.device.type == device.type
    )
