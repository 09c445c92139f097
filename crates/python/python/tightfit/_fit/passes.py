"""Carries out a plan through saved-tensor hooks: one object for each forward pass and the backward pass of its graph.

Autograd holds a handle for every tensor that it saves. A handle refers to a slot, a slot that is rebuilt refers to the slots
that its rerun reads, and whatever nobody refers to is freed: so nothing outlives the graph, however that ends.

PyTorch does not check for in-place writes to what hooks pack. Versions are compared here instead, at unpack and before every
rerun, for every tensor that is still alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .bound import KEEP, LEAF, OFFLOAD, Argument, Bound, Program
from .copies import Copies
from .recorder import Recorder, View, borders_of, lineage

__all__ = ["Counts", "Pass", "SafePass"]

# What a pass without a plan leaves on the device.
SMALL_BYTES = 64 << 10
# A smaller tensor that is kept may have another form than the recorded one.
HARMLESS_BYTES = 1 << 20


class Counts:
    """What happened, since the plan was made.

    Attributes
    ----------
    packs, strangers
        Tensors packed, and those that the plan did not expect.
    fetched, late, rebuilt
        Tensors copied back; those that were copied back only when they were needed, unplanned; and tensors rebuilt.
    out_of_order
        Unpacks in another order than recorded.
    fresh_bytes
        Host memory allocated because an earlier graph still used the arena.
    """

    def __init__(self) -> None:
        self.packs = self.strangers = self.fetched = self.late = self.rebuilt = self.out_of_order = self.fresh_bytes = 0


class Slot:
    """One saved value of one pass."""

    __slots__ = ("__weakref__", "host", "leaves", "number", "origin", "round", "tensor", "ticket", "version")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tensor: Tensor | None = None
        self.version = -1
        self.origin: Any = None
        self.host: Tensor | None = None
        self.ticket: Any = None
        self.leaves: dict[int, Slot] | None = None
        self.round = 0


def _modified(tensor: Tensor, version: int) -> RuntimeError:
    shape = ", ".join(map(str, tensor.shape))
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} [{shape}]] is at version {tensor._version}; expected version {version} instead."
    )


def _of_view(base: Tensor, view: Any) -> Tensor:
    """The view of a base's storage."""
    if base.dtype is view.dtype:
        if base.shape == view.shape and base.stride() == view.stride and base.storage_offset() == view.offset:
            return base
        return base.as_strided(view.shape, view.stride, view.offset)
    empty = torch.empty(0, dtype=view.dtype, device=base.device)
    return empty.set_(base.untyped_storage(), view.offset, view.shape, view.stride)


