"""Settings of PyTorch's allocator. Read before torch and tightfit are, so it imports neither."""

from __future__ import annotations

import os

__all__ = ["GROWING", "SETTINGS", "settings"]

# Where a program's user sets the allocator up: then nothing is changed.
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# What `tightfit run --budget` sets them to: reserved memory stays close to what is allocated.
GROWING = "expandable_segments:True"


def settings() -> list[str]:
    """What the user has set."""
    return [value for name in SETTINGS if (value := os.environ.get(name))]
