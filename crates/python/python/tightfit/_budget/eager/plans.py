"""The plans of one model (or of one place in a program), one for each form of its inputs: how they are made, judged and replaced."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ...errors import DoesNotFit
from ..memory.allocator import Cap, beside, room_for_gaps
from ..memory.copies import Copies, current
from ..memory.sizes import Share, text
from ..messages import detail, say
from ..plan.pack_schedule import PackSchedule
from ..plan.counts import Counts
from ..plan.fitted import Fitted
from ..plan.watch import WATCHED, Watch, tries_algorithms, watches
from ..plan.workspaces import settle as settle_workspaces
from ..record.inputs import alike, covers, has_gradients
from ..record.rehearse import CannotRehearse, Rehearsal, rehearse
from ..record.unsupported import is_lazy, unrehearsed, unsupported
from ..swept import end_with_sweep
from .casts import Casts
from .first_step import RealRecording
from .following import Following
from .offload_all import SafePass
from .passes import Pass
from .planner import Planner
from .running import Here

__all__ = ["GENERATES", "Plans"]

PLANS = 8
# Passes after which a plan that none of them used makes room for another.
IDLE = 64
# A model whose forward pass has returned before it ran.
GENERATES = "gives its outputs one by one, as a generator, which is not planned"
# A pass that saves more than this part of the budget otherwise than the recorded step is recorded again. So is one with a backward pass in another
# order. This is done for at most so few real steps of a form.
STRANGE, AGAIN = 32, 2
# Real steps that are recorded for one form of inputs, before it is left without a plan.
RECORDINGS = 4


class Plans:
    """Plans of one model under one budget."""

    def __init__(
        self,
        name: str,
        budget: int | Share,
        optimizer: Any = None,
        loss: Callable[[Any], Tensor] | None = None,
        copies: Copies | None = None,
        on_misfit: Callable[[DoesNotFit], None] | None = None,
        host_budget: int | None = None,
        recomputes: bool = True,
    ) -> None:
        self.name = name
        self.planner = Planner(name, budget, optimizer, copies, host_budget, recomputes)
        self.loss = loss
        self.on_misfit = on_misfit
        # The state of each thread. All threads share the plans, and one thread at a time makes them.
        self.here = Here()
        self.lock = threading.RLock()
        self.plans: dict[Any, Fitted | None] = {}
        self.last: Fitted | None = None
        self._aside = False
        self._said: set[str] = set()
        self._passes = 0
        # Plans that needed more than predicted, until others are made.
        self._replaced: dict[Any, Fitted | None] = {}
        # How often forms of inputs were recorded on a real step, because nothing else was right for them.
        self._recorded: dict[Any, int] = {}
        # Forms that are never planned: everything that they save is offloaded.
        self._offloaded: set[Any] = set()
        self._recording: RealRecording | None = None
        # Threads that are in the model's forward pass.
        self._threads: set[int] = set()
        self._following = Following()
        self.casts = Casts()
        # Plans made so far.
        self._made = 0
        self.cap = Cap()

    @property
    def budget(self) -> int:
        """Bytes, without a limit until a share is known in bytes."""
        return self.planner.budget

    @property
    def passes(self) -> int:
        """Forward passes so far."""
        return self._passes

    def _leave_alone(self, why: str) -> None:
        """Leaves a model without plans, and says why."""
        self.say_once(why)
        self._aside = True

    def say_once(self, why: str) -> None:
        """Says why memory is left alone, once for each reason."""
        if why not in self._said:
            self._said.add(why)
            say(f"{self.name} {why}; its memory is left alone")

    def _is_elsewhere(self) -> bool:
        """Whether another thread is in the model, or records a step of it: this one's step is not recorded then."""
        recording, thread = self._recording, threading.get_ident()
        if recording is not None and recording.thread != thread and recording.is_there():
            return True
        return any(other != thread and other in sys._current_frames() for other in self._threads.copy())

    def _fits(self, signature: Any) -> bool:
        """Whether a form of inputs is at most as large as one that fits as it is."""
        return any(fitted is not None and fitted.schedule is None and covers(form, signature) for form, fitted in self.plans.items())

    def _room(self, signature: Any) -> bool:
        """Makes room for a plan, if need be: one that another covers goes, or one that was not used for long."""
        if len(self.plans) < PLANS:
            return True
        if self._fits(signature):
            return False
        fits = [form for form, fitted in self.plans.items() if fitted is not None and fitted.schedule is None]
        covered = next((form for form in fits if any(covers(other, form) for other in fits if other != form)), None)
        if covered is None:
            used = {form: 0 if fitted is None else fitted.used for form, fitted in self.plans.items()}
            covered = min(used, key=lambda form: used[form])
            if self._passes - used[covered] < IDLE:
                if "forms" not in self._said:
                    self._said.add("forms")
                    say(f"{self.name} gets more than {PLANS} different forms of inputs; the rest run without a plan, slowly; pad to fewer shapes")
                return False
        del self.plans[covered]
        return True

    def _give_recording_up(self, counts: bool) -> None:
        """Ends a recording whose step did not get to its backward pass; whether that counts as one that was no use."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.abandon()
            if not counts:
                self._recorded[recording.signature] -= 1

    def _bounds(self) -> list[PackSchedule]:
        """The plans that give anything up, as they are carried out."""
        return [fitted.schedule for fitted in self.plans.values() if fitted is not None and fitted.schedule is not None]

    def device(self, module: nn.Module | None) -> torch.device:
        """Where the model is."""
        for parameter in module.parameters() if module is not None else ():
            return parameter.device
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def prepare(self, module: nn.Module, inputs: Any, signature: Any, rehearsed: bool) -> Fitted | RealRecording | SafePass | None:
        """Records and plans a new form of inputs, before its first pass."""
        started = time.monotonic()
        if is_lazy(module):
            return None
        if why := unsupported(module) or _unplanned(module):
            self._leave_alone(why)
            return None
        if why := unrehearsed(module):
            if rehearsed and not self._recorded:
                say(f"{self.name} has {why}, so it is not rehearsed; recording its first step, with everything offloaded")
        elif rehearsed and signature not in self._recorded:
            args, kwargs = inputs
            try:
                rehearsal = rehearse(module, args, kwargs, self.loss, has_gradients(module))
            except CannotRehearse as error:
                say(f"{self.name} cannot be rehearsed ({error}); recording its first step, with everything offloaded")
            else:
                self.plan(rehearsal, module, signature, started)
                return self.plans.get(signature) or SafePass(None, Counts())
        if self._is_elsewhere():
            return SafePass(None, Counts())
        self._give_recording_up(counts=True)
        if not self.plans:
            try:
                self.planner.check(module, self.device(module))
            except DoesNotFit as error:
                self._misfit(error, signature)
                return SafePass(None, Counts())
        self._recorded[signature] = self._recorded.get(signature, 0) + 1
        if self._recorded[signature] > RECORDINGS:
            if (before := self._replaced.pop(signature, None)) is not None:
                self.plans[signature] = before
                return before
            say(
                f"{self.name} runs differently in every step, so it has no plan; from now on, everything it saves is offloaded; "
                "call tightfit.torch.unfit to stop"
            )
            self._offloaded.add(signature)
            return SafePass(None, Counts())
        flat = tree_flatten(inputs)[0]

        def done(rehearsal: Rehearsal) -> None:
            with self.lock, current(self.device(module)):
                self._recording = None
                self.plan(rehearsal, module, signature, time.monotonic())

        # It runs for real: from here on, PyTorch's plans of cuDNN keep their workspaces.
        settle_workspaces()
        self._recording = RealRecording(module, flat, signature, done)
        return self._recording

    def plan(self, rehearsal: Rehearsal, module: nn.Module | None, signature: Any, started: float) -> None:
        """Plans what was recorded."""
        recorded = time.monotonic() - started
        try:
            fitted = self.planner.plan(rehearsal, module, self.device(module), signature, started)
        except DoesNotFit as error:
            before = self._replaced.pop(signature, None)
            if before is not None:
                seen = f" ({text(before.watch.seen)} seen)" if before.watch.seen else ""
                say(f"{self.name} needs more than its budget of {text(self.budget)}{seen}, and no smaller plan was found; training goes on")
                before.stale, before.over, before.learned, before.watch.passes = False, True, True, 0
                self.plans[signature] = before
                return
            like = next((plan for form, plan in self.plans.items() if plan is not None and alike(form, signature)), None)
            if like is not None:
                others = "without" if has_gradients(module) else "with"
                say(f"{error}. For these inputs, it keeps to its plan for steps {others} gradients before them")
                watch = Watch(self.device(module))
                self.plans[signature] = replace(like, over=True, learned=True, stale=False, watch=watch, counts=Counts())
                return
            self._misfit(error, signature)
            return
        fitted.recorded_s = recorded
        self.plans[signature] = fitted
        self._made += 1
        self._replaced.pop(signature, None)
        self.planner.host.shrink(max((bound.host_bytes for bound in self._bounds()), default=0))
        # Its first passes are watched instead: what was predicted may be too little.
        self.cap.lift()
        if (page := os.environ.get("TIGHTFIT_SWEEP")) and self.on_misfit is not None:
            end_with_sweep(fitted, self.planner.host.bytes(), self.planner.recomputes, page)
        say(fitted.brief(self.name))
        if fitted.schedule is not None and fitted.watch.device.type == "cpu" and "cpu" not in self._said:
            self._said.add("cpu")
            where = "the model is on the CPU" if torch.cuda.is_available() else "no GPU here"
            say(f"{where}, so no memory is saved: what is moved stays in the host's memory, and this only rehearses a GPU")
        line = fitted.line(self.name)
        if fitted.step.assumed:
            line += f"; assuming that {' and '.join(fitted.step.assumed)}"
        if self._made == 1 and (taken := beside(self.device(module))):
            line += f"; {text(taken)} of the GPU are taken beside it (CUDA's context, NCCL and other libraries, other processes)"
        detail(line)

    def _misfit(self, error: DoesNotFit, signature: Any) -> None:
        """Refuses a budget in the first step. Training that has begun goes on: a slow step is better than none."""
        if self._passes <= 1:
            self._passes = 0
            if self.on_misfit is None:
                raise error
            self.on_misfit(error)
        self.cap.give_up()
        say(f"{error}. For these inputs, everything it saves is offloaded")
        self._offloaded.add(signature)

    def _judge(self, active: Pass) -> None:
        """Records again what does not follow its plan any more."""
        signature = active.signature
        fitted = self.plans.get(signature)
        if fitted is None or fitted.schedule is not active.schedule:
            return
        if active.unplanned_bytes > self.budget // STRANGE and self._recorded.get(signature, 0) < AGAIN:
            # It is right all the same, and stays where no plan of the other step fits.
            self._replaced[signature] = fitted
            self._drop(signature, f"saves {text(active.unplanned_bytes)} otherwise than the recorded step")
        elif fitted.is_often_out_of_order() and self._recorded.get(signature, 0) < AGAIN:
            self._replaced[signature] = fitted
            self._drop(signature, "reads what it saved in another order than the recorded one")

    def _drop(self, signature: Any, why: str) -> None:
        del self.plans[signature]
        self._recorded.setdefault(signature, 0)
        say(f"{self.name} {why}; the next step is slow, because it is recorded again")

    def _watch(self, fitted: Fitted, signature: Any) -> None:
        """Compares the peak of a plan's first passes with the budget, on a GPU, when the next one begins."""
        device, watch = self.here.where, fitted.watch
        if not watches(device) or fitted.stale or watch.passes >= WATCHED:
            return
        if tries_algorithms(watch):
            watch.seen = 0
        if not fitted.over and self.planner.exceeded(fitted, signature):
            say(f"{self.name} needed {text(watch.seen)}, {text(watch.seen - self.budget)} over the budget; planning again")
            fitted.stale = True
            return
        watch.passes += 1

    def _begin_watch(self, fitted: Fitted, active: Pass | None) -> None:
        """Measures the peak from here to the end of the pass. Other code may need memory between passes, for which no plan is responsible."""
        device = self.here.where
        if not watches(device):
            return
        if self.cap.begin(device, self._needed(device), fitted.watch.passes >= WATCHED):
            self._give_room(fitted)
        if fitted.watch.passes >= WATCHED:
            return
        if not fitted.watch.passes:
            # Memory that others left cached does not count for this plan.
            torch.cuda.empty_cache()
        fitted.watch.start(self.planner.before(device), active is not None)
        if active is not None:
            active.watch = fitted.watch

    def _needed(self, device: torch.device) -> int:
        """The bytes that passes may allocate: the budget, or more where no plan that was watched had less."""
        watched = [fitted for fitted in self.plans.values() if fitted is not None and fitted.watch.passes]
        if watched and all(fitted.schedule is None for fitted in watched) and not torch.backends.cudnn.benchmark:
            # No plan has room for the gaps of these steps.
            return max(self.budget, int(torch.cuda.max_memory_reserved(device)))
        return max([self.budget, *(fitted.watch.seen for fitted in watched)])

    def _give_room(self, fitted: Fitted) -> None:
        """Plans once more, with room for gaps, since the allocator often reserves too much."""
        line = f"{self.name}: the gaps between the blocks of PyTorch's allocator exceeded the budget in most steps"
        if fitted.schedule is not None and not self.planner.gaps:
            fitted.stale = True
            self.planner.gaps = room_for_gaps(self.budget)
            say(f"{line}; planning again, with {text(self.planner.gaps)} for gaps between blocks")

    @property
    def is_settled(self) -> bool:
        """Whether it is known what becomes of the model: it has a plan, or is left alone."""
        return bool(self.plans) or self._aside

    @property
    def arenas(self) -> list[tuple[Tensor, Any]]:
        """The arenas, each with a function that returns the pass that got it last."""
        return self.planner.host.found


def _unplanned(module: nn.Module) -> str:
    """Why a model is left alone whose forward pass hooks do not see."""
    if inspect.isgeneratorfunction(module.forward):
        return GENERATES
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        return "has modules of TorchScript, which are not planned"
    return ""
