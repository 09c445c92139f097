"""Searches for the largest mini-batch that fits, with few trials."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["largest", "largest_fitting"]

# No mini-batch is larger.
_MOST = 1 << 20


def largest(needs: Callable[[int], int], limit: int) -> int:
    """The largest number whose need is within a limit; 0 if 1 needs more. Needs grow nearly linearly, so few numbers are tried."""
    low, at_low = 1, needs(1)
    if at_low > limit:
        return 0
    high, at_high = 2, needs(2)
    while at_high <= limit and high < _MOST:
        # The number at which the line through both points reaches the limit.
        slope = max((at_high - at_low) / (high - low), 1e-9)
        guess = int(low + (limit - at_low) / slope)
        low, at_low, high = high, at_high, min(max(guess + 1, high + 1), 8 * high, _MOST)
        at_high = needs(high)
    while low + 1 < high:
        guess = int(low + (limit - at_low) * (high - low) / max(at_high - at_low, 1))
        middle = min(max(guess, low + 1), high - 1)
        at_middle = needs(middle)
        if at_middle <= limit:
            low, at_low = middle, at_middle
            # If the guess was right, the next number does not fit.
            if low + 1 < high and (at_next := needs(low + 1)) > limit:
                high, at_high = low + 1, at_next
        else:
            high, at_high = middle, at_middle
    return low


def largest_fitting(fits: Callable[[int], bool], start: int) -> int:
    """The largest number that fits, if trials only show whether a number fits; 0 if 1 does not fit. `start` is a number that fits, or 0. The answer
    is exact up to 64, and within 1/64 beyond that."""
    low, high = (start, 2 * start) if start else (0, 1)
    while high <= _MOST and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
