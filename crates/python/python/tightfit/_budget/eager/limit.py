"""What PyTorch's allocator may reserve for the passes of one model.

The first passes of a plan show what it needs, and are not bounded: what was predicted may be too little. Later ones are bounded by the
budget, or by what these needed, and a little room for gaps between blocks. Where that is too little, the allocator gives cached blocks
back and waits for the GPU, and where that is not enough, the program fails. So the bound gives way a little as soon as the allocator
waits at all; where it often does, the next plan leaves more room; and if that does not help, the bound gives way further, but not for ever.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..memory.cap import enforce, release, room_for_gaps
from ..memory.retries import Retries
from ..memory.sizes import text
from ..messages import say
from ..plan.fitted import Fitted
from ..plan.watch import WATCHED
from .planner import Planner

__all__ = ["LOOSENED", "Limit"]

# How often the bound gives way a little under one plan, before it does by more, and then no more.
LOOSENED = 4
# The part of what passes need that is added then.
MORE = 4
# The part of the budget that algorithms of convolutions may take beyond it while they are tried.
TRIED = 4


class Limit:
    """The bound on what is reserved for the plans of one model."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.retries = Retries()
        # What passes need, once that was seen; and how often the bound gave way since.
        self.needed: int | None = None
        self.given = 0
        # Whether plans leave more room for gaps since the allocator had none.
        self.roomier = False
        # Whether steps run that no plan fits into the budget.
        self.is_given_up = False

    @property
    def budget(self) -> int:
        """Bytes, which follow a share once it is known."""
        return self.planner.budget

    def begin(self, fitted: Fitted, plans: Collection[Fitted | None], device: torch.device) -> None:
        """Bounds the allocator for a pass of one of the plans, which was watched or is about to be."""
        if self.is_given_up:
            return
        waited = self.retries.begin(device)
        if fitted.watch.passes < WATCHED:
            self.lift()
            if torch.backends.cudnn.benchmark:
                enforce(self.budget + self.budget // TRIED, device, self)
        elif self.needed is None:
            self.needed = max(self.budget, _seen(plans, device))
            self.retries.restart()
            torch.cuda.empty_cache()
            enforce(self.needed, device, self)
        elif waited:
            self._give_room(fitted, self.needed, device)

    def _give_room(self, fitted: Fitted, needed: int, device: torch.device) -> None:
        often = self.retries.are_often()
        if self.given > LOOSENED or self.given and not often:
            return
        room = room_for_gaps(self.budget)
        line = f"{self.planner.name}: PyTorch's allocator found no room in most steps, and waited for the GPU"
        if often:
            self.retries.restart()
            if fitted.bound is not None and not self.roomier:
                self.roomier = fitted.stale = True
                self.planner.gaps += room
                say(f"{line}; planning again, with {text(room)} for gaps between blocks")
                return
        self.given += 1
        more = self.given * room if self.given <= LOOSENED else max(self.given * room, needed // MORE)
        allowed = enforce(needed + more, device, self)
        if often:
            say(f"{line}; it may reserve {text(allowed)} now")

    def give_up(self) -> None:
        """Bounds nothing any more: some steps of the program need more than the budget."""
        self.is_given_up = True
        self.lift()

    def lift(self) -> None:
        """Lets the allocator take what it needs."""
        self.needed, self.given = None, 0
        release(self)


def _seen(plans: Collection[Fitted | None], device: torch.device) -> int:
    """What passes of the plans that were watched have needed, with the gaps between their blocks."""
    watched = [fitted for fitted in plans if fitted is not None and fitted.watch.passes >= WATCHED]
    seen = max((fitted.watch.seen + fitted.watch.gap for fitted in watched), default=0)
    # Where nothing of ours sees gaps, what was reserved counts; but not for algorithms that were tried.
    if torch.backends.cudnn.benchmark or all(fitted.bound is not None for fitted in watched):
        return seen
    return max(seen, int(torch.cuda.max_memory_reserved(device)))
