"""Predicts the bytes at every operation and the time of a step under given decisions (``tightfit_plan::eager``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .liveness import Impossible, Lives, written

__all__ = ["Outcome", "simulate"]


@dataclass
class Outcome:
    """The costs of carrying out the decisions.

    Attributes
    ----------
    peak
        Bytes on the device at most.
    at
        The operation at which that is.
    live
        Bytes on the device at each operation, including the peak of the reruns before it.
    moved
        Bytes copied to the host, and held there.
    rebuilt_us, stalled_us, time_us
        Time of reruns, time spent waiting for copies, and time of the step with both.
    needed
        The operation that first needs each offloaded tensor again. Tensors that are fetched at once come in the order of their first need.
    """

    peak: int = 0
    at: int = 0
    live: list[int] = field(default_factory=list)
    moved: int = 0
    rebuilt_us: float = 0.0
    stalled_us: float = 0.0
    time_us: float = 0.0
    needed: dict[int, int] = field(default_factory=dict)

    @property
    def host(self) -> int:
        """Bytes held on the host."""
        return self.moved


def outcome_of(values: tuple[Any, ...]) -> Outcome:
    """An outcome from Rust's values."""
    peak, at, live, moved, rebuilt_us, stalled_us, time_us, needed = values
    return Outcome(peak, at, live, moved, rebuilt_us, stalled_us, time_us, dict(needed))


def simulate(lives: Lives, decisions: dict[int, dict[str, Any]]) -> Outcome:
    """Predicts a step under decisions by tensor, in the form of a plan file; other tensors are kept.

    Raises
    ------
    Impossible
        If the decisions cannot be carried out.
    """
    try:
        return outcome_of(lives.native.simulate(written(decisions)))
    except ValueError as error:
        raise Impossible(str(error)) from None
