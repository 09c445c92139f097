"""Reruns as they are carried out: calls with everything in place but the tensors.

A program is made once for a plan, so that a step does nothing for it but call: where each tensor comes from, and whether it must
be viewed in another way, is known by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .rebuild import Call, Impossible, Lives, calls
from .recorded import Operation, Step, View

__all__ = ["ATTENTION", "BATCH_NORMS", "CONVOLUTIONS", "EXTERNAL", "LEAF", "MADE", "Line", "Program", "copy_of", "program_of"]

# Their arguments 3 and 4 are running statistics.
BATCH_NORMS = frozenset(["native_batch_norm", "cudnn_batch_norm"])
CONVOLUTIONS = frozenset(["convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"])
# Attention in one operation, by the library that PyTorch chooses for it.
ATTENTION = frozenset(
    """
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu
    """.split()
)
# Where a tensor comes from: the rerun itself, what is saved, or what exists before the step.
MADE, LEAF, EXTERNAL = range(3)


class Argument(NamedTuple):
    """Where a call finds a tensor: its source, its number there, and its view; None if the tensor is this view already.

    A view is one of the storage; of a tensor that exists before the step, one from where that begins.
    """

    source: int
    number: int
    view: View | None


@dataclass(slots=True)
class Line:
    """One call of a program.

    Attributes
    ----------
    function
        What is called.
    arguments, named
        What it is called with, but for the tensors.
    tensors
        Each tensor that is given by place: its place among the arguments, and where it is found.
    listed, lists
        Each tensor in a list: the list's place, its place there, and where it is found; and the places of these lists.
    named_tensors
        Each tensor that is given by name.
    copies
        Tensors to copy first, because the call changes them and they are needed as they are; see :func:`copy_of`.
    results
        What is kept of the outputs: the place among them, the tensor, and its layout.
    renames
        Pairs (old, new): the call changes what `old` stands for in place, and `new` stands for it from then on.
    drops
        Tensors that nothing in the rerun needs any more.
    """

    function: Any
    arguments: list[Any]
    named: dict[str, Any]
    tensors: list[tuple[int, Argument]]
    listed: list[tuple[int, int, Argument]]
    lists: list[int]
    named_tensors: list[tuple[str, Argument]]
    copies: list[tuple[int, Argument]]
    results: list[tuple[int, int, View]]
    renames: list[tuple[int, int]]
    drops: list[int]


@dataclass(slots=True)
class Program:
    """A rerun: its calls, the tensors it reads, and those that stay afterwards."""

    lines: list[Line]
    leaves: list[int]
    held: list[int]


def copy_of(tensor: int) -> int:
    """The number under which a rerun knows the copy of a tensor."""
    return -1 - tensor


def _again(recorded: Operation) -> list[Any]:
    """The arguments for running an operation again: batch normalization in training gets no statistics to update."""
    arguments = list(recorded.arguments)
    if recorded.changes and recorded.name in BATCH_NORMS:
        arguments[3] = arguments[4] = None
    return arguments


class _Writer:
    """Writes the lines of a program in their order, knowing what has been made before each."""

    def __init__(self, step: Step, lives: Lives, external: Callable[[int, View], tuple[int, View | None]]) -> None:
        self.step = step
        self.lives = lives
        self.external = external
        self.leaves: list[int] = []
        # The layout of each tensor that was made and is still there; None where it is another than that of any view.
        self.made: dict[int, View | None] = {}

    def base(self, tensor: int) -> Argument:
        """Where a tensor is found, as it is there."""
        for number in (copy_of(tensor), tensor):
            if number in self.made:
                return Argument(MADE, number, None)
        if tensor not in self.leaves:
            self.leaves.append(tensor)
        return Argument(LEAF, tensor, None)

    def argument(self, view: View) -> Argument:
        tensor = self.step.tensors[(view.storage, view.writes)]
        if self.lives.resident[tensor]:
            return Argument(EXTERNAL, *self.external(tensor, view))
        source, number, _ = self.base(tensor)
        layout = self.made.get(number) if source == MADE else None
        return Argument(source, number, None if layout is not None and layout[2:] == view[2:] else view)

    def line(self, recorded: Operation, call: Call) -> Line:
        copies = [(copy_of(tensor), self.base(tensor)) for tensor in call.copies]
        self.made.update({number: None for number, _ in copies})
        flat = [self.argument(value) if isinstance(value, View) else value for value in _again(recorded)]
        args, named = recorded.structure.unflatten(flat)
        listed = [
            (place, inner, element)
            for place, value in enumerate(args)
            if isinstance(value, list | tuple) and not isinstance(value, Argument)
            for inner, element in enumerate(value)
            if isinstance(element, Argument)
        ]
        renames = [(copy_of(old) if copy_of(old) in self.made else old, new) for old, new in call.renames]
        for number, new in renames:
            self.made[new] = self.made.pop(number)
        results = []
        for place, view in enumerate(recorded.outputs):
            tensor = self.step.tensors.get((view.storage, view.writes), -1) if view is not None else -1
            if view is not None and tensor in call.makes:
                results.append((place, tensor, view))
                # Laid out anew, it begins its storage.
                self.made[tensor] = view if view.offset == 0 else None
        for tensor in call.drops:
            self.made.pop(tensor, None)
        return Line(
            function=recorded.function,
            arguments=list(args),
            named=named,
            tensors=[(place, value) for place, value in enumerate(args) if isinstance(value, Argument)],
            listed=listed,
            lists=sorted({place for place, _, _ in listed}),
            named_tensors=[(name, value) for name, value in named.items() if isinstance(value, Argument)],
            copies=copies,
            results=results,
            renames=renames,
            drops=call.drops,
        )


def program_of(
    step: Step, lives: Lives, operations: Sequence[int], held: set[int], external: Callable[[int, View], tuple[int, View | None]]
) -> Program:
    """The rerun of some operations, after which the tensors in `held` stay.

    Parameters
    ----------
    external
        For a view of a tensor that exists before the step: its number, and its view from where it begins.

    Raises
    ------
    Impossible
        If they may not run again.
    """
    writer = _Writer(step, lives, external)
    lines = []
    for call in calls(lives, operations, held):
        recorded = step.recorded[call.operation]
        if recorded is None:
            raise Impossible(f"operation {call.operation} was not recorded")
        lines.append(writer.line(recorded, call))
    return Program(lines, writer.leaves, sorted(held))
