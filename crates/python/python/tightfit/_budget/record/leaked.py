"""Replaces constants that a program keeps from a rehearsal by real ones.

Programs keep tables that they compute once: behind ``functools.lru_cache``, or in a dictionary that no copy of the model contains. A
rehearsal may be the first to compute one, and it is fake then. If it depends on no input and no weight, it is computed again for real, by the
recorded operations, and takes the place of the fake tensor.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .data import View

if TYPE_CHECKING:
    from .data import Operation
    from .recorder import Recorder

__all__ = ["make_real"]


def make_real(recorder: Recorder) -> None:
    """Makes the constants real that are still there after a rehearsal. Other tensors that a program keeps are of its last step, and the next
    step replaces them."""
    made, recorder.made = recorder.made, []
    if all(reference() is None for reference in made):
        return
    gc.collect()
    kept = {id(tensor): tensor for tensor in (reference() for reference in made) if isinstance(tensor, FakeTensor)}
    makers: dict[int, list[int]] = {}
    for index, operation in enumerate(recorder.operations if kept else ()):
        for number, _ in operation.makes:
            makers.setdefault(number, []).append(index)
    while kept:
        _, tensor = kept.popitem()
        storage = recorder._of.get(torch._C._storage_address(tensor))
        real = None if storage is None or tensor.requires_grad else _computed(recorder, makers, storage.number, recorder.view(tensor))
        # The program alone holds the fake one.
        if real is not None and tensor._use_count() == 1:
            _exchange(tensor, real)


def _exchange(one: Tensor, other: Tensor) -> None:
    """Exchanges two tensors, like `torch.utils.swap_tensors`, which refuses tensors with weak references: here, these are the rehearsal's."""
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def _computed(recorder: Recorder, makers: dict[int, list[int]], number: int, view: View) -> Tensor | None:
    """The tensor, computed by the recorded operations; None if it depends on more than constants."""
    operations: set[int] = set()
    waiting, seen = [number], {number}
    while waiting:
        one = waiting.pop()
        if recorder.storages[one].external is not None:
            return None
        for index in makers.get(one, ()):
            operation = recorder.operations[index]
            operations.add(index)
            others = {read for read, _ in (*operation.reads, *operation.makes)} - seen
            seen |= others
            waiting += others
    storages: dict[int, Any] = {}
    with torch.no_grad():
        for index in sorted(operations):
            if torch.Tag.nondeterministic_seeded in recorder.operations[index].function.tags:
                return None
            _run(recorder.operations[index], storages)
        return _real(view, storages)


def _run(operation: Operation, storages: dict[int, Any]) -> None:
    given = [_real(value, storages) if isinstance(value, View) else value for value in operation.arguments]
    args, kwargs = operation.structure.unflatten(given)
    out = operation.function(*args, **kwargs)
    for view, value in zip(operation.outputs, torch.utils._pytree.tree_flatten(out)[0], strict=True):
        if view is not None:
            storages.setdefault(view.storage, value.untyped_storage())


def _real(view: View, storages: dict[int, Any]) -> Tensor:
    storage = storages[view.storage]
    return torch.empty(0, dtype=view.dtype, device=storage.device).set_(storage, view.offset, view.shape, view.stride)
