"""The most that PyTorch's allocator gave out, over resets of its statistics."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["Peaks"]


class Peaks:
    """The peaks of the GPUs of a process, in bytes, since the last :meth:`restart`.

    Programs and plans reset the statistics of PyTorch's allocator; what was there before is noted first.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        for place in (torch.cuda, torch.cuda.memory):
            place.reset_peak_memory_stats = self._noting(place.reset_peak_memory_stats)

    def _noting(self, reset: Any) -> Any:
        @functools.wraps(reset)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.note()
            return reset(*args, **kwargs)

        return noted

    def note(self) -> None:
        """Notes the peaks until now."""
        for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
            self._before[index] = max(self._before.get(index, 0), int(torch.cuda.max_memory_allocated(index)))

    def restart(self) -> None:
        """Forgets what was before."""
        if torch.cuda.is_initialized():
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)
        self._before.clear()

    def of(self, device: torch.device) -> int:
        """The peak of one GPU."""
        return max(self._before.get(device.index or 0, 0), int(torch.cuda.max_memory_allocated(device)))

    def most(self) -> int | None:
        """The highest peak of any GPU, or None without a GPU in use."""
        self.note()
        return max(self._before.values(), default=0) or None
