"""Budgets as shares of plain, the step without a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .errors import BadInput

__all__ = ["Share", "share_of"]


@dataclass(frozen=True)
class Share:
    """A budget as a share of plain: of the memory that a step needs without a plan."""

    value: float

    def of(self, plain: int) -> int:
        """The bytes, once it is known what plain needs."""
        return max(1, int(self.value * plain))

    def __str__(self) -> str:
        return f"{100 * self.value:g}%"


def share_of(budget: Any, argument: str = "budget") -> Share | None:
    """Reads a budget such as ``"60%"`` or ``0.6`` as a share; returns None for a budget in bytes.

    Raises
    ------
    BadInput
        If a percentage is not above 0, or above 1000%.
    """
    if isinstance(budget, str) and budget.strip().endswith("%"):
        try:
            value = float(budget.strip()[:-1]) / 100
        except ValueError:
            value = math.nan
        if not 0 < value <= 10:
            raise BadInput(f"{argument}={budget!r}: write a share above 0, such as '60%'")
        return Share(value)
    return Share(budget) if isinstance(budget, float) and 0 < budget <= 1 else None
