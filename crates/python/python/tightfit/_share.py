"""Budgets as shares of plain, the step without a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ._table import text
from .errors import BadInput

__all__ = ["OfPlain", "Share", "as_given", "as_needed", "percent", "share_of"]


@dataclass(frozen=True)
class Share:
    """A budget as a share of plain: of the memory that a step needs without a plan."""

    value: float

    def of(self, plain: int) -> OfPlain:
        """The bytes, once it is known what plain needs."""
        found = OfPlain(max(1, int(self.value * plain)))
        found.share, found.plain = self, plain
        return found

    def __str__(self) -> str:
        return f"{100 * self.value:g}%"


class OfPlain(int):
    """A budget in bytes that was given as a share of plain."""

    share: Share
    plain: int


def as_given(budget: int) -> str:
    """A budget for people: ``8.00 GiB``, or ``60% (387.00 KiB) of plain's 645.00 KiB``."""
    if isinstance(budget, OfPlain):
        return f"{budget.share} ({text(budget)}) of plain's {text(budget.plain)}"
    return text(budget)


def as_needed(needed: int, budget: int) -> str:
    """The least budget, as a share too if that is how a budget was given: ``492.00 KiB``, or ``77% (492.00 KiB)``."""
    size = text(needed, enough=True)
    return f"{percent(needed, budget.plain)} ({size})" if isinstance(budget, OfPlain) else size


def percent(needed: int, plain: int) -> str:
    """The least whole percentage of plain that is enough."""
    return f"{-(-100 * needed // plain)}%"


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
