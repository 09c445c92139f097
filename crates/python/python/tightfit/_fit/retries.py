"""How often PyTorch's allocator finds no room for a block in a model's passes.

Where no free block is long enough, it gives cached ones back, waits for the GPU for that, and tries again. It counts this for the whole
GPU, so what it counts from the beginning of a pass to that of the next one, of whichever model, is taken to be of the first. Many in one
pass are no more than one, since they may be of an evaluation behind it.
"""

from __future__ import annotations

import torch

__all__ = ["LOOKS", "Retries", "retries"]

# Passes that are judged together.
LOOKS = 16
# By GPU: of whose passes one began last, and what had been counted by then.
_last: dict[torch.device, tuple[Retries, int]] = {}


def retries(device: torch.device) -> int:
    """How often the allocator of a GPU has tried again."""
    # `memory_stats` does the same, and takes several times as long to flatten it.
    return int(torch.cuda.memory_stats_as_nested_dict(device).get("num_alloc_retries", 0))


class Retries:
    """The passes of one model since they were judged last, and in how many of them the allocator tried again."""

    def __init__(self) -> None:
        self.passes = self.retried = 0

    def restart(self) -> None:
        """Forgets the passes so far."""
        self.passes = self.retried = 0

    def begin(self, device: torch.device) -> bool:
        """Begins a pass; whether the allocator tried again in most of those before it, where these are enough to tell."""
        count = retries(device)
        if device in _last:
            before, counted = _last[device]
            before.retried += count > counted
        _last[device] = self, count
        found = self.passes == LOOKS and 2 * self.retried >= LOOKS
        if self.passes == LOOKS:
            self.restart()
        self.passes += 1
        return found
