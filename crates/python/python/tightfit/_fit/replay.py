"""Runs recorded operations again, to rebuild what a pass has given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .program import EXTERNAL, MADE, Argument, Program
from .recorded import View
from .slots import Slot, modified, of_part, of_view

if TYPE_CHECKING:
    from torch import Tensor

    from .passes import Pass

__all__ = ["rebuild"]


def rebuild(active: Pass, slot: Slot) -> None:
    """Runs a slot's operations again, after those of the slots that they read."""
    with active.copies.computing():
        _rebuild(active, slot)


def _rebuild(active: Pass, slot: Slot) -> None:
    waiting = [slot]
    while waiting:
        last = waiting[-1]
        if last.tensor is not None:
            waiting.pop()
            continue
        programs, leaves = active.bound.programs.get(last.number), last.leaves
        if programs is None or leaves is None:
            raise RuntimeError(
                f"tightfit: saved tensor {last.number} of {_maker(active, last.number)} was lost; "
                "please report this"
            )
        program = programs[min(last.round, len(programs) - 1)]
        count = len(waiting)
        for number in program.leaves:
            leaf = leaves[number]
            if leaf.tensor is None and leaf.host is None:
                waiting.append(leaf)
        if len(waiting) == count:
            _run(active, last, leaves, program)
            waiting.pop()


def _maker(active: Pass, number: int) -> str:
    """The node of the graph that made a saved tensor, by its name."""
    made = next((expected.lineage for _, _, _, tensor, expected in active.bound.answers if tensor == number), None)
    return made[0].__name__ if made else "no operation"


def _run(active: Pass, slot: Slot, leaves: dict[int, Slot], program: Program) -> None:
    made: dict[int, Tensor] = {}

    def find(argument: Argument) -> Tensor:
        source, number, view = argument
        if source == MADE:
            tensor = made[number]
        elif source == EXTERNAL:
            tensor, version = active.externals[number]
            if tensor._version != version:
                raise modified(tensor, version)
            return tensor if view is None else of_part(tensor, view)
        else:
            tensor = active.content(leaves[number])
        return tensor if view is None else of_view(tensor, view)

    for line in program.lines:
        for number, argument in line.copies:
            base = find(argument)
            size = base.untyped_storage().nbytes() // base.itemsize
            made[number] = base.as_strided((size,), (1,), 0).clone()
            del base
        arguments = line.arguments.copy()
        for place, argument in line.tensors:
            arguments[place] = find(argument)
        for place in line.lists:
            arguments[place] = list(arguments[place])
        for place, inner, argument in line.listed:
            arguments[place][inner] = find(argument)
        named = line.named
        if line.named_tensors:
            named = named | {name: find(argument) for name, argument in line.named_tensors}
        out = line.function(*arguments, **named)
        # Nothing may outlive its last use.
        del arguments, named
        for old, new in line.renames:
            made[new] = made.pop(old)
        for place, number, view in line.results:
            made[number] = _laid_out(out[place] if isinstance(out, list | tuple) else out, view)
        del out
        for number in line.drops:
            made.pop(number, None)
    active.counts.rebuilt += 1
    for number in program.held:
        other = slot if number == slot.number else active.living(number)
        if other is not None and other.tensor is None and number in made:
            other.tensor = made[number]
            other.round += 1
            if other.round >= len(active.bound.programs[number]):
                # From here on it is kept, even if the graph is retained.
                other.leaves = None


def _laid_out(tensor: Tensor, view: View) -> Tensor:
    """A result, in the layout in which it was recorded."""
    if tensor.stride() == view.stride and tensor.storage_offset() == view.offset:
        return tensor
    return tensor.new_empty_strided(view.shape, view.stride).copy_(tensor)
