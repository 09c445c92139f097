"""Runs noted calls again, to make what a pass has given up.

A rerun has the state of its call: the same function, numbers and objects, the same settings, gradients on, and running statistics of its
own. One object is one object again. Results that nothing needs any more are dropped on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..record.functions import IN_PLACE
from .noting import Call, Held, Nest, Scratch, Value, settings
from .slots import copy_of, laid_out

if TYPE_CHECKING:
    from .slots import Slot
    from .unpacks import Unpacks

__all__ = ["run_again"]


def run_again(active: Unpacks, slot: Slot) -> None:
    """Makes a slot's tensor, by the calls that it needs; other given-up tensors that the plan makes with it stay as well."""
    if slot.call is None:
        raise RuntimeError(f"tightfit: saved tensor {slot.number} was lost; please report this")
    rerun = _Rerun(active, slot)
    before = settings(active.copies.device.type)
    grad = torch.is_grad_enabled()
    now = before
    try:
        for call in rerun.order():
            if call.state is not now:
                if call.state != now:
                    change_settings(now, call.state)
                now = call.state
            rerun.one(call)
    finally:
        torch._C._set_grad_enabled(grad)
        if now != before:
            change_settings(now, before)
    active.counts.rebuilt += 1


class _Rerun:
    def __init__(self, active: Unpacks, slot: Slot) -> None:
        self.active = active
        self.slot = slot
        self.stay = active.schedule.stay.get((slot.number, slot.round), frozenset())
        # How often each call's results are still read, and the results.
        self.uses: dict[Call, int] = {}
        self.made: dict[Call, list[Any]] = {}
        # The tensors that are read of them: the reading call, and the reference to the tensor.
        self.reads: set[tuple[int, int]] = set()
        # Whether a call works in place; then, storages of results that something else reads as well: a slot, a view, or what was there before.
        self.tracks = False
        self.shared: set[int] = set()

    def order(self) -> list[Call]:
        """The calls to run, each behind those whose results it reads."""
        assert self.slot.call is not None
        found: list[Call] = []
        self.uses[self.slot.call] = 0
        stack: list[tuple[Call, bool]] = [(self.slot.call, False)]
        entered: set[Call] = set()
        while stack:
            call, is_done = stack.pop()
            if is_done:
                found.append(call)
                continue
            if call in entered:
                continue
            entered.add(call)
            self.tracks = self.tracks or call.flags & IN_PLACE > 0
            stack.append((call, True))
            for ref in call.tensors:
                if type(ref) is Value and (id(call), id(ref)) not in self.reads and not self.is_there(ref):
                    self.reads.add((id(call), id(ref)))
                    self.uses[ref.call] = self.uses.get(ref.call, 0) + 1
                    if ref.call not in entered:
                        stack.append((ref.call, False))
        return found

    def is_there(self, ref: Value) -> bool:
        if ref.base is not None:
            return True
        slot = ref.found()
        return slot is not None and (slot.tensor is not None or slot.host is not None)

    def one(self, call: Call) -> None:
        wanted = [slot for slot in (reference() for reference in call.slots) if slot is not None and self.fills(slot)]
        tensors: dict[int, Tensor] = {}
        keeps = any(slot.place < 0 for slot in wanted)
        kwargs = call.kwargs
        writes, moved = call.flags & IN_PLACE > 0, False
        if writes and kwargs and "inplace" in kwargs and (keeps or not self.owns(call)):
            # The same numbers, in another tensor.
            writes, moved, kwargs = False, True, {**kwargs, "inplace": False}
        for ref, grad in zip(call.tensors, call.grads, strict=True):
            if id(ref) not in tensors:
                tensor, is_own = self.find(call, ref)
                if writes and not tensors:
                    tensor = tensor if is_own else copy_of(tensor)
                elif grad and not writes:
                    tensor = tensor.detach().requires_grad_()
                else:
                    tensor = tensor.detach()
                tensors[id(ref)] = tensor
        saved: list[Tensor] = []
        torch._C._set_grad_enabled(not writes)
        hooks = torch._C._autograd
        hooks._push_saved_tensors_default_hooks(_keeper(saved) if keeps else _forget, _unread)
        try:
            args = [_given(value, tensors) for value in call.args]
            out = call.function(*args, **{name: _given(value, tensors) for name, value in kwargs.items()}) if kwargs else call.function(*args)
        finally:
            hooks._pop_saved_tensors_default_hooks()
        del args
        outputs = [value.detach() if type(value) is Tensor else None for value in (out if isinstance(out, tuple | list) else (out,))]
        del out
        if moved and outputs[0] is not None:
            outputs[0] = laid_out(outputs[0], tensors[id(call.tensors[0])].stride())
        self.active.counts.calls += 1
        if keeps and len(saved) != call.packs:
            raise RuntimeError(f"tightfit: {call.function} saved {call.packs} tensors, and {len(saved)} when it ran again; please report this")
        if self.tracks and not writes:
            given = {_storage_of(tensor) for tensor in tensors.values()}
            self.shared.update(
                storage for storage in (_storage_of(value) for value in outputs if value is not None) if keeps or storage in given
            )
        del tensors
        for slot in wanted:
            made = outputs[slot.place] if slot.place >= 0 else saved[-1 - slot.place]
            # A call that ran out of place saves its input as it is, where the call in place saved a dense copy.
            slot.tensor = laid_out(made, slot.view[1]) if made is not None else made
            slot.kept = False
            if self.tracks:
                self.shared.add(_storage_of(slot.tensor))
            slot.round += 1
            if slot.round >= self.active.schedule.rounds.get(slot.number, 1):
                # From here on it is kept, even if the graph is retained.
                slot.call = None
        if self.uses.get(call, 0) > 0:
            self.made[call] = outputs

    def fills(self, slot: Slot) -> bool:
        if slot.tensor is not None or slot.host is not None:
            return False
        return slot is self.slot or slot.number in self.stay

    def owns(self, call: Call) -> bool:
        """Whether the result that a call works on is read once more, and nothing else has it."""
        ref = call.tensors[0]
        if (id(call), id(ref)) not in self.reads:
            return False
        return self.uses[ref.call] == 1 and _storage_of(self.made[ref.call][ref.index]) not in self.shared

    def find(self, call: Call, ref: Any) -> tuple[Tensor, bool]:
        """The tensor for an argument of a call, and whether nothing else has it."""
        if (id(call), id(ref)) in self.reads:
            tensor = self.made[ref.call][ref.index]
            self.uses[ref.call] -= 1
            if not self.uses[ref.call]:
                del self.made[ref.call]
                return tensor, self.tracks and _storage_of(tensor) not in self.shared
            return tensor, False
        found = self.active.held(ref)
        if found is None:
            raise RuntimeError(f"tightfit: what {call.function} has read was lost; please report this")
        return found, False


