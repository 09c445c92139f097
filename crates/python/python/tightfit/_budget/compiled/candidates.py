"""The divisions of a joint graph that are known, and their bytes: computed, or as Inductor needs them."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Division, Graph, simulate

__all__ = ["Candidates", "Choice", "time_of"]

# More bytes than any graph needs.
_MUCH = 1 << 50


@dataclass
class Choice:
    """A division, and the method that found it."""

    division: Division
    of: str


class Candidates:
    """The candidate divisions of one graph.

    Attributes
    ----------
    plain
        PyTorch's fastest division.
    theirs, ours
        The divisions of PyTorch, and least cuts by the places that they save.
    calls
        The number of calls of the graph before its backward pass.
    later
        Bytes for later graphs, while the values of all calls are kept.
    seen
        By the decisions of a division, the bytes that Inductor needs for the forward and the backward graph, of the graphs that it has fused. The
        ratios of the last one to the computed bytes correct all other divisions.
    noted
        The divisions of these graphs.
    """

    def __init__(self, graph: Graph, plain: tuple[str, frozenset[int]], loss: int = 0, calls: int = 1, later: int = 0) -> None:
        self.graph = graph
        # Least cuts save less if more than the peak of a call exists between the passes.
        self.loss = loss if calls == 1 else _MUCH
        self.calls = calls
        self.later = later
        of, saved = plain
        self.plain = simulate(graph, saved, self.loss)
        self.theirs = [Choice(self.plain, of)]
        self.ours: dict[frozenset[int], Choice] = {}
        self.seen: dict[tuple[frozenset[int], frozenset[int]], dict[bool, int]] = {}
        self.noted: list[Choice] = []
        self.ratios = {False: 1.0, True: 1.0}

    def add(self, of: str, saved: frozenset[int]) -> Choice | None:
        """Adds a division of PyTorch's, unless it saves inputs that the program changes before the backward pass, as some at a low share do."""
        if any(not self.graph.values[place].saved for place in saved):
            return None
        self.theirs.append(Choice(simulate(self.graph, saved, self.loss), of))
        return self.theirs[-1]

    def note(self, choice: Choice, is_backward: bool, bytes: int) -> None:
        """Notes the bytes of one of a division's graphs."""
        division = choice.division
        if division.key not in self.seen:
            self.seen[division.key] = {}
            self.noted.append(choice)
        self.seen[division.key][is_backward] = bytes
        self.ratios[is_backward] = bytes / max(_computed(division)[is_backward], 1)

    def peak(self, division: Division, with_loss: bool = True) -> int:
        """Bytes at a division's peak: exact if Inductor has fused its graphs, else computed and corrected."""
        seen = self.seen.get(division.key, {})
        computed = _computed(division)
        forward, backward = (seen.get(way, int(computed[way] * self.ratios[way])) for way in (False, True))
        backward += division.rest
        if with_loss and self.calls > 1:
            # Gradients of other calls exist once their values are freed.
            calls = max(forward, backward - self.graph.gradients) + (self.calls - 1) * division.kept
            return max(forward, backward, calls, self.calls * division.kept + self.later)
        return max(forward, backward, division.start if with_loss else 0)

    def lowered(self, room: float) -> Choice | None:
        """The fastest division that fits, of all divisions whose bytes Inductor showed."""
        return min((one for one in self.noted if self.peak(one.division) <= room), key=time_of, default=None)


def time_of(choice: Choice) -> float:
    """The predicted time of a division."""
    return choice.division.time_us


def _computed(division: Division) -> dict[bool, int]:
    """Computed bytes of the buffers of the forward and the backward graph."""
    return {False: division.forward, True: division.backward - division.rest}
