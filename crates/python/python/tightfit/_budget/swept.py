"""Ends a program under ``tightfit run --sweep`` with what less memory would cost it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .messages import say_if_slow, say

if TYPE_CHECKING:
    from .plan.fitted import Fitted

__all__ = ["end_with_sweep"]


def end_with_sweep(fitted: Fitted, host: int | None, recomputes: bool, page: str) -> None:
    """Prints the sweep of a step that is planned, writes its page unless that is ``-``, and ends the process."""
    # The answers build on what plans here build on.
    from .answer import Plan
    from .question import Question

    question = Question.of(fitted, host, recomputes)
    with say_if_slow("still planning within several budgets"):
        sweep = Plan(fitted, question).sweep()
    sys.stdout.flush()
    print(sweep.table(), flush=True)
    if page != "-":
        sweep.html(page)
        say(f"the picture is in {page}")
    os._exit(0)
