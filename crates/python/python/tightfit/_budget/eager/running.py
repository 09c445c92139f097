"""Forward passes that have begun: which of them are running, in which thread, and their hooks on saved tensors.

PyTorch calls a hook after a forward pass that raises an `Exception`, but not after Ctrl-C or `SystemExit`. The rest of such a pass is found by its
frame: only a frame that has ended can be cleared.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import Any

import torch

from ..record.transforms import top_hooks

__all__ = ["Here", "hooks_are_alone", "pop_hooks", "push_hooks", "running"]


class Here(threading.local):
    """The state of this thread in one session.

    Attributes
    ----------
    stack
        The frames of forward passes that have begun, each with what answers for its hooks.
    where
        The device of the pass that was entered last.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.where = torch.device("cpu")


def running(frame: FrameType | None) -> bool:
    """Whether a call has not ended; one that has lets go of its values."""
    if frame is None:
        return False
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


def push_hooks(active: Any) -> None:
    """Lets a pass answer what autograd saves from here on, unless it need not see that."""
    if not active.needs_hooks:
        return
    torch._C._autograd._push_saved_tensors_default_hooks(active.pack, active.unpack)


def pop_hooks(active: Any) -> None:
    """Takes a pass's hooks away, wherever they are among other hooks."""
    if not active.needs_hooks:
        return
    others = []
    while (top := top_hooks()) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] == active.pack:
            break
        others.append(top)
    for pack, unpack in reversed(others):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def hooks_are_alone(active: Any) -> bool:
    """Whether a pass's hooks are the only ones: what others are given, such as a checkpoint around the model, must be all that is saved."""
    top = top_hooks()
    if top is None or top[0] != active.pack or not torch.is_grad_enabled():
        return False
    torch._C._autograd._pop_saved_tensors_default_hooks()
    alone = top_hooks() is None
    push_hooks(active)
    return alone
