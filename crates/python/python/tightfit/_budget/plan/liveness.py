"""How a list of operations runs again: what it copies first, what changes hands, and when each result is dropped.

The same answer drives the run and the prediction of its memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import _native

__all__ = ["Call", "Impossible", "Lives", "calls", "closure", "leaves", "written"]


class Impossible(Exception):
    """A plan asks for what cannot be carried out; the text says what."""


@dataclass(slots=True)
class Call:
    """One operation of a rerun.

    Attributes
    ----------
    operation
        Its index in the step.
    copies
        Tensors to copy first, because the operation changes them and they are needed as they are.
    makes
        Tensors whose bytes it allocates.
    renames
        Pairs (old, new): the operation changes `old` in place, which is then `new`.
    drops
        Tensors that nothing in the rerun needs any more.
    """

    operation: int
    copies: list[int]
    makes: list[int]
    renames: list[tuple[int, int]]
    drops: list[int]


class Lives:
    """Who writes and reads each tensor of a step, by operation."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        # The same for Rust, which predicts and decides.
        self.native = _native.EagerStep(json.dumps(data))
        self.operations: list[dict[str, Any]] = data["operations"]
        self.tensors: list[dict[str, Any]] = data["tensors"]
        count = len(self.tensors)
        self.bytes = [int(tensor["bytes"]) for tensor in self.tensors]
        self.resident = [tensor["residence"] == "resident" for tensor in self.tensors]
        self.movable = [tensor["residence"] == "movable" for tensor in self.tensors]
        # The tensor whose bytes an operation changes in place to make this one.
        self.before: list[int | None] = [tensor.get("in_place_of") for tensor in self.tensors]
        self.first = [-1] * count
        self.last_forward = [-1] * count
        self.first_backward = [-1] * count
        self.last = [-1] * count
        self.saved = [False] * count
        self.backward_start = next(
            (index for index, operation in enumerate(self.operations) if operation["stage"] != "forward"),
            len(self.operations),
        )
        for index, operation in enumerate(self.operations):
            for tensor in (*operation["reads"], *operation["writes"], *operation["adds"]):
                if self.first[tensor] < 0:
                    self.first[tensor] = index
                self.last[tensor] = index
                if index < self.backward_start:
                    self.last_forward[tensor] = index
                elif self.first_backward[tensor] < 0:
                    self.first_backward[tensor] = index
            if operation["name"] == "pack" and operation["reads"]:
                self.saved[operation["reads"][0]] = True


def written(decisions: dict[int, dict[str, Any]]) -> str:
    """Decisions for Rust, in the form of a plan file."""
    return json.dumps(list(decisions.values()))


def leaves(lives: Lives, indices: Sequence[int]) -> list[int]:
    """The tensors that a rerun of these operations reads and does not make, in the order in which they are first read."""
    return lives.native.leaves(list(indices))


def closure(lives: Lives, tensor: int) -> list[int]:
    """The operations that make a tensor from others that are saved, or resident.

    Raises
    ------
    Impossible
        If one of them may not run again, or they are too many.
    """
    try:
        return lives.native.closure(tensor)
    except ValueError as error:
        raise Impossible(str(error)) from None


def calls(lives: Lives, operations: Sequence[int], held: set[int]) -> list[Call]:
    """The calls of a rerun of these operations, after which the tensors in `held` stay.

    Raises
    ------
    Impossible
        If an operation may not run again, or changes what the rerun did not make.
    """
    try:
        return [Call(*values) for values in lives.native.calls(list(operations), list(held))]
    except ValueError as error:
        raise Impossible(str(error)) from None