def _bytes_of(tensor: Tensor) -> Tensor:
    """A tensor's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _differs_harmlessly(tensor: Tensor) -> bool:
    """Whether a kept tensor may differ from the recorded one: what libraries note for themselves, such as random states and
    reserved bytes, has another form on fake tensors."""
    return tensor.dtype is torch.uint8 or tensor.numel() * tensor.itemsize < HARMLESS_BYTES


class Pass:
    """One forward pass under a plan."""

    def __init__(
        self, bound: Bound, copies: Copies, arena: Callable[[Pass], Tensor], model: nn.Module | None, inputs: list[Any], counts: Counts
    ) -> None:
        self.bound = bound
        self.copies = copies
        self.arena = arena
        self.model = model
        self.inputs = inputs
        self.borders = borders_of(inputs)
        self.counts = counts
        self.safe = SafePass(None, counts)
        self.expected = bound.answers
        self.count = len(bound.answers)
        self.k = 0
        self.calls = 0
        self.turn = 0
        self.lost = False
        self.sealed = False
        self.ordered = True
        self.host: Tensor | None = None
        self.slots: dict[int, Slot] = {}
        self.alive: dict[int, weakref.ref[Slot]] = {}
        self.inflight: dict[int, tuple[Tensor, Any]] = {}
        self.externals: list[tuple[Tensor, int]] = []

    # Forward.

    def pack(self, tensor: Tensor) -> Any:
        """Answers the k-th pack from the plan."""
        k = self.k
        self.k = k + 1
        if self.lost or k >= self.count:
            return self._stranger(tensor)
        kind, numel, order, number, expected = self.expected[k]
        if order is not None:
            self._act(order)
        if kind == KEEP:
            # It is kept whatever it is, so its size is enough to know.
            if tensor.numel() != numel and not _differs_harmlessly(tensor):
                return self._stranger(tensor)
            return tensor.detach(), tensor._version, k
        if (
            tensor.shape != expected.shape
            or tensor.stride() != expected.stride
            or tensor.dtype is not expected.dtype
            or tensor.storage_offset() != expected.offset
            or (kind != OFFLOAD and expected.calls != self.calls)
            or lineage(tensor, self.borders) != expected.lineage
        ):
            return self._stranger(tensor)
        return self._managed(tensor, kind, number, order, k)

    def called(self, name: str) -> None:
        """Notes the call of a module. Another one than recorded may have the same shapes, but not the same parameters."""
        at = self.calls
        self.calls = at + 1
        names = self.bound.calls
        if at >= len(names) or names[at] != name:
            self.lost = True

    def _managed(self, tensor: Tensor, kind: int, number: int, order: Any, k: int) -> Any:
        slot = self._slot(number)
        if slot.origin is not None:
            if slot.version != tensor._version:
                return self._stranger(tensor)
            return slot, -1, k
        slot.origin = weakref.ref(tensor)
        slot.version = tensor._version
        if kind == LEAF:
            slot.tensor = tensor.detach()
        elif kind == OFFLOAD:
            place, size = self.bound.slots[number]
            raw = _bytes_of(tensor)
            if raw.numel() > size:
                slot.tensor = tensor.detach()
                return slot, -1, k
            if self.host is None:
                self.host = self.arena(self)
            slot.host = self.host[place : place + raw.numel()]
            slot.ticket = self.copies.out(raw, slot.host)
            if order is not None and number in order.release:
                self.copies.wait(slot.ticket)
            else:
                slot.tensor = tensor.detach()
        elif number in self.bound.keep_until_filled:
            slot.tensor = tensor.detach()
        return slot, -1, k

    def _slot(self, number: int) -> Slot:
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = Slot(number)
            self.alive[number] = weakref.ref(slot)
            leaves = self.bound.leaves.get(number)
            if leaves is not None:
                slot.leaves = {leaf: self._slot(leaf) for leaf in leaves}
        return slot

    def _act(self, order: Any) -> None:
        for number in order.release:
            slot = self.slots.get(number) or self._living(number)
            if slot is not None and slot.tensor is not None:
                self._release(slot)
        for number in order.forget:
            self.slots.pop(number, None)

    def _release(self, slot: Slot) -> None:
        """Gives a tensor's bytes back: once its copy is out, or its rerun is possible."""
        tensor = slot.tensor
        if slot.ticket is not None:
            self.copies.wait(slot.ticket)
        elif any(leaf.origin is None for leaf in (slot.leaves or {}).values()):
            return
        if tensor is not None and tensor._version != slot.version:
            # Keep what was changed: its unpack raises.
            return
        slot.tensor = None

    def _living(self, number: int) -> Slot | None:
        reference = self.alive.get(number)
        return None if reference is None else reference()

    def _stranger(self, tensor: Tensor) -> Any:
        """Moves a tensor that the plan does not know to the host; from here on the plan's order does not hold."""
        self.lost = True
        self.counts.strangers += 1
        return self.safe.pack(tensor), -2, -1

    def seal(self) -> None:
        """Ends the forward pass."""
        if self.sealed:
            return
        self.sealed = True
        self._act(self.bound.at_end)
        if self.lost or self.k < self.count:
            # Releases that were due after the last pack never came.
            for reference in self.alive.values():
                slot = reference()
                if slot is not None and slot.tensor is not None and slot.ticket is not None:
                    self._release(slot)
        self.slots.clear()
        self.counts.packs += self.k
        if self.bound.externals:
            self.externals = [(tensor, tensor._version) for tensor in self.bound.resolve(self.model, self.inputs)]
        self.model = None
        self.inputs = []
        self.borders = set()

    # Backward.

    def unpack(self, handle: Any) -> Tensor:
        """Gives a saved tensor back."""
        what, version, k = handle
        if k >= 0:
            self._tick(k)
        if version >= 0:
            if what._version != version:
                raise _modified(what, version)
            return what
        if version == -2:
            return self.safe.unpack(what)
        if not self.sealed:
            self.seal()
        return _of_view(self._content(what), self.expected[k][4]).detach()

    def _tick(self, k: int) -> None:
        """Moves the backward pass's clock on, and fetches what the plan fetches now."""
        turn, unpacks = self.turn, self.bound.unpacks
        if turn >= len(unpacks):
            # The graph was retained, and runs again.
            turn = 0
        if turn >= len(unpacks) or unpacks[turn] != k:
            turns = self.bound.turns.get(k)
            if turns is None:
                return
            if self.ordered:
                self.ordered = False
                self.counts.out_of_order += 1
            turn = next((later for later in turns if later >= turn), turns[0])
        self.turn = turn + 1
        bound = self.bound
        if turn in bound.drop:
            for number in bound.drop[turn]:
                slot = self._living(number)
                if slot is not None and slot.leaves is not None:
                    slot.tensor = None
        if turn in bound.fetch:
            for number in bound.fetch[turn]:
                slot = self._living(number)
                if slot is not None and slot.tensor is None and number not in self.inflight:
                    self._fetch(slot)

    def _fetch(self, slot: Slot) -> None:
        assert slot.host is not None
        with torch.no_grad():
            device = torch.empty(slot.host.numel(), dtype=torch.uint8, device=self.copies.device)
            self.inflight[slot.number] = device, self.copies.into(slot.host, device)
        self.counts.fetched += 1

    def _content(self, slot: Slot) -> Tensor:
        """A slot's tensor, on the device."""
        origin = slot.origin() if slot.origin is not None else None
        if origin is not None and origin._version != slot.version:
            raise _modified(origin, slot.version)
        if slot.tensor is not None:
            return slot.tensor
        if slot.host is not None:
            number = slot.number
            if number not in self.inflight:
                if number in self.bound.slots and self.bound.decisions[number]["prefetch_before"] is not None:
                    self.counts.late += 1
                self._fetch(slot)
            device, ticket = self.inflight[number]
            self.copies.wait(ticket)
            del self.inflight[number]
            slot.tensor = device
            return device
        self._rebuild(slot)
        assert slot.tensor is not None
        return slot.tensor

    def _rebuild(self, slot: Slot) -> None:
        """Runs a slot's operations again, after those of the slots that they read."""
        waiting = [slot]
        with torch.no_grad(), _no_autocast():
            while waiting:
                last = waiting[-1]
                if last.tensor is not None:
                    waiting.pop()
                    continue
                programs = self.bound.programs.get(last.number)
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
                self._run(last, program)
                waiting.pop()

    def _run(self, slot: Slot, program: Program) -> None:
        leaves = slot.leaves
        assert leaves is not None
        made: dict[int, Tensor] = {}
        for line in program.lines:
            for number in line.copies:
                base = made[number] if number in made else self._content(leaves[number])
                size = base.untyped_storage().nbytes() // base.itemsize
                made[-1 - number] = base.as_strided((size,), (1,), 0).clone()
            flat = []
            for argument in line.arguments:
                if type(argument) is not Argument:
                    flat.append(argument)
                    continue
                external, number, view = argument
                if external:
                    tensor, version = self.externals[number]
                    if tensor._version != version:
                        raise _modified(tensor, version)
                elif -1 - number in made:
                    tensor = made[-1 - number]
                elif number in made:
                    tensor = made[number]
                else:
                    tensor = self._content(leaves[number])
                flat.append(_of_view(tensor, view))
            args, kwargs = tree_unflatten(flat, line.structure)
            out = line.function(*args, **kwargs)
            del args, kwargs, flat
            for old, new in line.renames:
                made[new] = made.pop(-1 - old) if -1 - old in made else made.pop(old)
            if line.results:
                results = tree_flatten(out)[0]
                for place, number, view in line.results:
                    made[number] = _laid_out(results[place], view)
                del results
            del out
            for number in line.drops:
                made.pop(number, None)
        self.counts.rebuilt += 1
        for number in program.held:
            other = slot if number == slot.number else self._living(number)
            if other is not None and other.tensor is None and number in made:
                other.tensor = made[number]
                other.round += 1
                if other.round >= len(self.bound.programs[number]):
                    # From here on it is kept, even if the graph is retained.
                    other.leaves = None

    def __del__(self) -> None:
        # Copies into bytes that are freed now must have ended before the compute stream uses these again.
        for _, ticket in self.inflight.values():
            self.copies.wait(ticket)


