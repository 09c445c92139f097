"""Hooks on modules, by which a running pass follows the modules of its model.

The hooks of submodules are there only while a pass runs.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..record.unwatched import Ours, Unwatched, asks

if TYPE_CHECKING:
    from ..plan.pack_schedule import PackSchedule
    from .passes import Pass

__all__ = ["Copied", "Following", "Hook", "places_of", "take_away"]


class Hook(Ours):
    """A hook that is neither copied nor saved."""

    @property
    def key(self) -> int:
        """Its place among a module's hooks. PyTorch's keys are not negative, and begin at 0 again in a process that reads a file with the hook."""
        return -id(self)

    def __deepcopy__(self, memo: Any) -> Copied:
        return Copied()

    def __reduce__(self) -> Any:
        # A file must be read where tightfit is not: this takes any arguments, and gives None.
        return getattr, (contextlib.nullcontext(), "__exit__")


class Copied(Hook):
    """A hook in a copy of a model: it removes itself and the other copied hooks at the first call."""

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            take_away(module, Copied)


def take_away(module: nn.Module, kind: type[Hook]) -> None:
    """Takes hooks of one kind away."""
    for hooks, *flags in places_of(module):
        for key in [key for key, hook in hooks.items() if isinstance(hook, kind)]:
            for place in (hooks, *flags):
                place.pop(key, None)


def places_of(module: nn.Module) -> list[tuple[Any, ...]]:
    """Where the hooks before and after a module's forward pass are, and what says how they are called."""
    return [
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
    ]


class _Here(threading.local):
    """The pass that this thread follows."""

    active: Pass | None = None


class _Switch(Hook):
    """Tells the running pass that a module begins at which something changes: calls are noted from here on, or not, or no hooks are needed."""

    def __init__(self, here: _Here, name: str) -> None:
        self.here = here
        self.name = name

    def __call__(self, module: Any, inputs: Any) -> None:
        active = self.here.active
        if active is not None and not torch.compiler.is_compiling():
            active.begins(self.name)


class _SwitchBack(_Switch):
    """Tells it that the module has ended, whether that raised or not."""

    def __call__(self, module: Any, inputs: Any, outputs: Any = None) -> None:
        active = self.here.active
        if active is not None and not torch.compiler.is_compiling():
            active.ends(self.name)


class _Look(_Switch):
    """Tells the running pass that a module has ended whose outputs show what no backward pass reads."""

    def __call__(self, module: Any, inputs: Any, outputs: Any = None) -> None:
        active = self.here.active
        if active is not None and not torch.compiler.is_compiling():
            active.shows(self.name, outputs)


class _Asked(_Switch):
    """Tells it that a module begins that asks whether it is watched."""

    def __call__(self, module: Any, inputs: Any) -> None:
        active = self.here.active
        if active is not None:
            Unwatched(active.pause, active.resume)(module, inputs)


class Following:
    """Lets passes of a model see where modules begin and end in which calls are noted.

    Hooks are on modules while any thread is in such a pass.
    """

    def __init__(self) -> None:
        self.here = _Here()
        self.lock = threading.Lock()
        # The plans that had been made when modules were looked for: they may be replaced between two of them.
        self.made = 0
        self.passes = 0
        # Where each entry is put, whether it comes before all others there, its key, and the entry.
        self.entries: list[tuple[weakref.ref[Any], bool, int, Any]] = []

    def begin(self, active: Pass, model: nn.Module, bounds: Callable[[], list[PackSchedule]], made: int) -> None:
        """Begins a pass that follows modules as plans ask, which are the plans of the session at this point."""
        with self.lock:
            self.passes += 1
            if self.made != made:
                self._take_away()
                self.made = made
                self._find(model, bounds())
                self._put()
            elif self.passes == 1:
                self._put()
        self.here.active = active

    def _put(self) -> None:
        for place, before, key, entry in self.entries:
            entries = place()
            if entries is not None:
                entries[key] = entry
                if before and len(entries) > 1:
                    entries.move_to_end(key, last=False)

    def _find(self, model: nn.Module, bounds: list[PackSchedule]) -> None:
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
            add((modules[name]._forward_pre_hooks,), True, _Switch(self.here, name))
            add((modules[name]._forward_hooks, modules[name]._forward_hooks_always_called), False, _SwitchBack(self.here, name))
        for name in {name for bound in bounds for name in bound.flushes} & modules.keys() - switched:
            add((modules[name]._forward_hooks,), False, _SwitchBack(self.here, name))
        for name in {name for bound in bounds for name in bound.looks} & modules.keys():
            add((modules[name]._forward_hooks,), False, _Look(self.here, name))
        for name, module in modules.items():
            if asks(module):
                add((module._forward_pre_hooks,), True, _Asked(self.here, name))

    def end(self) -> None:
        """Ends the pass that this thread follows, if there is one."""
        if self.here.active is None:
            return
        self.here.active = None
        with self.lock:
            self.passes -= 1
            if not self.passes:
                self._take_away()

    def _take_away(self) -> None:
        for place, _, key, _ in self.entries:
            entries = place()
            if entries is not None:
                entries.pop(key, None)
