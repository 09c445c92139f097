"""The memory of the first passes of a plan, as PyTorch's allocator counts it, compared with the prediction.

A pass has three phases, and each has a peak::

    forward pass | what the program runs between: its loss | backward pass

Only the growth within a pass is compared: the memory at its beginning is known by then, whatever was assumed. Nothing sees the phases of a pass
without a plan. Its peak is looked at when the next pass of any model begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..memory.sizes import text
from .liveness import Lives
from .simulate import Outcome

__all__ = ["SPARE_BYTES", "WATCHED", "Assumed", "Growth", "Watch", "allocated", "differences", "settle", "tries_algorithms", "watches", "with_room"]

# Kinds of devices whose allocator has statistics; they are reset for watched passes.
WATCHES = {"cuda"}
# Passes of a plan that are watched.
WATCHED = 4
# Bytes to plan for in addition to a measured growth.
SPARE_BYTES = 8 << 20


def watches(device: torch.device) -> bool:
    """Whether an allocator counts the bytes on this device."""
    return device.type in WATCHES


def allocated(device: torch.device) -> int:
    """Bytes that the allocator has handed out; 0 on devices without statistics."""
    return int(torch.cuda.memory_allocated(device)) if watches(device) else 0


class Assumed(NamedTuple):
    """The assumed bytes that no recording of a model shows.

    Attributes
    ----------
    state, scratch
        Bytes of the optimizer's state, and scratch bytes of its update.
    outside
        Other bytes on the device.
    reserve
        Bytes for workspaces and for the allocator's rounding.
    between
        Bytes of the program's loss beyond the assumed loss.
    before
        Bytes of the outputs of the previous pass. Most programs hold them until the outputs of this pass replace them.
    """

    state: int
    scratch: int
    outside: int
    reserve: int
    between: int = 0
    before: int = 0


class Growth(NamedTuple):
    """The bytes by which a pass grew beyond the prediction: in its forward or backward pass, and between them. `meeting` is the prediction for the
    point between them."""

    passes: int
    between: int
    meeting: int


@dataclass
class Watch:
    """The peaks of a plan's passes so far, in bytes.

    Attributes
    ----------
    passes
        The number of passes that were watched to their end.
    seen
        The highest peak of all.
    begin, before
        Bytes when the last pass began, and how many of them are outputs of the previous pass. These are freed when the forward pass ends.
    forward, between, backward
        Peaks of its phases; 0 for phases that have not ended.
    """

    device: torch.device
    passes: int = 0
    seen: int = 0
    begin: int = 0
    before: int = 0
    forward: int = 0
    between: int = 0
    backward: int = 0

    def start(self, before: int, planned: bool) -> None:
        """Begins a pass. The memory of other code before it does not count."""
        torch.cuda.reset_peak_memory_stats(self.device)
        self.begin, self.before = allocated(self.device), before
        self.forward = self.between = self.backward = 0
        if not planned:
            _unseen[self.device] = self

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

    def growth(self, lives: Lives, outcome: Outcome, given: int, before: int) -> Growth | None:
        """The growth of the last pass beyond the prediction, or None if a phase was not seen. In the prediction, the model returns
        its outputs after `given` operations, and the outputs of the previous pass have `before` bytes."""
        if not (self.forward and self.between and self.backward):
            return None
        resident = sum(size for size, stays in zip(lives.bytes, lives.resident, strict=True) if stays)
        names = [operation["name"] for operation in lives.operations]
        unpack = next((index for index in range(lives.backward_start, len(names)) if names[index] == "unpack"), lives.backward_start)
        end = next((index for index, operation in enumerate(lives.operations) if operation["stage"] == "update"), len(names))
        # The memory from the end of the forward pass on.
        left = self.begin - self.before
        passes = max(
            self.forward - self.begin - (max(outcome.live[:given], default=resident) - before - resident),
            self.backward - left - (max(outcome.live[unpack:end]) - resident),
        )
        # The live tensors where the passes meet, without the memory of the assumed loss.
        meeting = min(outcome.live[lives.backward_start - 1 : lives.backward_start + 1])
        between = self.between - left - (meeting - resident)
        if self.before and between <= self.before + SPARE_BYTES:
            # These outputs are still there when the forward pass has just ended.
            between = min(between, 0)
        return Growth(passes, between, meeting)


# By device: the watch of the last pass, if nothing will notice the end of that pass.
_unseen: dict[torch.device, Watch] = {}


def settle(device: torch.device) -> None:
    """Reads the peak of a pass without a plan, before the next pass begins."""
    last = _unseen.pop(device, None)
    if last is not None:
        last._phase()


def tries_algorithms(watch: Watch) -> bool:
    """Whether the passes so far cannot be measured, because convolutions tried algorithms in them."""
    return watch.passes == 0 and torch.backends.cudnn.benchmark


def with_room(growth: int) -> int:
    """Bytes to plan for, if a pass grew by `growth` more than predicted."""
    return growth + SPARE_BYTES if growth > 0 else 0


def differences(assumed: Assumed, seen: Assumed, least: int) -> list[str]:
    """The facts that differ from the assumptions by `least` bytes or more, in words."""
    found = []
    if abs(assumed.state - seen.state) >= least:
        found.append(f"the optimizer's state is {text(seen.state)} ({text(assumed.state)} assumed)")
    for name in ("between", "before", "reserve", "outside"):
        more = getattr(seen, name) - getattr(assumed, name)
        if abs(more) >= least:
            found.append(f"{_WHAT[name]} {text(abs(more))} {'more' if more > 0 else 'less'}")
    return found


_WHAT = {
    "between": "between its passes, the program needs",
    "before": "of the outputs before it, the program keeps",
    "reserve": "for workspaces and rounding, it needs",
    "outside": "beside it, the device holds",
}
