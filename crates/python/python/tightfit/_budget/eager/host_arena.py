"""Host memory for what passes move there: one arena for each pass that is not over, taken before the first one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..memory.host import host_bytes
from ..memory.sizes import text
from ..messages import say

if TYPE_CHECKING:
    from torch import Tensor

    from ..memory.copies import Copies
    from .passes import Pass

__all__ = ["Arenas"]

# How much larger than needed an arena may be, as taking another one takes time.
_LARGER = 1.02


class Arenas:
    """The arenas of one session.

    Attributes
    ----------
    name
        The model, for lines.
    budget
        Bytes of host memory that the user allows; None for a share of the free memory.
    found
        Arenas, each with a function that returns the pass that got it last.
    pinnable
        Bytes that can be pinned, where that was found to be less than was asked for.
    """

    def __init__(self, name: str, budget: int | None) -> None:
        self.name = name
        self.budget = budget
        self.found: list[tuple[Tensor, Callable[[], Any]]] = []
        self.pinnable: int | None = None
        self._said = False

    def _allowed(self) -> int | None:
        return self.budget if self.budget is not None else host_bytes()

    def bytes(self) -> int | None:
        """Bytes that a plan may use; None if unknown."""
        most = self._allowed()
        if most is not None and self.found:
            most = max(most, max(arena.numel() for arena, _ in self.found))
        if self.pinnable is not None:
            most = self.pinnable if most is None else min(most, self.pinnable)
        return most

    def take(self, size: int, copies: Copies) -> bool:
        """Takes host memory for a plan before its first pass; false if no more than `pinnable` bytes can be pinned."""
        if any(arena.numel() >= size for arena, _ in self.found):
            return True
        # Arenas that are too small go first.
        self.found = [(arena, owner) for arena, owner in self.found if owner() is not None]
        arena = copies.pinned(size)
        if arena is None:
            self.pinnable = copies.pinnable(size)
            return False
        self.found.append((arena, lambda: None))
        return True

    def shrink(self, size: int) -> None:
        """Releases arenas that are larger than any plan needs. The largest plan needs `size` bytes."""
        self.found = [(arena, owner) for arena, owner in self.found if owner() is not None or arena.numel() <= _LARGER * size]

    def give(self, active: Pass, copies: Copies) -> Tensor:
        """An arena that no earlier graph needs any more; another one while they all do."""
        size = active.schedule.host_bytes
        free = [place for place, (_, owner) in enumerate(self.found) if owner() is None or owner() is active]
        fitting = [place for place in free if self.found[place][0].numel() >= size]
        if fitting:
            place = min(fitting, key=lambda place: self.found[place][0].numel())
            arena = self.found[place][0]
            self.found[place] = arena, weakref.ref(active)
            return arena
        # Arenas that are too small go before another one is taken.
        for place in reversed(free):
            del self.found[place]
        if self.found:
            held = sum(arena.numel() for arena, _ in self.found)
            active.counts.fresh_bytes += size
            most = self._allowed()
            if most is not None and size + (held if self.budget is not None else 0) > most:
                self._say(len(self.found) + 1, held + size)
                return copies.arena(size)
        arena = copies.arena(size)
        self.found.append((arena, weakref.ref(active)))
        return arena

    def _say(self, count: int, size: int) -> None:
        if not self._said:
            self._said = True
            say(
                f"{self.name} has {count} forward passes before their backward passes, which takes {text(size)} of host memory, "
                "more than it may; run fewer of them at once, or raise host_budget"
            )
