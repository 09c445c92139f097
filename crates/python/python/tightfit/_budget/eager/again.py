"""Runs noted calls again, to make what a pass has given up.

A rerun has the state of its call: the same function, numbers and objects, the same settings, gradients on, and running statistics of its
own. One object is one object again. Results that nothing needs any more are dropped on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..._native import settings
from ..record.marks import alone
from ..record.settings import CHOICES

if TYPE_CHECKING:
    from ..._native import Call, Rerun
    from ..plan.counts import Counts

__all__ = ["run_again"]


def run_again(rerun: Rerun, last: Call, device: str, counts: Counts) -> None:
    """Runs the calls that the last one needs, on a device of this type; given-up tensors that the plan makes with them stay as well."""
    before = settings(device)
    grad = torch.is_grad_enabled()
    now = before
    try:
        with alone():
            for call in rerun.order(last):
                if call.state is not now:
                    if call.state != now:
                        change_settings(now, call.state)
                    now = call.state
                rerun.one(call)
                counts.calls += 1
    finally:
        torch._C._set_grad_enabled(grad)
        if now != before:
            change_settings(now, before)
    counts.rebuilt += 1


def change_settings(now: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Sets the settings of a call. Casts of parameters are not kept, because they would stay in the program's cache."""
    kind, dtype = wanted[:2]
    if dtype != now[1]:
        torch.set_autocast_enabled(kind, dtype is not None)
        if dtype is not None:
            torch.set_autocast_dtype(kind, dtype)
    if wanted[2] != now[2]:
        torch.set_autocast_cache_enabled(wanted[2])
    for choice, before, value in zip(CHOICES.get(kind, CHOICES["cpu"]), now[3:], wanted[3:], strict=True):
        if before != value:
            choice.write(value)
