"""Fits the models of unmodified programs, under ``tightfit run --budget``.

Graphs that a program compiles with Inductor are planned when they are compiled. For eager models, hooks on all modules see the outermost call first.
The module of that call is fitted if it runs with gradients and does not wrap another module for several devices. A budget that cannot be met ends the
program before its first step, with exit code 3. A later model that does not fit is offloaded.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import BadInput, DoesNotFit
from . import known
from .compiled.held import have_run
from .compiled.launched import by_inductor, compile_in_place
from .compiled.launched import install as install_compiled
from .eager.hooks import fitted_by
from .eager.running import running
from .eager.session import Session
from .eager.together import Together
from .memory.sizes import UNLIMITED, Share, budget_of
from .messages import say
from .record.optimizer import optimizers_of
from .summary import Summary
from .traced import install as trace_to

__all__ = ["install"]

# Modules that wrap the model for several devices.
_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_DOES_NOT_FIT = 3


class _Launched:
    """The sessions of a program, by model."""

    def __init__(self, budget: str, met: Callable[[], None] | None = None) -> None:
        self.budget = budget
        # Called when the first model runs with gradients.
        self.met = met
        self.together = Together(self.make_group)
        # Whether compiled graphs are planned, too.
        self.takes_compiled = False
        self.sessions = known.launched
        # The sessions of single models, and of groups of models that are planned together.
        self.all_sessions: list[Session] = []
        self.state = threading.local()
        # Whether a model that fits or is left alone has run. Training may have begun then.
        self.ran = False
        # Optimizers in order of creation, their number so far, and that number at the last search for a model's optimizers.
        self.optimizers: list[weakref.ref[Any]] = []
        self.made = 0
        self.searched: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def note_optimizers(self) -> None:
        """Notes every optimizer that is created from now on."""
        make = torch.optim.Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self.optimizers.append(weakref.ref(optimizer))
            self.made += 1

        torch.optim.Optimizer.__init__ = made

    def before(self, module: nn.Module, args: Any) -> None:
        # This check comes first. Otherwise PyTorch traces the lines below, and it cannot trace a model that it meets here.
        if torch.compiler.is_compiling():
            return
        state = self.state
        outermost = getattr(state, "outermost", None)
        if outermost is not None:
            if running(state.frame):
                return
            self.sessions[outermost].recover()
            state.outermost = None
        if type(module).__name__ in _WRAPPERS or self.together.is_in_block():
            return
        if self.takes_compiled:
            compiled = getattr(state, "compiled", None)
            if compiled is not None and running(compiled):
                return
            state.compiled = sys._getframe(1) if by_inductor(module) else None
            if state.compiled is not None:
                return
        if fitted_by(module) is not None:
            return
        if self.together.is_of_group(module, args):
            return
        session = self.session(module)
        if session is None:
            return
        # Modules of TorchScript are left alone.
        is_script = isinstance(module, torch.jit.ScriptModule)
        if not session.applies(module, args) or not is_script and self.together.joins(module):
            return
        if self.met is not None:
            self.met()
            self.met = None
        frame = sys._getframe(1)
        state.outermost, state.frame = module, frame
        known = session.planner.optimizer
        if self.searched.get(module) != self.made or known is not None and not known.is_whole:
            self.searched[module] = self.made
            session.planner.optimizer = self.optimizers_of(module)
        session.before(module, args, _keywords(frame, module), frame)

    def after(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if getattr(self.state, "outermost", None) is module:
            self.state.outermost = self.state.frame = None
            session = self.sessions[module]
            session.after(module, args, {}, outputs)
            self.ran = self.ran or session.is_settled

    def optimizers_of(self, module: nn.Module) -> Any:
        """The optimizers that update a model."""
        self.optimizers = [place for place in self.optimizers if place() is not None]
        return optimizers_of(module, [one for place in self.optimizers if (one := place()) is not None])

    def take_compiled(self) -> None:
        """Plans the graphs that the program compiles from now on."""
        self.takes_compiled = install_compiled(self.budget_on, self.misfit_of_compiled, self.in_eager_model)

    def compile_model(self) -> None:
        """Compiles the first model that is called with gradients, before that call."""
        own = nn.Module.__call__

        @functools.wraps(own)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.is_model(module, args):
                # Restore the default first, because PyTorch traces calls of modules.
                nn.Module.__call__ = own
                device = next(module.parameters()).device
                say(f"{type(module).__name__} is compiled")
                compile_in_place(module, self.budget_on(device), self.optimizers_of(module), self.misfit_of_compiled, self.state)
            return own(module, *args, **kwargs)

        nn.Module.__call__ = call

    def is_model(self, module: nn.Module, args: Any) -> bool:
        """Whether a module that the program calls is a model that is trained, and that is not compiled yet."""
        if type(module).__name__ in _WRAPPERS or isinstance(module, torch.jit.ScriptModule) or by_inductor(module):
            return False
        if fitted_by(module) is not None or not module.training or next(module.parameters(), None) is None:
            return False
        return self.make(type(module).__name__, module).applies(module, args)

    def budget_on(self, device: torch.device) -> int | Share:
        """The budget of the process on a device."""
        if self.met is not None:
            self.met()
            self.met = None
        return budget_of(_read(self.budget), device, "TIGHTFIT_BUDGET")

    def in_eager_model(self) -> bool:
        """Whether an eager model runs. The plan of its steps covers its compiled parts, which keep their saved tensors."""
        return getattr(self.state, "outermost", None) is not None and running(self.state.frame)

    def misfit_of_compiled(self, error: DoesNotFit) -> None:
        """Ends the program, unless one of its compiled models has run."""
        if not have_run():
            self.misfit(error)

    def misfit(self, error: DoesNotFit) -> None:
        """Ends the program, unless one of its models has run. Training that has begun continues."""
        if not self.ran:
            _end(error)

    def session(self, module: nn.Module) -> Session | None:
        found = self.sessions.get(module)
        if found is None:
            if next(module.parameters(), None) is None:
                return None
            # Another thread may have created it first.
            found = self.sessions.setdefault(module, self.make(type(module).__name__, module))
        return found

    def make(self, name: str, module: nn.Module) -> Session:
        """Creates a session with the budget of the process."""
        try:
            size = budget_of(_read(self.budget), next(module.parameters()).device, "TIGHTFIT_BUDGET")
        except BadInput as error:
            say(f"{error}; models are left alone")
            size = UNLIMITED
        recomputes = os.environ.get("TIGHTFIT_RECOMPUTE", "true") != "false"
        session = Session(name, size, on_misfit=self.misfit, recomputes=recomputes)
        self.all_sessions.append(session)
        return session

    def make_group(self, name: str, models: nn.ModuleDict) -> Session:
        """The session of models that are planned together. The sessions of the single models end."""
        for model in models.values():
            if (alone := self.sessions.get(model)) is not None:
                alone.stop()
                self.all_sessions.remove(alone)
        session = self.make(name, models)
        session.planner.optimizer = self.optimizers_of(models)
        return session


def _read(budget: str) -> int | str:
    return int(budget) if budget.isdigit() else budget


def _end(error: DoesNotFit) -> None:
    """Ends the program at once, so that no handler of the program continues with a model that does not fit."""
    sys.stdout.flush()
    print(f"tightfit: {error}", file=sys.stderr, flush=True)
    os._exit(_DOES_NOT_FIT)


def _keywords(frame: FrameType | None, module: nn.Module) -> dict[str, Any]:
    """The keyword arguments of the call. PyTorch does not pass them to hooks on all modules."""
    for _ in range(3):
        if frame is None:
            break
        values = frame.f_locals
        if values.get("self") is module and isinstance(values.get("kwargs"), dict):
            return dict(values["kwargs"])
        frame = frame.f_back
    return {}


def install(met: Callable[[], None] | None = None) -> None:
    """Installs the hooks, for the budget in ``TIGHTFIT_BUDGET``; ``met`` is called when the first model runs with gradients."""
    launched = _Launched(os.environ["TIGHTFIT_BUDGET"], met)
    launched.note_optimizers()
    launched.take_compiled()

    def sessions() -> list[Session]:
        return [session for session in launched.all_sessions if session.passes]

    summary = Summary(sessions)
    if os.environ.get("TIGHTFIT_COMPILE", "false") == "true":
        launched.compile_model()
    register_module_forward_pre_hook(launched.before)
    # The hooks of the trace come after the hook that plans, so a traced forward pass does not include planning.
    if path := os.environ.get("TIGHTFIT_TRACE"):
        trace_to(path, sessions, summary.peaks)
    register_module_forward_hook(launched.after, always_call=True)
