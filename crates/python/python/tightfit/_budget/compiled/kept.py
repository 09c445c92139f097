"""Keeps for later processes: times of kernels, bytes that steps took in addition to the prediction, and plans in numbers.

They are kept in a JSON file in the folder of the profile cache. Without the file, or if it cannot be read or written, a process measures again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..record.times import devices_in, path_of, words_of, write_devices

__all__ = ["Kept", "Together"]

_NAME = "compiled-steps.json"
_KIND = "tightfit_compiled_steps", 2
_MOST = 5_000


@dataclass(frozen=True)
class Together:
    """A graph among others, in bytes.

    Attributes
    ----------
    others
        The bytes that other graphs keep at the last call of this one.
    kept
        The limit of the bytes that each call keeps, or None if no other graph is called after it.
    step
        The calls of the step, hashed.
    """

    others: int
    kept: int | None
    step: str = ""


class Kept:
    """The measurements for one device.

    Attributes
    ----------
    times
        Microseconds by kernel.
    extra
        Bytes by kernel that it uses while it runs, in addition to its operands and results.
    surplus
        Bytes that a step took in addition to the prediction, by graph.
    calls
        Calls of a graph before a backward pass, if there is more than one.
    later
        Bytes for later graphs, by graph and bytes outside of it.
    together
        By graph, its bytes among other graphs of a step.
    plans
        Plans in numbers, by graph and bytes outside of it. PyTorch's caches hold the graphs of a plan, and nothing is planned when they are read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = words_of(device)
        self.path = path_of(_NAME)
        found = devices_in(self.path, _KIND).get(self.device)
        found = found if isinstance(found, dict) else {}
        self.times = {str(key): float(time) for key, time in _numbers(found.get("times"))}
        self.extra = {str(key): int(size) for key, size in _numbers(found.get("extra"))}
        self.surplus = {str(key): int(size) for key, size in _numbers(found.get("surplus"))}
        self.calls = {str(key): int(count) for key, count in _numbers(found.get("calls"))}
        self.later = {str(key): int(size) for key, size in _numbers(found.get("later"))}
        among = found.get("together")
        self.together = {key: one for key, pair in (among.items() if isinstance(among, dict) else ()) if (one := _together(pair)) is not None}
        plans = found.get("plans")
        self.plans = {str(key): plan for key, plan in plans.items() if isinstance(plan, dict)} if isinstance(plans, dict) else {}

    def save(self) -> None:
        """Writes them to the file, and leaves the entries of other devices as they are."""
        if self.path is not None:
            everything = devices_in(self.path, _KIND)
            names = ("times", "extra", "surplus", "calls", "later", "plans")
            among = {key: [one.others, one.kept, one.step] for key, one in self.together.items()}
            everything[self.device] = {**{name: _last(getattr(self, name)) for name in names}, "together": _last(among)}
            write_devices(self.path, _KIND, everything)


def _last(values: dict[str, Any]) -> dict[str, Any]:
    return dict(list(values.items())[-_MOST:])


def _together(pair: Any) -> Together | None:
    match pair:
        case [int(others), int() | None as kept, str(step)]:
            return Together(others, kept, step)
    return None


def _numbers(found: Any) -> list[tuple[Any, Any]]:
    if not isinstance(found, dict):
        return []
    return [(key, value) for key, value in found.items() if isinstance(value, int | float)]
