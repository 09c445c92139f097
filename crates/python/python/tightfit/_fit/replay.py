"""Runs recorded operations again, to rebuild what a pass has given up."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from .bound import Argument, Program
from .recorder import View
from .slots import Slot, modified, of_view

if TYPE_CHECKING:
    from .passes import Pass

__all__ = ["no_autocast", "rebuild"]


def rebuild(active: Pass, slot: Slot) -> None:
    """Runs a slot's operations again, after those of the slots that they read."""
    waiting = [slot]
    with torch.no_grad(), no_autocast():
        while waiting:
            last = waiting[-1]
            if last.tensor is not None:
                waiting.pop()
                continue
            programs = active.bound.programs.get(last.number)
            if programs is None or last.leaves is None:
                raise RuntimeError(f"tightfit: saved tensor {last.number} was lost; please report this")
            program = programs[min(last.round, len(programs) - 1)]
            missing = [
                leaf
                for number in program.leaves
                if (leaf := last.leaves[number]).tensor is None and leaf.host is None
            ]
            if missing:
                waiting.extend(missing)
                continue
            _run(active, last, program)
            waiting.pop()


def _run(active: Pass, slot: Slot, program: Program) -> None:
    leaves = slot.leaves
    assert leaves is not None
    made: dict[int, Tensor] = {}
    for line in program.lines:
        for number in line.copies:
            base = made[number] if number in made else active.content(leaves[number])
            size = base.untyped_storage().nbytes() // base.itemsize
            made[-1 - number] = base.as_strided((size,), (1,), 0).clone()
        arguments = line.arguments.copy()
        for place in line.lists:
            arguments[place] = list(arguments[place])
        for argument, place, inner in line.tensors:
            if inner < 0:
                arguments[place] = _tensor(active, leaves, made, argument)
            else:
                arguments[place][inner] = _tensor(active, leaves, made, argument)
        named = line.named
        if line.named_tensors:
            named = named | {name: _tensor(active, leaves, made, argument) for argument, name in line.named_tensors}
        out = line.function(*arguments, **named)
        # Nothing may outlive its last use.
        del arguments, named
        for old, new in line.renames:
            made[new] = made.pop(-1 - old) if -1 - old in made else made.pop(old)
        if line.results:
            results = [out] if isinstance(out, Tensor) else tree_flatten(out)[0]
            for place, number, view in line.results:
                made[number] = _laid_out(results[place], view)
            del results
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


def _tensor(active: Pass, leaves: dict[int, Slot], made: dict[int, Tensor], argument: Argument) -> Tensor:
    """An argument of a rerun."""
    external, number, view = argument
    if external:
        tensor, version = active.externals[number]
        if tensor._version != version:
            raise modified(tensor, version)
    elif -1 - number in made:
        tensor = made[-1 - number]
    elif number in made:
        tensor = made[number]
    else:
        tensor = active.content(leaves[number])
    return of_view(tensor, view)


def _laid_out(tensor: Tensor, view: View) -> Tensor:
    """A result, in the layout in which it was recorded."""
    if tensor.stride() == view.stride and tensor.storage_offset() == view.offset:
        return tensor
    made = torch.empty_strided(view.shape, view.stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def no_autocast() -> Any:
    """Reruns call what autocast had chosen; it must not choose again."""
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
    return nullcontext()