def _storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _given(value: Any, tensors: dict[int, Tensor]) -> Any:
    kind = type(value)
    if kind is Value or kind is Held:
        return tensors[id(value)]
    if kind is Scratch:
        return copy_of(value.tensor)
    if kind is Nest:
        return value.kind(_given(item, tensors) for item in value.items)
    return value


def _keeper(saved: list[Tensor]) -> Any:
    def keep(tensor: Tensor) -> None:
        # The node gets nothing: one that held its own output would be a cycle that nobody frees.
        saved.append(tensor.detach())

    return keep


def _forget(tensor: Tensor) -> None:
    return None


def _unread(packed: Any) -> Any:
    raise RuntimeError("tightfit: the graph of a rerun was read; please report this")


# The functions that write the last settings of `settings`, in their order.
_WRITES = (
    torch._C._set_cublas_allow_tf32,
    torch._C._set_cudnn_allow_tf32,
    torch._C._set_deterministic_algorithms,
    torch._C._set_cudnn_deterministic,
    torch._C._set_cudnn_benchmark,
)


def change_settings(now: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Sets the settings of a call. Casts of parameters are not kept, because they would stay in the program's cache."""
    kind, dtype = wanted[:2]
    if dtype != now[1]:
        torch.set_autocast_enabled(kind, dtype is not None)
        if dtype is not None:
            torch.set_autocast_dtype(kind, dtype)
    if wanted[2] != now[2]:
        torch.set_autocast_cache_enabled(wanted[2])
    for write, is_on, value in zip(_WRITES, now[3:], wanted[3:], strict=True):
        if is_on != value:
            write(value)
