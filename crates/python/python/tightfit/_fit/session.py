"""Plans of one model (or of one place in a program), one for each form of its inputs, and the hooks that carry them out."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ..errors import DoesNotFit
from .bound import Bound, bind
from .budget import enforce, reserve_of
from .copies import Copies, copies_for
from .decide import Decided, decide, decide_least
from .optimizer import optimizer_bytes
from .passes import Counts, Pass, SafePass
from .real import RealRecording
from .rebuild import Lives
from .recorder import Recorder, owns_tensors
from .rehearse import CannotRehearse, Rehearsal, is_recording, rehearse
from .simulate import Outcome
from .sizes import text
from .step import Step, build

__all__ = ["Fitted", "Session", "least_of", "make_plan", "say"]

PLANS = 8
# Passes of a plan whose peak is looked at; PyTorch's peak statistics are reset for them.
WATCHED = 4
FOLLOWED = "_tightfit_followed"
# Passes in another order than planned, after which the step is recorded again.
TOLERATED = 3
# Real steps that are recorded for one form of inputs, before it is left without a plan.
RECORDINGS = 4


def say(line: str) -> None:
    """Writes one line for the user, unless told to be quiet."""
    if os.environ.get("TIGHTFIT_QUIET") != "1":
        print(f"tightfit: {line}", file=sys.stderr, flush=True)


@dataclass
class Fitted:
    """A plan of one form of inputs.

    Attributes
    ----------
    step, lives
        The step, and who reads and writes its tensors.
    decided
        The decisions and what the planner predicts.
    bound
        The plan as it is carried out; None if everything fits as it is.
    seconds
        Time of recording and planning.
    recorder
        What was recorded.
    watched, stale
        Passes whose peak was looked at, and whether it was over the budget.
    """

    step: Step
    lives: Lives
    decided: Decided
    bound: Bound | None
    budget: int
    seconds: float
    recorder: Recorder
    watched: int = 0
    stale: bool = False
    counts: Counts = field(default_factory=Counts)

    @property
    def peak(self) -> int:
        """Predicted peak in bytes."""
        return self.bound.outcome.peak if self.bound is not None else self.decided.outcome.peak

    @property
    def plain(self) -> int:
        """Predicted peak in bytes if everything is kept."""
        return self.decided.plain.peak

    @property
    def overhead(self) -> float:
        """Predicted added time, as a share of the step."""
        outcome = self.bound.outcome if self.bound is not None else self.decided.outcome
        return outcome.time_us / max(self.decided.plain.time_us, 1e-9) - 1

    def line(self, name: str) -> str:
        """What the plan does, on one line."""
        if self.bound is None:
            return f"{name}: predicted peak {text(self.peak)} fits in {text(self.budget)}; nothing is changed"
        outcome = self.bound.outcome
        return (
            f"{name}: predicted peak {text(self.peak)} of {text(self.budget)} (plain {text(self.plain)}), "
            f"overhead {100 * self.overhead:.1f}%, {text(outcome.moved)} offloaded, "
            f"{outcome.rebuilt_us / 1e3:.1f} ms recomputed, planned in {self.seconds:.1f} s"
        )


def make_plan(
    rehearsal: Rehearsal,
    device: torch.device,
    name: str,
    budget: int,
    optimizer: tuple[int, int],
    outside_bytes: int,
    started: float,
) -> Fitted:
    """Plans a recorded step.

    Raises
    ------
    DoesNotFit
        If no plan within the budget is found; it has the least budget found, and names the operation that needs it.
    """
    recorder = rehearsal.recorder
    step = build(recorder, device, rehearsal.gradients, name, optimizer, outside_bytes)
    lives = Lives(step.data)
    fitted = _within(budget, step, lives, recorder)
    if fitted is None:
        # The search may find for less what it did not find for more.
        decided = decide_least(step.data, lives)
        bound = bind(step, lives, decided.decisions, recorder) if decided.decisions else None
        outcome = bound.outcome if bound is not None else decided.outcome
        if outcome.peak > budget:
            raise _misfit(name, step, outcome, budget)
        fitted = decided, bound
    return Fitted(step, lives, *fitted, budget, time.monotonic() - started, recorder)


def _within(budget: int, step: Step, lives: Lives, recorder: Recorder) -> tuple[Decided, Bound | None] | None:
    """Decisions within a budget, as they are carried out."""
    target = budget
    # Where decisions can only take effect later than planned, the peak may be higher: plan for less.
    for _ in range(6):
        decided = decide(step.data, target, lives)
        bound = bind(step, lives, decided.decisions, recorder) if decided.decisions else None
        peak = bound.outcome.peak if bound is not None else decided.outcome.peak
        if peak <= budget:
            return decided, bound
        if not decided.fits:
            return None
        target -= peak - budget
    return None


def least_of(fitted: Fitted) -> int:
    """The least budget in bytes for which a plan of this step is found."""
    decided = decide_least(fitted.step.data, fitted.lives)
    if not decided.decisions:
        return decided.outcome.peak
    return bind(fitted.step, fitted.lives, decided.decisions, fitted.recorder).outcome.peak


def _misfit(name: str, step: Step, outcome: Outcome, budget: int) -> DoesNotFit:
    operation = step.data["operations"][outcome.at]
    where = step.data["groups"][operation["group"]]["name"]
    return DoesNotFit(
        f"{name} does not fit in {text(budget)}: the least budget found is {outcome.peak} bytes ({text(outcome.peak)}), which "
        f"{operation['name']} of {where} needs in the {operation['stage']} pass; give a larger budget or a smaller batch",
        outcome.peak,
        budget,
    )


class Session:
    """Plans and passes of one model under one budget."""

    def __init__(
        self,
        name: str,
        budget: int,
        optimizer: Any = None,
        loss: Callable[[Any], Tensor] | None = None,
        copies: Copies | None = None,
        on_misfit: Callable[[DoesNotFit], None] | None = None,
    ) -> None:
        self.name = name
        self.budget = budget
        # What of it no recording shows: replaced by what is seen.
        self.reserve: int | None = None
        self.optimizer = optimizer
        self.loss = loss
        self.copies = copies
        self.on_misfit = on_misfit
        # The device of the pass that was entered last.
        self.where = torch.device("cpu")
        self.plans: dict[Any, Fitted | None] = {}
        self.last: Fitted | None = None
        self._entered = threading.local()
        self._host: Tensor | None = None
        self._host_of: weakref.ref[Pass] | None = None
        self._aside = False
        # How often forms of inputs were recorded on a real step, because nothing else was right for them.
        self._recorded: dict[Any, int] = {}
        # Forms that are never planned: everything that they save is offloaded.
        self._offloaded: set[Any] = set()
        self._recording: RealRecording | None = None
        # The pass that is told of the calls of modules, and the model whose modules tell of them.
        self.following: Pass | None = None
        self.handles: list[Any] = []

    def __deepcopy__(self, memo: Any) -> Session:
        # Copies of the model (rehearsals, averages of weights) are not fitted anew.
        return self

    def __reduce__(self) -> Any:
        return Inert, ()

    # Hooks of the model.

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Called before the model's forward pass."""
        stack = self._stack()
        if stack or not self.applies(module):
            stack.append(None)
            return
        stack.append(None)
        active = self.enter(module, (args, kwargs))
        if active is not None:
            torch._C._autograd._push_saved_tensors_default_hooks(active.pack, active.unpack)
            stack[-1] = active

    def after(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        """Called after it, whether it raised or not."""
        stack = self._stack()
        if not stack:
            return
        active = stack.pop()
        if active is not None:
            self.leave(active)

    def _stack(self) -> list[Any]:
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        return self._entered.stack  # type: ignore[no-any-return]

    def applies(self, module: nn.Module | None) -> bool:
        """Whether this pass is one to plan: one that autograd records, outside compilers and function transforms."""
        if self._aside or is_recording() or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        if torch._C._current_graph_task_id() != -1 or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        return module is None or any(parameter.requires_grad for parameter in module.parameters())

    # Passes.

    def enter(self, module: nn.Module, inputs: Any, key: Any = None) -> Pass | SafePass | None:
        """Begins a pass: its hooks, or None if nothing is to be done."""
        flat = tree_flatten(inputs)[0]
        self.where = self.device(module)
        signature = key or self.signature(module, flat)
        if signature in self._offloaded:
            return SafePass(None, Counts())
        known = self.plans.get(signature)
        if known is not None and known.stale:
            del self.plans[signature]
        if signature not in self.plans:
            while len(self.plans) >= PLANS:
                self.plans.pop(next(iter(self.plans)))
            fitted = self.prepare(module, inputs, signature, rehearsed=key is None)
            if isinstance(fitted, RealRecording):
                return fitted.safe
            if isinstance(fitted, SafePass):
                return fitted
        fitted = self.plans.get(signature)
        self.last = fitted
        if fitted is None or fitted.bound is None:
            return None
        copies = self._copies()
        copies.begin()
        if fitted.bound.programs and not getattr(module, FOLLOWED, False):
            self._follow(module)
        active = self.following = Pass(fitted.bound, copies, self._arena, module, flat, fitted.counts)
        active.signature = signature  # type: ignore[attr-defined]
        if owns_tensors(module):
            active.called("")
        return active

    def inside(self) -> bool:
        """Whether this thread is in a forward pass of this session."""
        return bool(self._stack())

    def enter_context(self, models: nn.Module) -> Pass | SafePass | None:
        """Begins a block of a program, which is no module's forward pass."""
        kind = self.device(models).type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return self.enter(models, (), key=("block", cast, _has_gradients(models)))

    def leave(self, active: Pass | SafePass) -> None:
        """Ends the forward part of a pass."""
        torch._C._autograd._pop_saved_tensors_default_hooks()
        self.following = None
        if self._recording is not None and active is self._recording.safe:
            self._recording.forward_done()
            return
        active.seal()
        if isinstance(active, Pass):
            self._judge(active)
            self._watch(active)

    def _follow(self, model: nn.Module) -> None:
        """Lets passes see which modules run: a rerun is right only with the parameters that were used."""
        # Copies of the model have copies of its hooks, and of this mark.
        object.__setattr__(model, FOLLOWED, True)
        for name, module in model.named_modules():
            # The model itself is being called already: see `enter`.
            if name and owns_tensors(module):
                self.handles.append(module.register_forward_pre_hook(_Called(self, name), prepend=True))

    def _judge(self, active: Pass) -> None:
        """Records again what does not follow its plan any more."""
        counts = active.counts
        if active.lost or counts.out_of_order >= TOLERATED:
            signature = active.signature  # type: ignore[attr-defined]
            if self.plans.pop(signature, None) is not None:
                self._recorded.setdefault(signature, 0)
                say(f"{self.name} did not run as recorded; its next step is recorded anew, with everything offloaded")

    def _watch(self, active: Pass) -> None:
        """Compares the peak of a plan's first passes with its prediction, on a GPU; plans anew if it was higher."""
        device = self._copies().device
        signature = active.signature  # type: ignore[attr-defined]
        fitted = self.plans.get(signature)
        if device.type != "cuda" or fitted is None or fitted.watched >= WATCHED:
            return
        if fitted.watched > 0:
            # The step before this one has ended.
            seen = torch.cuda.max_memory_allocated(device)
            if seen > self.budget and self.reserve is not None:
                self.reserve += seen - self.budget + (8 << 20)
                say(f"{self.name} needed {text(seen)}, {text(seen - self.budget)} over the budget; planning anew")
                fitted.stale = True
        fitted.watched += 1
        torch.cuda.reset_peak_memory_stats(device)
        if fitted.watched == WATCHED and not fitted.stale:
            enforce(self.budget, device)

    def signature(self, module: nn.Module, flat: list[Any]) -> Any:
        """What plans are told apart by: forms of the inputs, training, autocast, and whether gradients are there."""
        forms = tuple(
            (value.shape, value.stride(), value.dtype, value.requires_grad) if isinstance(value, Tensor) else _word(value)
            for value in flat
        )
        kind = self.device(module).type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return forms, module.training, cast, _has_gradients(module)

    def device(self, module: nn.Module | None) -> torch.device:
        """Where the model is."""
        for parameter in module.parameters() if module is not None else ():
            return parameter.device
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def prepare(self, module: nn.Module, inputs: Any, signature: Any, rehearsed: bool) -> Fitted | RealRecording | SafePass | None:
        """Records and plans a new form of inputs, before its first pass."""
        started = time.monotonic()
        if _unsupported(module):
            say(f"{self.name} has {_unsupported(module)}, which are not planned; its memory is left alone")
            self._aside = True
            return None
        if rehearsed and signature not in self._recorded:
            args, kwargs = inputs
            try:
                rehearsal = rehearse(module, args, kwargs, self.loss, _has_gradients(module))
            except CannotRehearse as error:
                say(f"{self.name} cannot be rehearsed ({error}); recording its first step, with everything offloaded")
            else:
                self.plan(rehearsal, module, signature, started)
                return self.plans.get(signature) or SafePass(None, Counts())
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None
        self._recorded[signature] = self._recorded.get(signature, 0) + 1
        if self._recorded[signature] > RECORDINGS:
            say(f"{self.name} runs otherwise in every step; from now on everything that it saves is offloaded")
            self._offloaded.add(signature)
            return SafePass(None, Counts())
        flat = tree_flatten(inputs)[0]

        def done(rehearsal: Rehearsal) -> None:
            self._recording = None
            self.plan(rehearsal, module, signature, time.monotonic())

        self._recording = RealRecording(module, flat, done)
        return self._recording

    def plan(self, rehearsal: Rehearsal, module: nn.Module | None, signature: Any, started: float) -> None:
        """Plans what was recorded."""
        device = self.device(module)
        state, scratch, assumed = optimizer_bytes(self.optimizer, module, device)
        there = state if self.optimizer is not None and self.optimizer.state else 0
        known = there + _bytes_of(module, device) + _bytes_of_inputs(rehearsal, device)
        outside = max(0, torch.cuda.memory_allocated(device) - known) if device.type == "cuda" else 0
        if self.reserve is None:
            self.reserve = reserve_of(self.budget, device)
        try:
            fitted = make_plan(rehearsal, device, self.name, self.budget, (state, scratch), outside + self.reserve, started)
        except DoesNotFit as error:
            if self.on_misfit is None:
                raise
            if not self.plans:
                self.on_misfit(error)
            # In the midst of a run, a slow step is better than none.
            say(f"{error}; for now, everything that it saves is offloaded")
            self._offloaded.add(signature)
            return
        for note in (*rehearsal.assumed, *([assumed] if assumed else [])):
            fitted.step.assumed.append(note)
        self.plans[signature] = fitted
        if fitted.bound is None:
            enforce(self.budget, device)
        line = fitted.line(self.name)
        if fitted.step.assumed:
            line += f"; assuming that {' and '.join(fitted.step.assumed)}"
        say(line)

    # Host memory.

    def _copies(self) -> Copies:
        if self.copies is None:
            self.copies = copies_for(self.where)
        return self.copies

    def _arena(self, active: Pass) -> Tensor:
        """The arena; fresh memory while an earlier graph still needs it."""
        size = active.bound.host_bytes
        owner = self._host_of() if self._host_of is not None else None
        if owner is not None and owner is not active:
            active.counts.fresh_bytes += size
            return self._copies().arena(size)
        if self._host is None or self._host.numel() < size:
            self._host = None
            self._host = self._copies().arena(size)
        self._host_of = weakref.ref(active)
        return self._host


class _Called:
    """Tells the running pass that a module is called."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name

    def __call__(self, module: Any, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            active = self.session.following
            if active is not None:
                active.called(self.name)


class Inert:
    """What a session becomes in a model that is read from a file: hooks that do nothing."""

    following = None

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        pass

    def after(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        pass


def _word(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | type(None)) else type(value).__name__


def _has_gradients(module: nn.Module) -> bool:
    """Whether the first parameter that is trained has a gradient, as when gradients accumulate."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            return parameter.grad is not None
    return False


def _bytes_of(module: nn.Module | None, device: torch.device) -> int:
    """Bytes of parameters, their gradients, and buffers."""
    if module is None:
        return 0
    total = 0
    for parameter in module.parameters():
        total += parameter.untyped_storage().nbytes()
        if parameter.grad is not None:
            total += parameter.grad.untyped_storage().nbytes()
    return int(total + sum(buffer.untyped_storage().nbytes() for buffer in module.buffers()))


def _bytes_of_inputs(rehearsal: Rehearsal, device: torch.device) -> int:
    return sum(
        storage.bytes
        for storage in rehearsal.recorder.storages
        if storage.external is not None and storage.external[0] in ("input", "unknown") and storage.device.type == device.type
    )


def _unsupported(module: nn.Module) -> str:
    """What makes a model one to leave alone: sharded parameters, and other subclasses of tensors."""
    for parameter in module.parameters():
        if type(parameter.data) is not Tensor:
            return f"parameters of type {type(parameter.data).__name__}"
        if parameter.is_nested:
            return "nested tensors"
    return ""
