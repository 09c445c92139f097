"""The hooks of sessions on their models, and which models are fitted.

A saved or copied model is a plain model: copied hooks do nothing, and a module holds nothing else of this package.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import torch
from torch import nn

from ...errors import Error
from ..record.transforms import step_aside
from ..record.unsupported import say_compiled
from ..record.unwatched import Unwatched, asks
from .following import Copied, Hook, places_of, take_away
from .session import Session

__all__ = ["fitted_by", "install", "uninstall"]

# The sessions of models.
_fitted: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()


class _Before(Hook):
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


class _After(Hook):
    """Tells a session that its model has returned."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.session.after(module, args, kwargs, outputs)


def install(model: nn.Module, session: Session) -> None:
    """Puts a session's hooks on a model."""
    step_aside()
    take_away(model, Copied)
    for (hooks, *flags), hook in zip(places_of(model), (_Before(session, model), _After(session)), strict=True):
        hooks[hook.key] = hook
        for place in flags:
            place[hook.key] = True
    # Other hooks may already save something.
    model._forward_pre_hooks.move_to_end(next(reversed(model._forward_pre_hooks)), last=False)
    _fitted[model] = session


def uninstall(model: nn.Module) -> None:
    """Takes them away."""
    take_away(model, Hook)
    _fitted.pop(model, None)


def fitted_by(model: nn.Module) -> Session | None:
    """The session of a fitted model."""
    return _fitted.get(model)
