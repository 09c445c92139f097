"""Settings of PyTorch's allocator. Read before torch and tightfit are, so it imports neither."""

from __future__ import annotations

import os

__all__ = ["GROWING", "SETTINGS", "settings"]

# Where a program's user sets the allocator up: then nothing is changed.
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# The setting of `tightfit run --budget`: it keeps reserved memory close to allocated memory.
GROWING = "expandable_segments:True"


def settings() -> list[str]:
    """The settings that the user has made."""
    return [value for name in SETTINGS if (value := os.environ.get(name))]
