"""Forward passes that have begun: which of them are running, in which thread, and their hooks on saved tensors.

PyTorch calls a hook after a forward pass that raises an `Exception`, but not after Ctrl-C or `SystemExit`. What such a pass left
behind is found by its frame: only a frame that has ended can be cleared.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from .passes import Pass
    from .unhooked import Stretch

__all__ = ["Here", "Without", "pop_hooks", "push_hooks", "rehook", "running", "unhook"]


class Here(threading.local):
    """What this thread is in, of one session.

    Attributes
    ----------
    stack
        The frames of forward passes that have begun, each with what answers for its hooks.
    following
        The pass that is told of the calls of modules.
    where
        The device of the pass that was entered last.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.following: Pass | None = None
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
    """Lets a pass answer what autograd saves from here on."""
    torch._C._autograd._push_saved_tensors_default_hooks(active.pack, active.unpack)


def top_hooks() -> tuple[Any, Any] | None:
    """What answers now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[no-any-return]


def pop_hooks(active: Any) -> None:
    """Takes a pass's hooks away, wherever they are among those of others."""
    others = []
    while (top := top_hooks()) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] == active.pack:
            break
        others.append(top)
    for pack, unpack in reversed(others):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


class Without(NamedTuple):
    """A stretch whose hooks are away, and how many nodes of graphs this thread had made before."""

    stretch: Stretch
    nodes: int


def unhook(active: Pass, name: str) -> None:
    """Takes a pass's hooks away before a module, if a stretch without them begins there, and nobody else has any: those of a checkpoint
    around the model, for one, must get all or nothing of what it saves."""
    stretch = active.begins(name)
    if stretch is None or not torch.is_grad_enabled() or (top := top_hooks()) is None or top[0] != active.pack:
        return
    pop_hooks(active)
    if top_hooks() is None:
        active.without = Without(stretch, torch._C._autograd._get_sequence_nr())
    else:
        push_hooks(active)


def rehook(active: Pass, name: str) -> None:
    """Puts them back after a module, if the stretch ends there."""
    without = active.without
    if without is not None and without.stretch.ends == name and torch.is_grad_enabled() and top_hooks() is None:
        push_hooks(active)
        active.ends(without.stretch, torch._C._autograd._get_sequence_nr() - without.nodes)
