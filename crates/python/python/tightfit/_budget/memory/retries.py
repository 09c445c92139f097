"""How often PyTorch's allocator finds no room for a block in a model's passes.

Where no free block is long enough, it gives cached ones back, waits for the GPU for that, and tries again. It counts this for the whole
GPU, so what it counts from the beginning of a pass to that of the next one, of whichever model, is taken to be of the first. Many in one
pass are no more than one, since they may be of an evaluation behind it.
"""

from __future__ import annotations

from collections import deque

import torch

__all__ = ["LOOKS", "Retries", "retries"]

# Passes that are judged together.
LOOKS = 4
# By GPU: of whose passes one began last, and what had been counted by then.
_last: dict[torch.device, tuple[Retries, int]] = {}


def retries(device: torch.device) -> int:
    """How often the allocator of a GPU has tried again."""
    # `memory_stats` does the same, and takes several times as long to flatten it.
    return int(torch.cuda.memory_stats_as_nested_dict(device).get("num_alloc_retries", 0))


class Retries:
    """The last passes of one model, and in which of them the allocator tried again."""

    def __init__(self) -> None:
        self.recent: deque[bool] = deque(maxlen=LOOKS)

    def restart(self) -> None:
        """Forgets the passes so far."""
        self.recent.clear()

    def begin(self, device: torch.device) -> bool:
        """Begins a pass; whether the allocator tried again in the one before it."""
        count = retries(device)
        if device in _last:
            before, counted = _last[device]
            before.recent.append(count > counted)
        _last[device] = self, count
        return bool(self.recent) and self.recent[-1]

    def are_often(self) -> bool:
        """Whether the allocator tried again in half of the last passes, or more."""
        return 2 * sum(self.recent) >= LOOKS
