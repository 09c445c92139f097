"""Finds saved tensors that no backward pass reads, and drops them. If a backward pass reads only the signs of a tensor, the signs are kept.

Autograd saves more than it reads: a convolution saves its input even if its weight is frozen, and pooling saves its input for the shape
alone. The edges of a node show which gradients it computes, and so which saved tensors it reads. An input without a gradient has no edge, and
no backward pass without `create_graph` computes more::

    frozen convolution     input: not read       weight: read             edges: (relu, none, none)
    trained convolution    input: read           weight: read             edges: (relu, weight, bias)

So the nodes of the current pass decide, not the recorded step. A dropped tensor can be recomputed by the calls of this pass, so any other reader
still gets it. The backward pass of a ReLU reads only the signs of the saved tensor; these are kept as bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..memory.allocator import ROUND
from ..memory.masks import TYPES, bytes_of
from ..record.cost import Rates
from ..record.data import Step
from .liveness import Impossible, Lives, closure, leaves

if TYPE_CHECKING:
    from ..record.recorder import Recorder

__all__ = ["blank", "droppable", "without"]

# The operation that reads the signs.
_READS_SIGNS = "aten.threshold_backward"
# Whether blank tensors are filled with NaNs, so that tests notice any reader.
fills = False
_NOT_A_NUMBER = 0xFF


def blank(view: Any, device: torch.device) -> Tensor:
    """A placeholder for a dropped tensor, which is never read. It has the same strides, because kernels are chosen by strides. It is not filled, to
    save time."""
    shape, stride, _, dtype = view
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if fills:
        raw = torch.empty(0, dtype=torch.uint8, device=device)
        raw.set_(made.untyped_storage(), 0, (made.untyped_storage().nbytes(),)).fill_(_NOT_A_NUMBER)
    return made


def droppable(step: Step, lives: Lives, recorder: Recorder, masks: Callable[[int], bool] | None = None) -> dict[int, list[int]]:
    """Movable tensors of a recorded step that the backward pass does not read, each with the operations that would recompute it. If `masks` holds
    for a tensor, it may also be one of which only the signs are read.

    The operations begin at tensors that are saved earlier and stay at least as long, since notes of calls hold no others.
    """
    if not recorder.unread and not recorder.signs:
        return {}
    known = recorder.unread | recorder.signs if masks is not None else recorder.unread
    packs: dict[int, list[int]] = {}
    for number, (tensor, operation) in enumerate(step.packs):
        if operation >= 0:
            packs.setdefault(tensor, []).append(number)
    backward_start = next(
        (place for place, (event, number) in enumerate(recorder.timeline) if event == "unpack" or event == "operation" and recorder.operations[number].stage != "forward"),
        len(recorder.timeline),
    )  # fmt: skip
    overwritten = {before for before in lives.before if before is not None}
    found: dict[int, list[int]] = {}
    begins: dict[int, set[int]] = {}
    for tensor in sorted(packs, key=lambda tensor: lives.first[tensor]):
        numbers = packs[tensor]
        if not lives.movable[tensor] or tensor in overwritten or not known.issuperset(numbers):
            continue
        if masks is not None and not recorder.signs.isdisjoint(numbers) and not masks(tensor):
            continue
        views = [recorder.packs[number].view for number in numbers]
        if not all(view.dtype in TYPES for view in views):
            continue
        spans = recorder.storages[views[0].storage].spans
        if any(start < backward_start < end for start, end in spans):
            # The program itself holds the storage.
            continue
        try:
            operations = closure(lives, tensor)
        except Impossible:
            continue
        first = {leaf for leaf in leaves(lives, operations) if not lives.resident[leaf]}
        if any(leaf not in packs or packs[leaf][0] > numbers[0] for leaf in first):
            continue
        begin = {other for leaf in first for other in begins.get(leaf, {leaf})}
        if all(lives.last[leaf] >= lives.last[tensor] for leaf in begin):
            found[tensor], begins[tensor] = operations, begin
    return found


def without(step: Step, lives: Lives, dropped: dict[int, list[int]], recorder: Recorder, rates: Rates) -> Step:
    """The step in which these tensors are not saved, and the signs of some are saved as bits.

    An operation that does not read the dropped tensor gets a blank one of the same size. Unpacking expands signs to a tensor.
    """
    step = replace(step, data={**step.data}, dropped=dropped)
    step.masked = {step.packs[number][0] for number in recorder.signs} & dropped.keys()
    made = _Without(step, lives, recorder, rates)
    for index in range(len(made.operations)):
        made.rewrite(index)
    step.data.update(tensors=made.tensors, operations=made.operations)
    return step


class _Without:
    """The operations and tensors of a step in which some tensors are not saved."""

    def __init__(self, step: Step, lives: Lives, recorder: Recorder, rates: Rates) -> None:
        self.step, self.lives, self.rates = step, lives, rates
        self.tensors = [{**tensor, "residence": "temporary"} if index in step.dropped else tensor for index, tensor in enumerate(step.data["tensors"])]
        self.operations: list[dict[str, Any]] = list(step.data["operations"])
        # The view whose signs are packed or unpacked, by operation.
        self.signs = {step.packs[number][1]: recorder.packs[number].view for number in recorder.signs if step.packs[number][0] in step.masked}
        self.signs |= {operation: recorder.packs[number].view for number, operation in step.unpacks if step.packs[number][1] in self.signs}
        # For each tensor, the tensor of its bits, and the last one that was unpacked from them.
        self.bits: dict[int, int] = {}
        self.spread: dict[int, int] = {}

    def rewrite(self, index: int) -> None:
        """Rewrites one operation."""
        operation, lives = self.operations[index], self.lives
        if operation["name"] != "pack" and index < lives.backward_start:
            return
        here = [tensor for tensor in operation["reads"] if tensor in self.step.dropped]
        if not here:
            return
        reads, writes = [tensor for tensor in operation["reads"] if tensor not in self.step.dropped], list(operation["writes"])
        time_us = operation["time_us"]
        if operation["name"] in ("pack", "unpack"):
            tensor = here[0]
            if index in self.signs:
                time_us += self.time_us(index)
                if operation["name"] == "unpack":
                    reads.append(self.bits[tensor])
                    self.spread[tensor] = self.add("signs as numbers", lives.bytes[tensor])
                    writes.append(self.spread[tensor])
                elif tensor not in self.bits:
                    self.bits[tensor] = self.add("signs", -(-bytes_of(self.signs[index].shape.numel()) // ROUND) * ROUND)
                    writes.append(self.bits[tensor])
        elif operation["name"] == _READS_SIGNS:
            reads += [self.spread[tensor] for tensor in here if tensor in self.spread]
        elif operation["name"] != "held":
            writes += [self.add("what nobody reads", lives.bytes[tensor]) for tensor in here]
        self.operations[index] = {**operation, "reads": reads, "writes": writes, "time_us": time_us}

    def time_us(self, index: int) -> float:
        """The time to pack or unpack signs, in one call that reads or writes the tensor once."""
        view = self.signs[index]
        return float(1e6 * view.shape.numel() * (view.dtype.itemsize + 0.125) / self.rates.memory + self.rates.call_us)

    def add(self, name: str, size: int) -> int:
        self.tensors.append({"name": name, "bytes": size, "kind": "other", "residence": "temporary", "result": False, "alias": None})
        return len(self.tensors) - 1
