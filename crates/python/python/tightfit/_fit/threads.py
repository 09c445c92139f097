"""Runs the backward pass on the thread of the forward pass, where convolutions are computed again.

With ``torch.backends.cudnn.benchmark``, PyTorch times algorithms for a convolution when a thread first meets it, and keeps the fastest
for this thread. Autograd has a thread of its own for each GPU, which would time them once more and might keep another. On the thread of
the forward pass, a convolution that runs again takes the algorithm that it took there, and gives the same bits.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["restore", "share"]

# Whether autograd was free to use threads of its own, where it is not now.
_before = threading.local()


def share() -> None:
    """Lets backward passes that this thread begins run on it."""
    if not hasattr(_before, "enabled"):
        _before.enabled = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)


def restore() -> None:
    """Lets them run where they ran before."""
    if hasattr(_before, "enabled"):
        torch._C._set_multithreading_enabled(_before.enabled)
        del _before.enabled
