"""Runs the backward pass of a GPU on the thread of the forward pass.

Autograd has a thread of its own for each GPU. There, each hook waits for Python's lock, which doubles what hooks cost the host: a step of
ResNet-50 in 60% of its memory takes an H200's host 67 ms on two threads, and 42 ms on one.

With ``torch.backends.cudnn.benchmark``, PyTorch times algorithms for a convolution when a thread first meets it, and keeps the fastest
for this thread. So a convolution that runs again takes the algorithm of its forward pass, and gives the same bits, on this thread alone.
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
