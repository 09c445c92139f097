"""Returns saved tensors in the backward pass: from the device, from the host, or by calls that run again.

The unpacks are the backward pass's clock. A plan says at which of them tensors are fetched, or dropped because another rerun makes them again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..._native import Rerun
from ..plan.unread import blank
from ..record.readers import is_reading, is_sign
from ..trace import rerunning
from .again import run_again
from .packs import Packs
from .slots import laid_out, modified, of_view
from .unread import Unread, give

if TYPE_CHECKING:
    from torch import Tensor

    from ..._native import Slot

__all__ = ["Unpacks"]


class Unpacks(Packs):
    """The same, and the backward pass of its graph."""

    def seal(self) -> None:
        """Ends the forward pass."""
        raise NotImplementedError

    def unpack(self, handle: Any) -> Tensor:
        """Returns a saved tensor."""
        if type(handle) is tuple:
            tensor, version, k = handle
            self._tick(k)
            if tensor._version != version:
                raise modified(tensor, version)
            return tensor
        if not self.sealed:
            self.seal()
        elif self.pending:
            # A forward pass goes on after gradients inside of it.
            self.flush()
        self._tick(handle.k)
        if type(handle) is Unread:
            return give(handle, 2)
        slot = handle.slot
        if slot is None:
            tensor = handle.tensor
            if tensor._version != handle.version:
                raise modified(tensor, handle.version)
            return tensor
        with self.lock:
            reader = handle.reader
            if reader is not None and slot.number in self.schedule.dropped and slot.tensor is None:
                if is_reading(reader):
                    self.check(slot)
                    if not is_sign(reader):
                        self.counts.dropped += 1
                        return blank(handle.view or slot.view, self.copies.device)
                    if slot.mask is not None and handle.view is None:
                        self.counts.masked += 1
                        return slot.mask.tensor()
                else:
                    self.schedule.is_asked = True
            tensor = self.content(slot)
        made = self.viewed(slot, tensor, handle.view)
        # The slot's own tensor is not autograd's to write to.
        return made.detach() if made is tensor else made

    def viewed(self, slot: Slot, tensor: Tensor, view: Any) -> Tensor:
        """A view of a slot's storage; None for the tensor that was packed first."""
        if slot.kept or slot.host is not None:
            return of_view(tensor, view or slot.view)
        if view is None or view == slot.view:
            return tensor
        shape, stride, offset, dtype = view
        tensor = laid_out(tensor, slot.view[1])
        return of_view(tensor, (shape, stride, offset - slot.view[2] + tensor.storage_offset(), dtype))

    def _tick(self, k: int) -> None:
        index = self.unpack_index
        if index < self.turns and self.order[index] == k:
            self.unpack_index = index + 1
            if index in self.schedule.busy:
                self._due(index)
        elif k >= 0:
            self._jump(k)

    def _jump(self, k: int) -> None:
        """Moves the backward pass's clock to an unpack that is not the next one."""
        turns = self.schedule.turns.get(k)
        if turns is None:
            return
        # After the last index, the graph was retained and runs again.
        after = self.unpack_index if self.unpack_index < self.turns else 0
        index = next((later for later in turns if later >= after), turns[0])
        if index != after and self.ordered:
            self.ordered = False
            self.counts.out_of_order += 1
        self.unpack_index = index + 1
        if index in self.schedule.busy:
            self._due(index)

    def _due(self, index: int) -> None:
        """Drops tensors that another rerun makes again, and fetches tensors that the plan fetches now."""
        bound = self.schedule
        if index == 0:
            self.counts.elsewhere += threading.get_ident() != self.thread
            if self.watch is not None:
                self.watch.backward_began()
        for number in bound.drop.get(index, ()):
            slot = self.living(number)
            if slot is not None and slot.call is not None and slot.call.can_run():
                slot.tensor, slot.kept = None, False
        for number in bound.fetch.get(index, ()):
            slot = self.living(number)
            # One whose bytes never went out is there, or is made when it is asked for.
            if slot is not None and slot.tensor is None and slot.host is not None and id(slot) not in self.inflight:
                self._fetch(slot)
        if index == self.turns - 1:
            bound.ended += 1
            if self.watch is not None:
                self.watch.ended()

    def _fetch(self, slot: Slot) -> None:
        assert slot.host is not None
        device = self.copies.room(slot.host.numel())
        self.inflight[id(slot)] = device, self.copies.into(slot.host, device)
        self.counts.fetched += 1

    @staticmethod
    def check(slot: Slot) -> None:
        """Raises if what was saved has been written to since."""
        origin = slot.origin()
        if origin is not None and origin._version != slot.version:
            raise modified(origin, slot.version)

    def content(self, slot: Slot) -> Tensor:
        """A slot's tensor, on the device; of one that was offloaded, its storage."""
        self.check(slot)
        if slot.tensor is not None:
            if slot.kept and slot.tensor._version != slot.version:
                # Changed by a program that has let go of it since.
                raise modified(slot.tensor, slot.version)
            return slot.tensor
        if slot.host is not None:
            if id(slot) not in self.inflight:
                if slot.number in self.schedule.slots and slot.number not in self.schedule.on_demand:
                    self.counts.late += 1
                self._fetch(slot)
            device, ticket = self.inflight.pop(id(slot))
            self.copies.wait(ticket)
            slot.tensor = device
            return device
        if slot.call is None:
            raise RuntimeError(f"tightfit: saved tensor {slot.number} was lost; please report this")
        rerun = Rerun(self, slot, self.schedule.stay.get((slot.number, slot.round), frozenset()))
        with rerunning(slot.call):
            run_again(rerun, slot.call, self.copies.device.type, self.counts)
        assert slot.tensor is not None
        return slot.tensor

    def __del__(self) -> None:
        # Copies into bytes that are freed now must have ended before the compute stream uses these again.
        for _, ticket in self.inflight.values():
            self.copies.wait(ticket)
