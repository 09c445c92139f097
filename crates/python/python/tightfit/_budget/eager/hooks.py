"""The hooks of sessions on their models, and which models are fitted.

A saved or copied model is a plain model: copied hooks do nothing, and a module holds nothing else of this package.
The hooks of submodules are there only while a pass runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...errors import Error
from ..record.unsupported import say_compiled
from ..record.unwatched import Ours, Unwatched, asks

if TYPE_CHECKING:
    from ..plan.pack_schedule import PackSchedule
    from .session import Session

__all__ = ["Following", "fitted_by", "install", "uninstall"]

# The sessions of models.
_fitted: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()


class _Ours(Ours):
    """A hook that is neither copied nor saved."""

    @property
    def key(self) -> int:
        """Its place among a module's hooks. PyTorch's keys are not negative, and begin at 0 again in a process that reads a file with the hook."""
        return -id(self)

    def __deepcopy__(self, memo: Any) -> _Copied:
        return _Copied()

    def __reduce__(self) -> Any:
        # A file must be read where tightfit is not: this takes any arguments, and gives None.
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Copied(_Ours):
    """A hook in a copy of a model: it removes itself and the other copied hooks at the first call."""

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            _take_away(module, _Copied)


class _Before(_Ours):
    """Tells a session that its model is called."""

    def __init__(self, session: Session, model: nn.Module) -> None:
        self.session = session
        self.asks = asks(model)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            say_compiled(self.session.name)
            return
        try:
            self.session.before(module, args, kwargs, sys._getframe(1))
        except Error as error:
            if os.environ.get("TIGHTFIT_VERBOSE") == "1":
                raise
            # The message is for the program: the frames that found the error say nothing.
            raise error.with_traceback(None) from None
        if self.asks:
            Unwatched()(module, args)


class _After(_Ours):
    """Tells a session that its model has returned."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.session.after(module, args, kwargs, outputs)


def _take_away(module: nn.Module, kind: type[_Ours]) -> None:
    """Takes hooks of one kind away."""
    for hooks, *flags in _places(module):
        for key in [key for key, hook in hooks.items() if isinstance(hook, kind)]:
            for place in (hooks, *flags):
                place.pop(key, None)


def _places(module: nn.Module) -> list[tuple[Any, ...]]:
    """Where the hooks before and after a module's forward pass are, and what says how they are called."""
    return [
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
    ]


def install(model: nn.Module, session: Session) -> None:
    """Puts a session's hooks on a model."""
    _take_away(model, _Copied)
    for (hooks, *flags), hook in zip(_places(model), (_Before(session, model), _After(session)), strict=True):
        hooks[hook.key] = hook
        for place in flags:
            place[hook.key] = True
    # Other hooks may already save something.
    model._forward_pre_hooks.move_to_end(next(reversed(model._forward_pre_hooks)), last=False)
    _fitted[model] = session


def uninstall(model: nn.Module) -> None:
    """Takes them away."""
    _take_away(model, _Ours)
    _fitted.pop(model, None)


def fitted_by(model: nn.Module) -> Session | None:
    """The session of a fitted model."""
    return _fitted.get(model)


class _Switch(_Ours):
    """Tells the running pass that a module begins at which something changes: calls are noted from here on, or not, or no hooks are needed."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name

    def __call__(self, module: Any, inputs: Any) -> None:
        active = self.session.here.following
        if active is not None and not torch.compiler.is_compiling():
            active.begins(self.name)


class _SwitchBack(_Switch):
    """Tells it that the module has ended, whether that raised or not."""

    def __call__(self, module: Any, inputs: Any, outputs: Any = None) -> None:
        active = self.session.here.following
        if active is not None and not torch.compiler.is_compiling():
            active.ends(self.name)


class _Look(_Switch):
    """Tells the running pass that a module has ended whose outputs show what no backward pass reads."""

    def __call__(self, module: Any, inputs: Any, outputs: Any = None) -> None:
        active = self.session.here.following
        if active is not None and not torch.compiler.is_compiling():
            active.shows(self.name, outputs)


class _Asked(_Switch):
    """Tells it that a module begins that asks whether it is watched."""

    def __call__(self, module: Any, inputs: Any) -> None:
        active = self.session.here.following
        if active is not None:
            Unwatched(active.pause, active.resume)(module, inputs)


class Following:
    """Lets passes of a model see where modules begin and end in which calls are noted.

    Hooks are on modules while any thread is in such a pass.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # The plans that had been made when modules were looked for: they may be replaced between two of them.
        self.made = 0
        self.passes = 0
        # Where each entry is put, whether it comes before all others there, its key, and the entry.
        self.entries: list[tuple[weakref.ref[Any], bool, int, Any]] = []

    def begin(self, session: Session, model: nn.Module, bounds: Callable[[], list[PackSchedule]], made: int) -> None:
        """Begins a pass that follows modules as plans ask, which are the plans of the session at this point."""
        with self.lock:
            self.passes += 1
            if self.made != made:
                self._take_away()
                self.made = made
                self._find(session, model, bounds())
            elif self.passes > 1:
                return
            for place, before, key, entry in self.entries:
                entries = place()
                if entries is not None:
                    entries[key] = entry
                    if before and len(entries) > 1:
                        entries.move_to_end(key, last=False)

    def _find(self, session: Session, model: nn.Module, bounds: list[PackSchedule]) -> None:
        """Looks for the modules that plans ask for."""
        self.entries = []

        def add(places: tuple[Any, ...], before: bool, hook: _Switch) -> None:
            hooks, *flags = places
            self.entries.append((weakref.ref(hooks), before, hook.key, hook))
            self.entries += [(weakref.ref(flag), False, hook.key, True) for flag in flags]

        # The model itself is being called already.
        modules = {name: module for name, module in model.named_modules() if name}
        switched = {name for bound in bounds for name in (*bound.switches, *bound.quiet)}
        for name in switched & modules.keys():
            add((modules[name]._forward_pre_hooks,), True, _Switch(session, name))
            add((modules[name]._forward_hooks, modules[name]._forward_hooks_always_called), False, _SwitchBack(session, name))
        for name in {name for bound in bounds for name in bound.flushes} & modules.keys() - switched:
            add((modules[name]._forward_hooks,), False, _SwitchBack(session, name))
        for name in {name for bound in bounds for name in bound.looks} & modules.keys():
            add((modules[name]._forward_hooks,), False, _Look(session, name))
        for name, module in modules.items():
            if asks(module):
                add((module._forward_pre_hooks,), True, _Asked(session, name))

    def end(self) -> None:
        """Ends it."""
        with self.lock:
            self.passes -= 1
            if not self.passes:
                self._take_away()

    def _take_away(self) -> None:
        for place, _, key, _ in self.entries:
            entries = place()
            if entries is not None:
                entries.pop(key, None)
