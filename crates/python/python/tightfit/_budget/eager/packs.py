"""Decides what becomes of each tensor that autograd saves in a forward pass.

A tensor may be saved before it is written: it is decided when the operation that saves it has returned.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..._native import Handle, Slot, settle, unowned, view_of
from ..memory.masks import mask_of
from ..plan.pack_schedule import DROP, KEEP, PackSchedule
from ..plan.counts import Counts
from ..record.marks import is_small
from ..record.readers import is_sign, readers
from ..record.transforms import StepsAside
from .noting import Noting
from .slots import ALIGNMENT, copy_of
from .state import State
from .unread import Unread, drop_after

if TYPE_CHECKING:
    from torch import Tensor

    from ..memory.copies import Copies
    from ..memory.masks import Mask
    from ..plan.watch import Watch

__all__ = ["Packs"]

# A smaller tensor that the plan does not expect stays on the device.
HARMLESS_BYTES = 1 << 20
_nodes_made = torch._C._autograd._get_sequence_nr


def _stays(tensor: Tensor) -> bool:
    """Whether a saved tensor stays where it is, whatever the plan says: a parameter, or one without plain bytes."""
    if tensor.is_leaf and tensor.requires_grad or tensor.layout is not torch.strided or tensor.is_nested or type(tensor) is not torch.Tensor:
        return True
    return bool(tensor.is_conj() or tensor.is_neg())


class Packs(StepsAside):
    """The saved tensors of one forward pass under a plan."""

    # Of the models that run in it.
    state = State()

    def __init__(
        self, bound: PackSchedule, copies: Copies, arena: Callable[[Any, Copies], Tensor], counts: Counts, device: torch.device
    ) -> None:
        self.schedule = bound
        self.needs_hooks = bound.needs_hooks
        self.copies = copies
        self.arena = arena
        self.counts = counts
        self.kept = bound.kept
        self.known = len(bound.answers)
        self.order = bound.unpacks
        self.turns = len(bound.unpacks)
        self.k = 0
        self.unpack_index = 0
        self.sealed = False
        self.ordered = True
        self.host: Tensor | None = None
        self.slots: dict[int, Slot] = {}
        self.alive: dict[int, weakref.ref[Slot]] = {}
        self.inflight: dict[int, tuple[Tensor, Any]] = {}
        # Saved tensors by identity, if reruns read them or they are moved; entries count while the tensor is there.
        self.saved: dict[int, Slot] = {}
        # Handles that wait until the operation that saves them has returned, and how many nodes there were then.
        self.pending: list[tuple[Handle | None, Tensor]] = []
        self.nodes = 0
        self.released: set[int] = set()
        # Tensors of the plan whose place on the host is taken.
        self.placed: set[int] = set()
        self.unplanned_bytes = 0
        # The module that runs without hooks.
        self.without: str | None = None
        self.watch: Watch | None = None
        self.thread = threading.get_ident()
        self.lock = threading.RLock()
        self.signature: Any = None
        self.noting = Noting(bound.functions, self, device) if bound.noted else None
        # Whether the plan has calls noted now, and whether a module runs unwatched.
        self.notes = self.paused = False
        # How often each module that begins or ends a noted part was called.
        self.visits: dict[str, int] = {}
        # How often each module that shows what nobody reads has ended.
        self.looked: dict[str, int] = {}
        # Copies of small tensors, made at once when the pass began: by identity, the tensor, its version and address, and its copy.
        self.copied: dict[int, tuple[Any, tuple[int, int], Tensor]] = {}
        # Storages that the program may have written since then without new versions.
        self.unseen: set[int] = set()
        # Versions of parameters at which autocast may have kept casts of them: from before this pass, and from this pass.
        self.cast_before: dict[int, int] = {}
        self.cast_now: dict[int, int] = {}
        if self.noting is not None:
            self._copy_small()

    # Small tensors.

    def _copy_small(self) -> None:
        """Copies at once what the pass before copied one by one."""
        bound = self.schedule
        # Passes of other threads note more.
        tensors = [tensor for tensor in (place() for place in list(bound.small.values())) if tensor is not None]
        by_type: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            # Kernels are chosen by alignment too, so each copy has the allocator's alignment.
            if tensor.is_contiguous() and not tensor.storage_offset() and tensor.numel() * tensor.itemsize % ALIGNMENT == 0:
                by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for (dtype, device), group in by_type.items():
            if len(group) < 2:
                continue
            with torch.no_grad():
                flat = torch.empty(sum(tensor.numel() for tensor in group), dtype=dtype, device=device)
                views = torch._utils._unflatten_dense_tensors(flat, group)
                torch._foreach_copy_(list(views), group)
            for tensor, view in zip(group, views, strict=True):
                self.copied[id(tensor)] = tensor, (tensor._version, tensor.data_ptr()), view.detach()

    def small(self, tensor: Tensor) -> Tensor | None:
        """Copies a small tensor as it is now. Returns None for a larger tensor."""
        known = self.copied.get(id(tensor))
        if known is not None and known[0] is tensor and known[1] == (tensor._version, tensor.data_ptr()):
            if tensor.untyped_storage()._cdata not in self.unseen:
                return known[2]
        if not is_small(tensor.dim(), tensor.numel() * tensor.itemsize, tensor.is_leaf):
            return None
        if tensor.is_leaf and len(self.schedule.small) < 4096:
            self.schedule.small[id(tensor)] = weakref.ref(tensor)
        return copy_of(tensor.detach())

    # Forward.

    def pack(self, tensor: Tensor) -> Any:
        """Answers the k-th pack from the plan."""
        k = self.k
        self.k = k + 1
        if self.pending and _nodes_made() > self.nodes and (self.noting is None or not self.noting.runs):
            self.flush()
        # It is kept whatever it is; this is where most packs end.
        if k < self.known and tensor.numel() == self.kept[k]:
            noting = self.noting
            if noting is not None and noting.runs:
                self.pending.append((None, tensor))
            return tensor if tensor.is_leaf else tensor.detach(), tensor._version, k
        return self._undecided(tensor, k)

    def _undecided(self, tensor: Tensor, k: int) -> Any:
        """Answers a pack that is decided when its operation has returned."""
        answer = self.schedule.answers[k] if k < self.known else None
        if answer is not None and answer[2] is not None:
            self._act(answer[2])
        if answer is not None and answer[0] == KEEP and (
            tensor.numel() == answer[1] or tensor.numel() * tensor.itemsize < HARMLESS_BYTES
        ) or _stays(tensor) or self.state.holds(tensor):
            if self.noting is not None and self.noting.runs:
                self.pending.append((None, tensor))
            return unowned(tensor), tensor._version, k
        if answer is not None and answer[0] == DROP and (tensor.shape, tensor.dtype) == answer[4]:
            return Unread(self.schedule, self.counts, unowned(tensor), k, tensor)
        handle = Handle(k, tensor)
        slot = self.slots.get(answer[3]) if answer is not None and answer[0] != KEEP else None
        if slot is not None and slot.has(tensor):
            # The same value was decided before.
            handle.join(slot, tensor, self.noting)
            return handle
        self.pending.append((handle, tensor))
        self.nodes = _nodes_made()
        return handle

    def flush(self) -> None:
        """Decides what waits, now that its operation has returned."""
        settle(self)

    def call_ended(self, outputs: Any) -> None:
        """Looks at the outputs of a noted call."""
        if self.schedule.looks:
            drop_after(self.schedule, self.counts, "", outputs, False)
        if self.schedule.dropped:
            for packed, reader in readers(outputs):
                if type(packed) is Handle:
                    packed.reader = reader

    def note_kept(self, tensor: Tensor) -> None:
        """Remembers whether autograd saves a small tensor itself, which a call has read: if so, later passes need no copy of it."""
        storage = tensor.untyped_storage()._cdata
        kept = any(saved is tensor or saved.untyped_storage()._cdata == storage for _, saved in self.pending)
        self.schedule.keeps[id(tensor)] = weakref.ref(tensor), kept
        if kept:
            self.schedule.small.pop(id(tensor), None)

    def keep_storage(self, storage: int) -> None:
        """Keeps what was saved of a storage on the device, whatever the plan says."""
        self.flush()
        for reference in self.alive.values():
            slot = reference()
            origin = slot.origin() if slot is not None else None
            if slot is not None and origin is not None and origin.untyped_storage()._cdata == storage:
                slot.tensor, slot.kept, slot.view = origin.detach(), True, view_of(origin)
                slot.host = slot.ticket = slot.call = None

    def slot_of(self, tensor: Tensor) -> Slot | None:
        """The slot of a tensor that was saved before."""
        slot = self.saved.get(id(tensor))
        return slot if slot is not None and slot.origin() is tensor and slot.version == tensor._version else None

    @staticmethod
    def mask(tensor: Tensor, reader: Any) -> Mask | None:
        """The signs of a saved tensor, if these are all that its node reads."""
        return mask_of(tensor) if is_sign(reader) else None

    def _slot(self, number: int) -> Slot:
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = Slot(number)
            self.alive[number] = weakref.ref(slot)
        return slot

    def _offloaded(self, handle: Handle, tensor: Tensor) -> Slot:
        """Moves a saved tensor's storage to its place on the host."""
        number = self.schedule.answers[handle.k][3] if handle.k < self.known else -1
        slot = self._slot(number) if number >= 0 else Slot(-1)
        if slot.has_begun:
            if slot.has(tensor):
                handle.join(slot, tensor, self.noting)
                return slot
            # Two values at one place: this one gets another place.
            slot = Slot(-1)
        slot.begin(tensor)
        # A pass that does otherwise may save another value at the place of one that was moved.
        place = self.schedule.slots.get(number) if slot.number >= 0 and number not in self.placed else None
        self.placed.add(number)
        length = tensor.untyped_storage().nbytes()
        if place is not None and length <= place[1]:
            if self.host is None:
                self.host = self.arena(self, self.copies)
            slot.host = self.host[place[0] : place[0] + length]
        else:
            slot.host = torch.empty(length, dtype=torch.uint8)
            self.counts.fresh_bytes += length
        slot.tensor, slot.kept = tensor.detach(), True
        handle.join(slot, tensor, self.noting)
        self.saved[id(tensor)] = slot
        value = self.noting.value_in(tensor) if self.noting is not None else None
        if value is not None:
            self._answer_for(value, slot)
        slot.ticket = self.copies.out(tensor, slot.host)
        if number in self.released or slot.number < 0:
            self._release(slot)
        return slot

    @staticmethod
    def _answer_for(value: Any, slot: Slot) -> None:
        """Lets the bytes of a saved tensor on the host answer for a noted output in the same storage, of which the tensor may be a view."""
        whole = value.tensor()
        if whole is not None:
            value.slot, value.view = slot, view_of(whole)

    def _act(self, order: Any) -> None:
        for number in order.release:
            slot = self.slots.get(number) or self.living(number)
            if slot is None or not slot.has_begun:
                self.released.add(number)
            elif slot.tensor is not None:
                self._release(slot)
        for number in order.forget:
            self.slots.pop(number, None)

    def _release(self, slot: Slot) -> None:
        """Frees a tensor's bytes: once its copy is out, or once the calls that make it can run again."""
        tensor = slot.tensor
        if slot.ticket is not None or slot.host is not None:
            self.copies.wait(slot.ticket)
        elif slot.call is None or not slot.call.can_run():
            return
        if tensor is not None and slot.kept and tensor._version != slot.version:
            # Keep what was changed: its unpack raises.
            return
        slot.tensor, slot.kept = None, False

    def living(self, number: int) -> Slot | None:
        reference = self.alive.get(number)
        return None if reference is None else reference()

    def _move_unplanned(self, handle: Handle, tensor: Tensor) -> None:
        """Moves a tensor with which the plan's decision cannot be carried out to the host, unless it is small."""
        size = tensor.numel() * tensor.itemsize
        if size < HARMLESS_BYTES or tensor.requires_grad and tensor.is_leaf:
            return
        self.counts.unplanned += 1
        self.unplanned_bytes += size
        slot = Slot(-1)
        slot.begin(tensor)
        slot.host = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8)
        slot.tensor, slot.kept = tensor.detach(), True
        handle.join(slot, tensor, self.noting)
        value = self.noting.value_in(tensor) if self.noting is not None else None
        if value is not None and value.slot is None and value.base is None:
            self._answer_for(value, slot)
        slot.ticket = self.copies.out(tensor, slot.host)
        self._release(slot)
