"""Keeps PyTorch's allocator within a budget."""

from __future__ import annotations

import torch

__all__ = ["enforce", "reserve_of"]


def enforce(budget: int, device: torch.device) -> None:
    """Bounds what the allocator reserves on a GPU by the budget, so that a wrong prediction fails instead of growing."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(device).total_memory
    if budget < total:
        torch.cuda.set_per_process_memory_fraction(budget / total, device)


def reserve_of(budget: int, device: torch.device) -> int:
    """Bytes of a budget for what no recording shows: workspaces of libraries, and gaps between blocks."""
    if device.type != "cuda":
        return 0
    return min(budget // 4, (96 << 20) + budget // 50)
