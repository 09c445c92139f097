"""Plans models together that a program calls one after another in one step.

A step may call an encoder and then a decoder, a generator and a discriminator, or a model and the frozen network of its loss. The tensors that
the first model saves stay until the backward pass, so a plan for one model alone cannot hold the budget. Models that are called between two
updates are planned together from the next step on: as one block, from the first call to the backward pass::

    encoder(x)   decoder(z)   loss   backward()   step()
    |------------ block -----------|
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten

from ..messages import say
from ..plan.counts import Counts
from ..record.inputs import form_of
from .offload_all import SafePass
from .running import push_hooks
from .session import Session
from .state import State

__all__ = ["Together"]


class _Step(threading.local):
    """The models that one thread has called since the last update, and its current block."""

    def __init__(self) -> None:
        self.called: list[weakref.ref[nn.Module]] = []
        self.block: tuple[Session, Any] | None = None


class Together:
    """The groups of models that are planned together.

    ``make`` creates the session of a group from its name and its models.
    """

    def __init__(self, make: Callable[[str, nn.ModuleDict], Session]) -> None:
        self.make = make
        self.step = _Step()
        # The models of each group, and the session of each group.
        self.groups: list[list[weakref.ref[nn.Module]]] = []
        self.sessions: dict[int, Session] = {}
        self._engine: Any = None
        self._updates: Any = None

    def _watch(self) -> None:
        """Replaces autograd's entry point to notice backward passes; called for the first group."""
        if self._engine is None:
            self._engine = torch.autograd._engine_run_backward
            torch.autograd._engine_run_backward = self._run

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self.step.block is not None:
            self._leave()
            # A recording of the block may wait for this call.
            return torch.autograd._engine_run_backward(*args, **kwargs)
        return self._engine(*args, **kwargs)

    def _update(self, *_: Any) -> None:
        """Called when an optimizer steps: later calls belong to the next step."""
        self._leave()
        self.step.called.clear()

    def _leave(self) -> None:
        block, self.step.block = self.step.block, None
        if block is not None and block[1] is not None:
            block[0].leave(block[1])

    def is_in_block(self) -> bool:
        """Whether this thread is in a block: all calls belong to it."""
        return self.step.block is not None

    def is_of_group(self, module: nn.Module, args: Any) -> bool:
        """Called before a model's call outside of blocks. Returns whether the model belongs to a group; its block may begin here."""
        group = next((group for group in self.groups if any(place() is module for place in group)), None)
        if group is None:
            return False
        session, models = self._session(group)
        if session.inside() or not session.applies(None):
            return True
        # Blocks of one group differ by their first model: a discriminator's own step and a generator's.
        first = next(at for at, place in enumerate(group) if place() is module)
        active = session.enter_context(models, (first, form_of(module, tree_flatten(args)[0], session.device(module))))
        if active is not None:
            push_hooks(active)
        # A step that fits is a block, too, so that modules called by its models do not count as models.
        self.step.block = session, active
        return True

    def _session(self, group: list[weakref.ref[nn.Module]]) -> tuple[Session, nn.ModuleDict]:
        models = nn.ModuleDict({str(at): model for at, place in enumerate(group) if (model := place()) is not None})
        session = self.sessions.get(id(group))
        if session is None:
            name = "+".join(dict.fromkeys(type(model).__name__ for model in models.values()))
            session = self.sessions[id(group)] = self.make(name, models)
        return session, models

    def joins(self, module: nn.Module) -> bool:
        """Notes a call of a model that is in no group yet. Returns whether it joins models that were called earlier in this step. Then all tensors
        that the rest of the step saves are offloaded."""
        if self._updates is None:
            self._updates = register_optimizer_step_pre_hook(self._update)
        step = self.step
        there = [place for place in step.called if place() is not None]
        if not any(place() is module for place in there):
            there.append(weakref.ref(module))
        step.called = there
        if len(there) < 2:
            return False
        session, models = self._session(self._join(there))
        active = SafePass(None, Counts())
        active.state = State(models)
        step.block = session, active
        push_hooks(active)
        return True

    def _join(self, models: list[weakref.ref[nn.Module]]) -> list[weakref.ref[nn.Module]]:
        """Merges models, and the groups that they are in, into one group."""
        self._watch()
        found: list[weakref.ref[nn.Module]] = []
        for place in models:
            old = next((group for group in self.groups if any(other() is place() for other in group)), [place])
            if old in self.groups:
                self.groups.remove(old)
                if (session := self.sessions.pop(id(old), None)) is not None:
                    session.stop()
            found += [other for other in old if not any(other() is one() for one in found)]
        self.groups.append(found)
        names = ", ".join(type(model).__name__ for place in found if (model := place()) is not None)
        say(f"{names} are called in one step; from the next one on, they are planned together")
        return found
