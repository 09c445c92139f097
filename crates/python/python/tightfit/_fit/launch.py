"""Fits the models of unmodified programs, under ``tightfit run --budget``.

Hooks on all modules see the outermost call first: the module that is called there with gradients is fitted, unless it wraps
another one for several devices. A budget that cannot be met ends the program before its first step, with exit code 3.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import BadInput, DoesNotFit
from .entered import running
from .lines import say
from .session import Session
from .sizes import UNLIMITED, budget_bytes

__all__ = ["install"]

# Modules that hold the model for several devices: the model is what they hold.
_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_DOES_NOT_FIT = 3


class _Launched:
    """The sessions of a program, by model."""

    def __init__(self, budget: str) -> None:
        self.budget = budget
        self.sessions: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()
        self.state = threading.local()
        # Optimizers, how many there have been, and how many there had been when a model's was looked for.
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.made = 0
        self.searched: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def note_optimizers(self) -> None:
        """Notes every optimizer that is made from here on."""
        make = torch.optim.Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self.optimizers.add(optimizer)
            self.made += 1

        torch.optim.Optimizer.__init__ = made

    def before(self, module: nn.Module, args: Any) -> None:
        # First, since PyTorch traces what follows otherwise, and cannot trace a model that it meets in here.
        if torch.compiler.is_compiling():
            return
        state = self.state
        outermost = getattr(state, "outermost", None)
        if outermost is not None:
            if running(state.frame):
                return
            self.sessions[outermost].recover()
            state.outermost = None
        if type(module).__name__ in _WRAPPERS:
            return
        if getattr(module, "_tightfit", None) is not None:
            return
        session = self.session(module)
        if session is None or not session.applies(module):
            return
        frame = sys._getframe(1)
        state.outermost, state.frame = module, frame
        if session.planner.optimizer is None and self.searched.get(module) != self.made:
            self.searched[module] = self.made
            session.planner.optimizer = _optimizer_of(module, list(self.optimizers))
        session.before(module, args, _keywords(frame, module), frame)

    def after(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if getattr(self.state, "outermost", None) is module:
            self.state.outermost = self.state.frame = None
            self.sessions[module].after(module, args, {}, outputs)

    def session(self, module: nn.Module) -> Session | None:
        found = self.sessions.get(module)
        if found is None:
            parameter = next(module.parameters(), None)
            if parameter is None:
                return None
            try:
                size = budget_bytes(_read(self.budget), parameter.device, "TIGHTFIT_BUDGET")
            except BadInput as error:
                say(f"{error}; models are left alone")
                size = UNLIMITED
            found = Session(type(module).__name__, size, on_misfit=_end)
            self.sessions[module] = found
        return found


def _read(budget: str) -> int | str:
    return int(budget) if budget.isdigit() else budget


def _end(error: DoesNotFit) -> None:
    """Ends the program: no handler of its own may go on with a model that does not fit."""
    sys.stdout.flush()
    print(f"tightfit: {error}", file=sys.stderr, flush=True)
    os._exit(_DOES_NOT_FIT)


def _keywords(frame: FrameType | None, module: nn.Module) -> dict[str, Any]:
    """The keyword arguments of the call, which hooks on all modules are not given."""
    for _ in range(3):
        if frame is None:
            break
        values = frame.f_locals
        if values.get("self") is module and isinstance(values.get("kwargs"), dict):
            return dict(values["kwargs"])
        frame = frame.f_back
    return {}


def _optimizer_of(model: nn.Module, optimizers: Iterable[Any]) -> Any:
    """The optimizer that has the model's parameters, if there is one yet."""
    known = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
            return optimizer
    return None


def install() -> None:
    """Installs the hooks, for the budget in ``TIGHTFIT_BUDGET``."""
    launched = _Launched(os.environ["TIGHTFIT_BUDGET"])
    launched.note_optimizers()
    register_module_forward_pre_hook(launched.before)
    register_module_forward_hook(launched.after, always_call=True)
