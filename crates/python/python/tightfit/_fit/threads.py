"""What a program's threads do differently under a plan.

*The backward pass runs on the thread of the forward pass*, where convolutions are computed again with ``torch.backends.cudnn.benchmark``. it, PyTorch times algorithms for a convolution when a thread first meets it, and keeps the fastest for this thread. Autograd has a thread of
its own for each GPU, which would time them once more and might keep another. On the thread of the forward pass, a convolution that runs
again takes the algorithm that it took there, and gives the same bits.

*Threads give the interpreter to each other sooner.* A hook waits until the thread that has the interpreter gives it up, by default after
5 ms: where a loader's thread pins the next mini-batch, the GPU waits as well.
"""

from __future__ import annotations

import sys
import threading

import torch

__all__ = ["hurry", "restore", "share"]

# Seconds after which a thread is asked for the interpreter.
SOON = 2e-4
# What it was before, where it is so little because of us.
_interval: float | None = None

# Whether autograd was free to use threads of its own, where it is not now.
_before = threading.local()


def share() -> None:
    """Lets backward passes that this thread begins run on it."""
    if not hasattr(_before, "enabled"):
        _before.enabled = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)


def hurry() -> None:
    """Lets the threads of this process give the interpreter to each other soon."""
    global _interval
    if _interval is None and sys.getswitchinterval() > SOON:
        _interval = sys.getswitchinterval()
        sys.setswitchinterval(SOON)


def restore() -> None:
    """Takes back what was set for this thread, and for all; plans that go on set it again."""
    global _interval
    if hasattr(_before, "enabled"):
        torch._C._set_multithreading_enabled(_before.enabled)
        del _before.enabled
    if _interval is not None:
        sys.setswitchinterval(_interval)
        _interval = None
