"""What the first passes of a plan took, as PyTorch's allocator counts it, beside what was predicted.

A pass has three phases, each with a peak of its own::

    forward pass | what the program runs between: its loss | backward pass

Only the growth within a pass is compared: what was there when it began is known by then, whatever was assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from .rebuild import Lives
from .simulate import Outcome
from .sizes import text

__all__ = ["SPARE", "WATCHED", "Assumed", "Growth", "Watch", "allocated", "differences", "watches", "with_room"]

# Kinds of devices whose allocator has statistics; they are reset for watched passes.
WATCHES = {"cuda"}
# Passes of a plan that are watched.
WATCHED = 4
# Bytes that are planned for beyond a peak that was seen.
SPARE = 8 << 20


def watches(device: torch.device) -> bool:
    """Whether an allocator counts what is on this device."""
    return device.type in WATCHES


def allocated(device: torch.device) -> int:
    """Bytes that are given out now; 0 where nobody counts."""
    return int(torch.cuda.memory_allocated(device)) if watches(device) else 0


class Assumed(NamedTuple):
    """What no recording of a model shows, in bytes: as it was planned for.

    Attributes
    ----------
    state, scratch
        Of the optimizer, and what its update needs besides.
    outside
        What else was on the device.
    reserve
        For workspaces and what the allocator rounds.
    between
        What the program's loss needs beyond the one that was assumed.
    """

    state: int
    scratch: int
    outside: int
    reserve: int
    between: int


class Growth(NamedTuple):
    """How much more than predicted a pass grew, in bytes: in its forward or backward pass, and between these beyond `meeting`, what
    is predicted where they meet."""

    passes: int
    between: int
    meeting: int


@dataclass
class Watch:
    """The peaks of a plan's passes so far, in bytes.

    Attributes
    ----------
    passes
        How many were watched to their end.
    seen
        The highest peak of all.
    begin
        What was there when the last one began.
    forward, between, backward
        Peaks of its phases; 0 for those that have not ended.
    reserved, left, foreign
        What the allocator had reserved and given out when the last one ended, and what was reserved between passes for other code.
    """

    device: torch.device
    passes: int = 0
    seen: int = 0
    begin: int = 0
    forward: int = 0
    between: int = 0
    backward: int = 0
    reserved: int = 0
    left: int = 0
    foreign: int = 0

    @property
    def kept(self) -> int:
        """What the allocator has reserved for passes; 0 where none was seen to end."""
        return max(0, self.reserved - self.foreign)

    def start(self) -> None:
        """Begins a pass: what other code needed before is no plan's fault."""
        torch.cuda.reset_peak_memory_stats(self.device)
        self.begin = allocated(self.device)
        if self.reserved:
            # What is still there, such as an optimizer's new state, is none of it; what was given back may have been all of it.
            more = torch.cuda.memory_reserved(self.device) - self.reserved
            self.foreign = max(0, self.foreign + (more if more < 0 else max(0, more - max(0, self.begin - self.left))))
        self.forward = self.between = self.backward = 0

    def _phase(self) -> int:
        peak = int(torch.cuda.max_memory_allocated(self.device))
        torch.cuda.reset_peak_memory_stats(self.device)
        self.seen = max(self.seen, peak)
        return peak

    def forward_ended(self) -> None:
        self.forward = self._phase()

    def backward_began(self) -> None:
        self.between = self._phase()

    def ended(self) -> None:
        self.backward = self._phase()
        self.reserved = int(torch.cuda.memory_reserved(self.device))
        self.left = allocated(self.device)

    def growth(self, lives: Lives, outcome: Outcome) -> Growth | None:
        """What was seen of the last pass beyond the prediction; None if a phase was not seen."""
        if not (self.forward and self.between and self.backward):
            return None
        resident = sum(size for size, stays in zip(lives.bytes, lives.resident, strict=True) if stays)
        names = [operation["name"] for operation in lives.operations]
        packs = [index for index in range(lives.turn) if names[index] == "pack"]
        unpack = next((index for index in range(lives.turn, len(names)) if names[index] == "unpack"), lives.turn)
        end = next((index for index, operation in enumerate(lives.operations) if operation["stage"] == "update"), len(names))
        forward = outcome.live[: packs[-1] + 1] if packs else outcome.live[: lives.turn]
        passes = max(
            self.forward - self.begin - (max(forward) - resident),
            self.backward - self.begin - (max(outcome.live[unpack:end]) - resident),
        )
        # What is alive where the passes meet, without what the assumed loss needed.
        meeting = min(outcome.live[lives.turn - 1 : lives.turn + 1])
        return Growth(passes, self.between - self.begin - (meeting - resident), meeting)


def with_room(growth: int) -> int:
    """Bytes to plan for, where a pass grew by so much more than predicted."""
    return growth + SPARE if growth > 0 else 0


def differences(assumed: Assumed, seen: Assumed, least: int) -> list[str]:
    """What was seen to be otherwise than assumed by so many bytes at least, in words."""
    found = []
    if abs(assumed.state - seen.state) >= least:
        found.append(f"the optimizer's state is {text(seen.state)} ({text(assumed.state)} assumed)")
    for name in ("between", "reserve", "outside"):
        more = getattr(seen, name) - getattr(assumed, name)
        if abs(more) >= least:
            found.append(f"{_WHAT[name]} {text(abs(more))} {'more' if more > 0 else 'less'}")
    return found


_WHAT = {
    "between": "between its passes, the program needs",
    "reserve": "for workspaces and rounding, it needs",
    "outside": "beside it, the device holds",
}
