"""Sizes as text, and budgets in the forms that users give."""

from __future__ import annotations

from typing import Any

import torch

from .._native import parse_size
from ..errors import BadInput

__all__ = ["budget_bytes", "text"]


def text(size: int) -> str:
    """A size with its unit, such as ``1.50 GiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def budget_bytes(budget: Any, device: torch.device) -> int:
    """A budget in bytes, from a number of bytes, a size such as ``"8GiB"``, or ``"auto"``.

    Raises
    ------
    BadInput
        If it is none of these, or not positive.
    """
    if budget == "auto":
        if device.type != "cuda":
            raise BadInput("the budget is 'auto', but the model is not on a GPU; give a size such as 8GiB")
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        return int(0.97 * (free + reserved))
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise BadInput(f"the budget is {budget!r}; give a size such as '8GiB', a number of bytes, or 'auto'")
    size = int(parse_size(budget)) if isinstance(budget, str) else budget
    if size <= 0:
        raise BadInput(f"the budget is {size} bytes; it must be positive")
    return size
