"""How a list of operations runs again: what it copies first, what changes hands, and when each result is dropped.

The same answer drives the run and the prediction of its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "Impossible", "Lives", "calls", "leaves"]


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
    copies: list[int] = field(default_factory=list)
    makes: list[int] = field(default_factory=list)
    renames: list[tuple[int, int]] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)


class Lives:
    """Who writes and reads each tensor of a step, by operation."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.operations: list[dict[str, Any]] = data["operations"]
        self.tensors: list[dict[str, Any]] = data["tensors"]
        count = len(self.tensors)
        self.bytes = [int(tensor["bytes"]) for tensor in self.tensors]
        self.resident = [tensor["residence"] == "resident" for tensor in self.tensors]
        self.movable = [tensor["residence"] == "movable" for tensor in self.tensors]
        self.time_us = [float(operation["time_us"]) for operation in self.operations]
        self.rerun_us = [float(operation.get("rerun_time_us") or operation["time_us"]) for operation in self.operations]
        self.scratch = [int(operation.get("workspace_bytes") or 0) for operation in self.operations]
        # What each takes and gives back beside its results, in order, as `measure` has found it.
        self.workspaces: list[Sequence[int]] = [
            operation.get("workspaces") or ([size, -1] if size else []) for operation, size in zip(self.operations, self.scratch, strict=True)
        ]
        # The tensor whose bytes an operation changes in place to make this one.
        self.before: list[int | None] = [tensor.get("in_place_of") for tensor in self.tensors]
        self.writers: list[list[int]] = [[] for _ in range(count)]
        self.first = [-1] * count
        self.last_forward = [-1] * count
        self.first_backward = [-1] * count
        self.last = [-1] * count
        self.saved = [False] * count
        self.turn = next(
            (index for index, operation in enumerate(self.operations) if operation["stage"] != "forward"),
            len(self.operations),
        )
        for index, operation in enumerate(self.operations):
            for tensor in (*operation["reads"], *operation["writes"], *operation["adds"]):
                if self.first[tensor] < 0:
                    self.first[tensor] = index
                self.last[tensor] = index
                if index < self.turn:
                    self.last_forward[tensor] = index
                elif self.first_backward[tensor] < 0:
                    self.first_backward[tensor] = index
            for tensor in (*operation["writes"], *operation["adds"]):
                if index < self.turn:
                    self.writers[tensor].append(index)
            if operation["name"] == "pack":
                self.saved[operation["reads"][0]] = True


def leaves(lives: Lives, indices: Sequence[int]) -> list[int]:
    """What a rerun of these operations reads and does not make, in the order in which it is first read."""
    operations = [lives.operations[index] for index in indices]
    made = {made for operation in operations for made in operation["writes"]}
    return list(dict.fromkeys(read for operation in operations for read in operation["reads"] if read not in made))


def calls(lives: Lives, operations: Sequence[int], held: set[int]) -> list[Call]:
    """The calls of a rerun of these operations, after which the tensors in `held` stay.

    Raises
    ------
    Impossible
        If an operation may not run again, or changes what the rerun did not make.
    """
    made: set[int] = set()
    last_use: dict[int, int] = {}
    for place, index in enumerate(operations):
        operation = lives.operations[index]
        if operation["rerun"] == "never":
            raise Impossible(f"operation {index} ({operation['name']}) may not run again")
        for tensor in (*operation["reads"], *operation["adds"], *operation["writes"]):
            last_use[tensor] = place
    found = []
    for place, index in enumerate(operations):
        operation = lives.operations[index]
        call = Call(index)
        for tensor in operation["adds"]:
            if lives.resident[tensor]:
                continue
            if tensor not in made:
                raise Impossible(f"operation {index} ({operation['name']}) changes tensor {tensor}, which no rerun made")
        for tensor in operation["writes"]:
            before = lives.before[tensor]
            if before is not None and before in operation["reads"]:
                free = before in made and last_use[before] == place and before not in held
                if not free:
                    call.copies.append(before)
                else:
                    made.discard(before)
                call.renames.append((before, tensor))
            else:
                call.makes.append(tensor)
            made.add(tensor)
        for tensor in sorted(made):
            if last_use[tensor] == place and tensor not in held:
                call.drops.append(tensor)
        made.difference_update(call.drops)
        found.append(call)
    return found
