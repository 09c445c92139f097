"""Runs the backward pass of a GPU on the thread of the forward pass.

Autograd starts one thread for each GPU. There, each hook waits for Python's lock, which doubles the time of hooks on the host: a step of
ResNet-50 in 60% of its memory takes an H200's host 67 ms on two threads, and 42 ms on one.

With ``torch.backends.cudnn.benchmark``, PyTorch times the algorithms of a convolution when a thread first runs it, and keeps the fastest for this
thread. So a recomputed convolution uses the algorithm of its forward pass, and returns the same bits, only on the thread of the forward pass.
"""

from __future__ import annotations

import threading
import weakref

import torch

__all__ = ["share"]

# Owners whose current plans need one thread.
_needing: weakref.WeakSet[object] = weakref.WeakSet()
# For each thread, whether we switched autograd's other threads off.
_thread = threading.local()


def share(owner: object, needs: bool) -> None:
    """Notes whether an owner's plan needs backward passes to run on the thread that calls them. While any owner needs it, backward passes called by
    this thread do so, since one of them may run through the graphs of several owners."""
    (_needing.add if needs else _needing.discard)(owner)
    if _needing:
        if torch._C._is_multithreading_enabled():
            torch._C._set_multithreading_enabled(False)
            _thread.ours = True
    elif getattr(_thread, "ours", False):
        torch._C._set_multithreading_enabled(True)
        _thread.ours = False
