"""Carries out a plan through saved-tensor hooks: one object for each forward pass and the backward pass of its graph.

Autograd holds a handle for every tensor that it saves. A handle refers to a slot, a slot that is rebuilt refers to the slots
that its rerun reads, and whatever nobody refers to is freed: so nothing outlives the graph, however that ends.

PyTorch does not check for in-place writes to what hooks pack. Versions are compared here instead, at unpack and before every
rerun, for every tensor that is still alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .bound import KEEP, LEAF, OFFLOAD, Bound, Expected
from .lineage import UNNAMED, lineage
from .replay import rebuild
from .slots import Slot, modified, of_view, unowned

if TYPE_CHECKING:
    from torch import Tensor

    from .copies import Copies
    from .entered import Without
    from .safe import SafePass
    from .unhooked import Stretch
    from .watch import Watch

__all__ = ["Pass"]

# A smaller tensor that is kept may have another form than the recorded one.
HARMLESS_BYTES = 1 << 20


def _differs_harmlessly(tensor: Tensor) -> bool:
    """Whether a kept tensor, which is right whatever it is, may have another size than the recorded one and the plan still holds: what
    libraries note for themselves, such as random states and reserved bytes, has another form on fake tensors."""
    return str(tensor.dtype) == "torch.uint8" or tensor.numel() * tensor.itemsize < HARMLESS_BYTES


class Pass:
    """One forward pass under a plan."""

    def __init__(
        self,
        bound: Bound,
        copies: Copies,
        arena: Callable[[Pass, Copies], Tensor],
        safe: SafePass,
        given: list[Tensor],
        borders: set[Any],
    ) -> None:
        self.bound = bound
        self.copies = copies
        self.arena = arena
        # The tensors that exist before the step, in the plan's order, and the number of each.
        self.given = given
        self.numbers = {id(tensor): number for number, tensor in enumerate(given)}
        # Their bytes: a program may give a parameter others before the backward pass, by `.data`, of which no version tells.
        self.bytes = [tensor.detach() for tensor in given]
        # The nodes that made the inputs.
        self.borders = borders
        # What takes the tensors that the plan does not know.
        self.safe = safe
        self.counts = safe.counts
        self.expected = bound.answers
        self.kept = bound.kept
        # Packs that the plan knows: none any more, once it was left.
        self.known = len(bound.answers)
        self.order = bound.unpacks
        self.turns = len(bound.unpacks)
        self.k = 0
        self.calls = 0
        # The stretch without hooks on saved tensors that it is in.
        self.without: Without | None = None
        self.turn = 0
        self.lost = False
        self.sealed = False
        self.ordered = True
        self.host: Tensor | None = None
        self.slots: dict[int, Slot] = {}
        self.alive: dict[int, weakref.ref[Slot]] = {}
        self.inflight: dict[int, tuple[Tensor, Any]] = {}
        self.externals: list[tuple[Tensor, int]] = []
        # Where it left the plan first, in words; and what watches its memory.
        self.differs = ""
        # What nodes of the graph are and follow, which lineages share: see `lineage`.
        self.nodes: dict[Any, Any] = {}
        self.watch: Watch | None = None
        self.thread = threading.get_ident()
        self.signature: Any = None

    # Forward.

    def pack(self, tensor: Tensor) -> Any:
        """Answers the k-th pack from the plan."""
        k = self.k
        self.k = k + 1
        # It is kept whatever it is, so its size is enough to know.
        if k < self.known and tensor.numel() == self.kept[k]:
            # As `unowned` gives it; this is where most packs end.
            return tensor if tensor.is_leaf else tensor.detach(), tensor._version, k
        return self._decided(tensor, k)

    def _decided(self, tensor: Tensor, k: int) -> Any:
        """Answers a pack that has more to it."""
        if k >= self.known:
            return self._stranger(tensor)
        kind, numel, order, number, expected = self.expected[k]
        if order is not None:
            self._act(order)
        if kind == KEEP:
            if tensor.numel() != numel and not _differs_harmlessly(tensor):
                return self._stranger(tensor)
            return unowned(tensor), tensor._version, k
        slot = self._slot(number)
        if (
            tensor.shape != expected.shape
            or tensor.stride() != expected.stride
            or tensor.dtype is not expected.dtype
            or tensor.storage_offset() != expected.offset
            or (kind != OFFLOAD and expected.calls != self.calls)
            or not self._is_expected(tensor, slot, expected)
        ):
            return self._stranger(tensor)
        return self._managed(tensor, kind, slot, order, k)

    def _is_expected(self, tensor: Tensor, slot: Slot, expected: Expected) -> bool:
        """Whether a tensor is the one that was recorded there, as far as its storage or what made it tell."""
        if slot.storage is not None:
            # Another view of the storage was packed before, and compared then.
            return slot.storage() is tensor.untyped_storage()
        if expected.lineage is None:
            return True
        return lineage(tensor, self.borders, self._number, self.nodes, expected.nodes) == expected.lineage

    def _number(self, tensor: Tensor) -> int:
        """The number of a tensor that exists before the step."""
        return self.numbers.get(id(tensor), UNNAMED)

    def called(self, name: str, training: bool) -> None:
        """Notes the call of a module. Another one than recorded may have the same shapes, but not the same parameters; and in evaluation,
        normalization is another."""
        if name not in self.bound.followed:
            # Another plan of the model follows it.
            return
        at = self.calls
        self.calls = at + 1
        calls = self.bound.calls
        if at >= len(calls) or calls[at] != (name, training):
            if not self.lost:
                before = calls[at].name if at < len(calls) else name
                mode = "in training" if training else "in evaluation"
                self._leave(f"in module '{name}', " + (f"where '{before}' was recorded" if before != name else f"which is now {mode}"))

    def begins(self, name: str) -> Stretch | None:
        """The stretch without hooks that begins with a call of a module, if one does."""
        stretch = self.bound.unhooked.get(self.k)
        return stretch if stretch is not None and stretch.begins == name and self.without is None and not self.lost else None

    def ends(self, stretch: Stretch, nodes: int) -> None:
        """Goes on behind a stretch, in which so many nodes were made."""
        self.without, self.k = None, stretch.end
        if not stretch.is_usual(nodes, self.watch is not None):
            self._hook_again(stretch)

    def _hook_again(self, stretch: Stretch) -> None:
        """Lets later passes have hooks in a stretch after all: these see whether a program takes another path."""
        self.bound.unhooked.pop(stretch.first, None)

    def _leave(self, where: str) -> None:
        """Leaves the plan: from here on, its order does not hold."""
        self.differs = f"first {where}"
        self.lost = True
        self.known = 0

    def _managed(self, tensor: Tensor, kind: int, slot: Slot, order: Any, k: int) -> Any:
        number = slot.number
        if slot.origin is not None:
            if slot.version != tensor._version:
                return self._stranger(tensor)
            return slot, -1, k
        slot.origin = weakref.ref(tensor)
        slot.version = tensor._version
        slot.storage = weakref.ref(tensor.untyped_storage())
        if kind == LEAF:
            slot.keep(tensor)
        elif kind == OFFLOAD:
            place, size = self.bound.slots[number]
            length = tensor.untyped_storage().nbytes()
            if length > size:
                slot.keep(tensor)
                return slot, -1, k
            if self.host is None:
                self.host = self.arena(self, self.copies)
            slot.host = self.host[place : place + length]
            slot.ticket = self.copies.out(tensor, slot.host)
            if order is not None and number in order.release:
                self.copies.wait(slot.ticket)
            else:
                slot.keep(tensor)
        elif number in self.bound.keep_until_filled:
            slot.keep(tensor)
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
            slot = self.slots.get(number) or self.living(number)
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
        slot.tensor, slot.kept = None, False

    def living(self, number: int) -> Slot | None:
        reference = self.alive.get(number)
        return None if reference is None else reference()

    def _stranger(self, tensor: Tensor) -> Any:
        """Moves a tensor that the plan does not know to the host."""
        if not self.lost:
            what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            made = f" of {tensor.grad_fn.name()}" if tensor.grad_fn is not None else ""
            self._leave(f"at saved tensor {self.k - 1}, {what}{made}")
        self.counts.strangers += 1
        return self.safe.pack(tensor), -2, -1

    def seal(self) -> None:
        """Ends the forward pass."""
        if self.sealed:
            return
        self.sealed = True
        if self.without is not None:
            # The module that ends it did not end: there was an exception, or the program has another one in its place.
            self._hook_again(self.without.stretch)
        self._act(self.bound.at_end)
        if self.lost or self.k < self.known:
            # Releases that were due after the last pack never came.
            for reference in self.alive.values():
                slot = reference()
                if slot is not None and slot.tensor is not None and slot.ticket is not None:
                    self._release(slot)
        self.slots.clear()
        self.counts.packs += self.k
        self.externals = [(tensor, tensor._version) for tensor in self.bytes]
        self.given, self.bytes = [], []
        self.numbers = {}
        self.borders = set()
        self.nodes = {}
        if self.watch is not None:
            self.watch.forward_ended()

    # Backward.

    def unpack(self, handle: Any) -> Tensor:
        """Gives a saved tensor back."""
        what, version, k = handle
        turn = self.turn
        if turn < self.turns and self.order[turn] == k:
            self.turn = turn + 1
            if turn in self.bound.busy:
                self._due(turn)
        elif k >= 0:
            self._jump(k)
        if version >= 0:
            if what._version != version:
                raise modified(what, version)
            return what
        if version == -2:
            return self.safe.unpack(what)
        if not self.sealed:
            self.seal()
        tensor = self.content(what)
        made = of_view(tensor, self.expected[k][4])
        # The slot's own tensor is not autograd's to write to.
        return made.detach() if made is tensor else made

    def _jump(self, k: int) -> None:
        """Moves the backward pass's clock to an unpack that is not the next one."""
        turns = self.bound.turns.get(k)
        if turns is None:
            return
        # After the last turn, the graph was retained and runs again.
        after = self.turn if self.turn < self.turns else 0
        turn = next((later for later in turns if later >= after), turns[0])
        if turn != after and self.ordered:
            self.ordered = False
            self.counts.out_of_order += 1
        self.turn = turn + 1
        if turn in self.bound.busy:
            self._due(turn)

    def _due(self, turn: int) -> None:
        """Lets go of what another rerun makes anew, and fetches what the plan fetches now."""
        bound = self.bound
        if turn == 0:
            self.counts.elsewhere += threading.get_ident() != self.thread
            if self.watch is not None:
                self.watch.backward_began()
        for number in bound.drop.get(turn, ()):
            slot = self.living(number)
            if slot is not None and slot.leaves is not None:
                slot.tensor = None
        for number in bound.fetch.get(turn, ()):
            slot = self.living(number)
            # One whose bytes never went out is there, or is made when it is asked for.
            if slot is not None and slot.tensor is None and slot.host is not None and number not in self.inflight:
                self._fetch(slot)
        if turn == self.turns - 1 and self.watch is not None:
            self.watch.ended()

    def _fetch(self, slot: Slot) -> None:
        assert slot.host is not None
        device = self.copies.room(slot.host.numel())
        self.inflight[slot.number] = device, self.copies.into(slot.host, device)
        self.counts.fetched += 1

    def content(self, slot: Slot) -> Tensor:
        """A slot's tensor, on the device."""
        origin = slot.origin() if slot.origin is not None else None
        if origin is not None and origin._version != slot.version:
            raise modified(origin, slot.version)
        if slot.tensor is not None:
            if slot.kept and slot.tensor._version != slot.version:
                # Changed by a program that has let go of it since.
                raise modified(slot.tensor, slot.version)
            return slot.tensor
        if slot.host is not None:
            number = slot.number
            if number not in self.inflight:
                planned = number in self.bound.slots and self.bound.decisions[number]["prefetch_before"] is not None
                if planned and number not in self.bound.on_demand:
                    self.counts.late += 1
                self._fetch(slot)
            device, ticket = self.inflight[number]
            self.copies.wait(ticket)
            del self.inflight[number]
            slot.tensor = device
            return device
        rebuild(self, slot)
        assert slot.tensor is not None
        return slot.tensor

    def __del__(self) -> None:
        # Copies into bytes that are freed now must have ended before the compute stream uses these again.
        for _, ticket in self.inflight.values():
            self.copies.wait(ticket)
