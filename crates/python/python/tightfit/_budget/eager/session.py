"""The passes of one model, or of one place in a program, and the hooks that carry its plans out.

When a pass begins, everything is looked at that may have happened to its plan since the last pass.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ..memory.copies import Copies, current
from ..messages import say_if_slow, say
from ..plan.counts import Counts
from ..plan.fitted import Fitted
from ..plan.watch import settle, watches
from ..record.inputs import carries_gradients, first_trained, form_of, form_of_block, other_layout, values_of
from ..record.rehearse import is_recording
from ..record.transforms import is_inside
from .backward_thread import share
from .first_step import RealRecording
from .offload_all import SafePass
from .passes import Pass
from .plans import GENERATES, Plans
from .running import pop_hooks, push_hooks, running
from .state import State

__all__ = ["Session"]


class Session(Plans):
    """Plans and passes of one model under one budget."""

    # Hooks of the model.

    def before(self, module: nn.Module, args: Any, kwargs: Any, frame: FrameType | None = None) -> None:
        """Called before the model's forward pass; `frame` is the frame of the call, if it is not the caller's."""
        self.recover()
        stack = self.here.stack
        nested = bool(stack)
        stack.append([frame or sys._getframe(1), None])
        if nested:
            return
        self._come()
        self._note_casts(module)
        if not self.applies(module, (args, kwargs)):
            return
        active = self.enter(module, (args, kwargs))
        if active is not None:
            push_hooks(active)
            stack[-1][1] = active

    def after(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        """Called after it, whether it raised or not."""
        stack = self.here.stack
        if not stack:
            return
        active = stack.pop()[1]
        if inspect.isgenerator(outputs) and active is not None:
            # It has not begun.
            self._leave_alone(GENERATES)
        if not stack:
            self.planner.outputs = [weakref.ref(value) for value in tree_flatten(outputs)[0] if isinstance(value, Tensor)]
            self._go()
        if active is not None:
            self.leave(active, outputs is not None)

    def recover(self) -> None:
        """Clears up after forward passes that ended without a call of `after`, as on Ctrl-C."""
        stack = self.here.stack
        while stack and not running(stack[-1][0]):
            active = stack.pop()[1]
            self._following.end()
            if active is not None:
                pop_hooks(active)
                active.seal()
                if self._recording is not None and self._recording.safe is active:
                    self._give_recording_up(counts=False)
            if not stack:
                self._go()

    def stop(self) -> None:
        """Frees everything that lasts beyond a pass, before the hooks go."""
        self.recover()
        self._give_recording_up(counts=False)
        self.cap.lift()
        share(self, False)

    def applies(self, module: nn.Module | None, inputs: Any = ()) -> bool:
        """Whether this pass is one to plan: one that autograd records, outside compilers, tracers and function transforms."""
        if self._aside or is_recording() or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        if torch._C._current_graph_task_id() != -1 or torch._C._get_tracing_state() is not None:
            return False
        if is_inside():
            self.say_once("is called under torch.func, which is not planned")
            return False
        # Gradients may go through a frozen model, in which the search for a trained parameter is long.
        return module is None or carries_gradients(inputs) or first_trained(module) is not None

    def _note_casts(self, module: nn.Module) -> None:
        if torch._C._is_any_autocast_enabled() and not is_recording() and not torch.compiler.is_compiling():
            self.casts.begin(module, self.device(module))

    # Threads.

    def _come(self) -> None:
        """Notes that this thread calls the model."""
        self._threads.add(threading.get_ident())
        recording = self._recording
        if recording is not None and recording.thread != threading.get_ident():
            recording.is_shared = True
            recording.is_spoiled = recording.is_spoiled or recording.inside

    def _go(self) -> None:
        self._threads.discard(threading.get_ident())

    def _give(self, active: Pass, copies: Copies) -> Tensor:
        with self.lock:
            return self.planner.host.give(active, copies)

    # Passes.

    def enter(self, module: nn.Module, inputs: Any, key: Any = None) -> Pass | SafePass | None:
        """Begins a pass: its hooks, or None if nothing is to be done."""
        # Only one thread at a time records and plans.
        with self.lock:
            recording = self._recording
            if recording is not None and recording.began and recording.thread == threading.get_ident():
                # Nobody needs the rest of its graph any more.
                recording.finish()
            active = self._enter(module, inputs, key)
            if active is not None:
                active.state = State(module)
            return active

    def _enter(self, module: nn.Module, inputs: Any, key: Any) -> Pass | SafePass | None:
        flat = values_of(inputs)
        if other := next(filter(None, (other_layout(value) for value in flat if isinstance(value, Tensor))), ""):
            self.say_once(f"is given {other} tensors, which are not planned")
            return None
        self.here.where = self.device(module)
        signature = key or form_of(module, flat, self.here.where)
        if signature in self._offloaded:
            return SafePass(None, Counts())
        if watches(self.here.where):
            settle(self.here.where)
        known = self.plans.get(signature)
        if known is not None:
            self.planner.learn(known, module, self.here.where, signature)
            self._watch(known, signature)
            if known.stale:
                self._replaced[signature] = self.plans.pop(signature)
                with current(self.here.where), say_if_slow(f"{self.name}: still planning again"):
                    self.plan(known.rehearsal, module, signature, time.monotonic())
                if signature in self._offloaded:
                    return SafePass(None, Counts())
        self._passes += 1
        if signature not in self.plans:
            if not self._room(signature):
                return None if self._fits(signature) else SafePass(None, Counts())
            with current(self.here.where), say_if_slow(f"{self.name}: still recording a step and planning its memory, once for each form of inputs"):
                fitted = self.prepare(module, inputs, signature, rehearsed=key is None)
            if isinstance(fitted, RealRecording):
                return fitted.safe
            if isinstance(fitted, SafePass):
                return fitted
        fitted = self.plans.get(signature)
        if fitted is not None and fitted.is_switched(module):
            self._made += 1
        self.last = fitted
        if fitted is not None:
            fitted.used = self._passes
        self._share(fitted)
        if fitted is None or fitted.schedule is None:
            if fitted is not None:
                self._begin_watch(fitted, None)
            return None
        copies = self.planner.copies_on(self.here.where)
        copies.begin()
        active = Pass(fitted.schedule, copies, self._give, fitted.counts, self.here.where)
        active.signature, active.cast_before = signature, self.casts.versions
        self._begin_watch(fitted, active)
        if fitted.schedule.switches or fitted.schedule.quiet or fitted.schedule.flushes or fitted.schedule.looks or fitted.schedule.noted:
            self._following.begin(active, module, self._bounds, self._made)
        active.enter(module, tuple(flat))
        return active

    def _share(self, fitted: Fitted | None) -> None:
        """Lets a GPU's backward pass run on this thread: hooks cost half there, and convolutions run again with their algorithms."""
        bound = fitted.schedule if fitted is not None else None
        needs = bound is not None and bound.convolves and torch.backends.cudnn.benchmark
        share(self, needs or bound is not None and self.here.where.type == "cuda")
        if fitted is not None and needs and fitted.counts.elsewhere and "elsewhere" not in self._said:
            self._said.add("elsewhere")
            say(f"{self.name} runs its backward pass on another thread, where cudnn.benchmark may choose other algorithms for what is computed again")

    def inside(self) -> bool:
        """Whether this thread is in a forward pass of this session."""
        return bool(self.here.stack)

    def enter_context(self, models: nn.Module, begins: Any = None) -> Pass | SafePass | None:
        """Begins a block of a program, which is not a module's forward pass; `begins` tells blocks apart."""
        self._come()
        self._note_casts(models)
        active = None
        try:
            active = self.enter(models, (), key=(*form_of_block(models, self.device(models)), begins))
        finally:
            if active is None:
                self._go()
        return active

    def leave(self, active: Pass | SafePass, ended: bool = True) -> None:
        """Ends the forward part of a pass, which may have raised."""
        pop_hooks(active)
        self._following.end()
        if not self.here.stack:
            self._go()
        recording = self._recording
        if recording is not None and active is recording.safe:
            self._forward_recorded(recording, ended)
            return
        active.seal()
        if isinstance(active, Pass):
            with self.lock:
                self._judge(active)

    def _forward_recorded(self, recording: RealRecording, ended: bool) -> None:
        """Goes on with a recording when its forward part has ended."""
        if not ended or recording.is_spoiled:
            self._give_recording_up(counts=False)
        elif not recording.forward_done():
            self._recording = None
            if not self._aside:
                self.say_once("saves nothing for a backward pass itself")
                self.plans[recording.signature] = None