def _laid_out(tensor: Tensor, view: View) -> Tensor:
    """A result, in the layout in which it was recorded."""
    if tensor.stride() == view.stride and tensor.storage_offset() == view.offset:
        return tensor
    made = torch.empty_strided(view.shape, view.stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _no_autocast() -> Any:
    """Reruns call what autocast had chosen; it must not choose again."""
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
    return nullcontext()


class SafePass:
    """A forward pass without a plan: everything large goes to the host as it comes, and waits there.

    With a recorder, this is how a step that cannot run on fake tensors is recorded: the device holds next to nothing.
    """

    def __init__(self, recorder: Recorder | None, counts: Counts) -> None:
        self.recorder = recorder
        self.counts = counts

    def pack(self, tensor: Tensor) -> Any:
        recorder = self.recorder
        number = -1
        external = False
        if recorder is not None:
            number = recorder.saved(tensor)
            external = recorder.storage(tensor).external is not None
        leaf = tensor.requires_grad and tensor.is_leaf
        if leaf or external or type(tensor) is not Tensor or tensor.numel() * tensor.itemsize < SMALL_BYTES and recorder is None:
            return number, tensor.detach(), tensor._version, None
        with _paused(recorder):
            host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            host.copy_(tensor)
        return number, host, tensor._version, (weakref.ref(tensor), tensor.device)

    def unpack(self, handle: Any) -> Tensor:
        number, tensor, version, moved = handle
        recorder = self.recorder
        if recorder is not None and number >= 0:
            recorder.group = recorder.packs[number].group
            recorder.unpacking(number)
        if moved is None:
            if tensor._version != version:
                raise _modified(tensor, version)
            return tensor
        reference, device = moved
        origin = reference()
        if origin is not None and origin._version != version:
            raise _modified(origin, version)
        with _paused(recorder), torch.no_grad():
            back = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            back.copy_(tensor)
        if recorder is not None and number >= 0:
            recorder.restored(number, back)
        self.counts.fetched += 1
        return back

    def seal(self) -> None:
        pass


class _paused:
    """Hides what runs inside from a recorder."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        if self.recorder is not None:
            self.recorder.paused += 1

    def __exit__(self, *_: object) -> None:
        if self.recorder is not None:
            self.recorder.paused -= 1
