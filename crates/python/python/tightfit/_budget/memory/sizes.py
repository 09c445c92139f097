"""Sizes as text, and budgets in the forms that users give."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

from ..._native import parse_size
from ..._share import Share, share_of
from ...errors import BadInput
from ..messages import say
from .allocator import beside

__all__ = ["UNLIMITED", "Share", "budget_bytes", "budget_of", "text"]

# The share of the free memory that a budget of "auto" takes.
_OF_FREE = 0.97
# A budget of as many bytes or more bounds nothing.
UNLIMITED = sys.maxsize
# Numbers that are more likely shares in percent than bytes.
_LIKE_SHARES = {str(percent) for percent in range(1, 101)}


def budget_of(budget: Any, device: torch.device, argument: str = "budget") -> int | Share:
    """A budget as :func:`budget_bytes` reads it, or a share: ``"60%"``, or ``0.6``.

    Raises
    ------
    BadInput
        If it has another form, or is not positive.
    """
    share = share_of(budget, argument)
    if share is not None:
        return share
    if isinstance(budget, float) and budget.is_integer() and budget > 1:
        return int(budget)
    return budget_bytes(budget, device, argument)


def text(size: int, *, enough: bool = False) -> str:
    """A size with its unit, such as ``1.50 GiB``. If `enough`, it is rounded up, so that the budget that it names is large enough."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{-(-100 * size // unit) / 100 if enough else size / unit:.2f} {name}"
    return f"{size} bytes"


def budget_bytes(budget: Any, device: torch.device, argument: str = "budget") -> int:
    """A budget in bytes, from a number of bytes, a size such as ``"8GiB"``, or ``"auto"``, of which a line says what it is; messages name this
    argument.

    Raises
    ------
    BadInput
        If it has another form, or is not positive.
    """
    takes_auto = argument != "host_budget"
    if budget == "auto" and takes_auto:
        if device.type != "cuda":
            raise BadInput(f"{argument}='auto' takes what is free on a GPU, but the model is not on a GPU; give a size such as '8GiB'")
        total, taken = torch.cuda.mem_get_info(device)[1], beside(device)
        size = int(_OF_FREE * (total - taken))
        say(
            f"{argument} auto is {text(size)} of {text(total)}: {text(taken)} are taken beside PyTorch's allocator "
            f"(CUDA's context, NCCL and other libraries, other processes), and {text(total - taken - size)} stay free"
        )
        return size
    auto = ", or 'auto'" if takes_auto else ""
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise BadInput(f"{argument}={budget!r}: give a size such as '8GiB', a number of bytes, or a share such as '60%'{auto}")
    number = str(budget).strip()
    if takes_auto and number in _LIKE_SHARES:
        warnings.warn(
            f"{argument}={budget!r} means {number} bytes; write '{number}%' for a share of what plain training needs, or '{number}MiB'", stacklevel=5
        )
        budget = int(number)
    try:
        size = int(parse_size(budget)) if isinstance(budget, str) else budget
    except BadInput as error:
        share = "; or a share, as in '60%'" if takes_auto else ""
        raise BadInput(f"{argument}: {error}{share}{auto}") from None
    if size <= 0:
        raise BadInput(f"{argument}={budget!r}: it must be positive")
    return size
