"""Runs the backward pass on the thread of the forward pass, where convolutions are computed again.

With ``torch.backends.cudnn.benchmark``, PyTorch times algorithms for a convolution when a thread first meets it, and keeps the fastest
for this thread. Autograd has a thread of its own for each GPU, which would time them once more and might keep another. On the thread of
the forward pass, a convolution that runs again takes the algorithm that it took there, and gives the same bits.
"""

from __future__ import annotations

import threading
import weakref

import torch

__all__ = ["share"]

# Whose plans compute convolutions again now.
_needing: weakref.WeakSet[object] = weakref.WeakSet()
# Of each thread, whether autograd has no other threads because of us.
_thread = threading.local()


def share(owner: object, needs: bool) -> None:
    """Notes whether an owner's plan needs it that backward passes run on the thread that begins them, and lets those of this thread do so as
    long as any owner's does: a backward pass may be of several owners' graphs."""
    (_needing.add if needs else _needing.discard)(owner)
    if _needing:
        if torch._C._is_multithreading_enabled():
            torch._C._set_multithreading_enabled(False)
            _thread.ours = True
    elif getattr(_thread, "ours", False):
        torch._C._set_multithreading_enabled(True)
        _thread.ours = False
