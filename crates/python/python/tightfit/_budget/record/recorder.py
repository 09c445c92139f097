"""Records one step: every operation under autograd, every tensor that autograd saves, and how long each storage lives.

A value is a storage and the number of writes to it so far, because operations may change a tensor in place after another one
has read it. A recording does not hold saved tensors, so a storage lives as long as the program itself needs it::

    timeline   conv   pack x   batch_norm   pack y   relu_   ..   unpack y   backward of relu   ..
    x          |---------------|  dies here, although it is saved
    unpacked                                                      |---------|  a second span of the same storage
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten

from .data import External, ModuleSaves, Operation, Pack, Storage, View
from .functions import Marked
from .inputs import other_layout
from .readers import is_sign, readers

__all__ = ["Other", "Packed", "Recorder", "has_storage"]

# Statistics that these operations change although their schema does not show it: positions of the arguments.
UNMARKED_WRITES = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
}


@dataclass(slots=True)
class _Running:
    """A hidden operation that is running: its inputs with their versions, and how many storages there were before."""

    operation: Operation
    inputs: list[tuple[Tensor, int]]
    first: int

    def read(self, value: tuple[int, int]) -> None:
        if value not in self.operation.reads:
            self.operation.reads.append(value)


class Other:
    """Stands for the function in an operation that is not one of PyTorch's."""

    namespace = "tightfit"

    def __init__(self, name: str) -> None:
        self._schema = SimpleNamespace(name=f"tightfit::{name}")

    def __repr__(self) -> str:
        return str(self._schema.name)


COMPILED = Other("compiled")
# Of PyTorch, but run where the recorder does not see its parts.
HIDDEN = Other("hidden")
SUMMED = Other("sum_of_gradients")


class Packed(tuple[Any, ...]):
    """The handle that autograd holds for a saved tensor while a step is recorded. Its first item is the number of the pack, or an object with it."""

    __slots__ = ()

    @property
    def number(self) -> int:
        first = self[0]
        return first if type(first) is int else int(first.number)


class Recorder(TorchDispatchMode):
    """Records while it is entered. The owner of the hooks calls ``saved`` and ``restored`` for packs and unpacks."""

    def __init__(
        self,
        flops: Callable[[Any, Any, Any, Any], float] | None = None,
        guard: Callable[[list[Tensor], list[Tensor]], None] | None = None,
    ) -> None:
        super().__init__()
        # Called with the tensors of each call, and with the tensors that it changes.
        self._guard = guard
        self.storages: list[Storage] = []
        self.operations: list[Operation] = []
        self.packs: list[Pack] = []
        # Packs that no backward pass reads, as their nodes show, and packs of which a backward pass reads only the signs.
        self.unread: set[int] = set()
        self.signs: set[int] = set()
        # For each such pack that the outputs of its module reveal: the module, and the number of the module's call.
        self.shown: dict[int, tuple[str, int]] = {}
        self._calls: dict[str, int] = {}
        # Calls of PyTorch functions, and the number of the running call; -1 for none.
        self.marked: list[Marked] = []
        self.current = -1
        # The mode that shows these calls, while a real step is recorded.
        self.marks: Any = None
        # Modules whose calls are not noted, because they call compiled parts, and PyTorch would trace the code that takes the notes.
        self.unnoted: set[str] = set()
        # The packs of each module call, and the module calls that have not ended, each with its name and the number of packs before it.
        self.saves: list[ModuleSaves] = []
        self._inside: list[tuple[str, int]] = []
        # The last packs, each with the number of autograd nodes at that time.
        self._packed: list[tuple[int, int]] = []
        self.timeline: list[tuple[str, int]] = []
        # The position in the timeline at which the model returned its outputs.
        self.given: int | None = None
        # Where the step's own backward pass begins at the earliest, and the packs that were unpacked before: a model may compute gradients inside
        # of its forward pass.
        self.outer = 0
        self.read_inside: set[int] = set()
        self.stage = "forward"
        self.group = ""
        self.paused = 0
        # Whether new storages are watched by weak references. The Python object of a storage counts as a use, so autograd then sums its gradient out
        # of place, which may change the last bits. A storage that is not watched is taken to live until its last use.
        self.watching = True
        self._unwatched: set[int] = set()
        self._of: dict[int, Storage] = {}
        self._watched: list[Any] = []
        self._flops = flops
        # The fake tensors of a rehearsal.
        self.made: list[weakref.ref[Tensor]] = []
        self._hidden: _Running | None = None
        self._finished = False

    def storage(self, tensor: Tensor, external: Any = None) -> Storage:
        """The storage of a tensor; a new number if it was not seen alive before."""
        key = torch._C._storage_address(tensor)
        found = self._of.get(key)
        if found is None:
            found = self._new(tensor, key, external)
        elif found.number in self._unwatched:
            found.spans[-1][1] = len(self.timeline) + 1
            found.bytes = max(found.bytes, _bytes_of(tensor))
        return found

    def _new(self, tensor: Tensor, key: int, external: Any = None) -> Storage:
        found = Storage(len(self.storages), tensor.untyped_storage().nbytes() if self.watching else _bytes_of(tensor), tensor.device, external)
        self.storages.append(found)
        if self.watching:
            self._attach(tensor.untyped_storage(), found)
        else:
            self._of[key] = found
            self._unwatched.add(found.number)
            found.spans.append([len(self.timeline), len(self.timeline) + 1])
            found.holders = 1
        return found

    def _number_of(self, tensor: Tensor) -> int:
        """The number of a tensor's storage; -1 if it was not seen."""
        found = self._of.get(torch._C._storage_address(tensor))
        return -1 if found is None else found.number

    def name(self, tensor: Tensor, what: str, which: Any) -> None:
        """Notes what a tensor is that exists before the step."""
        storage = self.storage(tensor)
        if storage.external is None:
            storage.external = what, which
        storage.named.append(External(what, which, self.view(tensor)))

    def _attach(self, raw: Any, storage: Storage) -> None:
        key = raw._cdata
        self._of[key] = storage
        if storage.holders == 0:
            storage.spans.append([len(self.timeline), -1])
        storage.holders += 1

        def died(_: Any) -> None:
            self._of.pop(key, None)
            storage.holders -= 1
            if storage.holders == 0:
                storage.spans[-1][1] = len(self.timeline)

        self._watched.append(weakref.ref(raw, died))

    def view(self, tensor: Tensor) -> View:
        """The tensor as a view of its storage as it is now."""
        storage = self.storage(tensor)
        return View(
            storage.number, storage.writes, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
        )

    def saved(self, tensor: Tensor) -> int:
        """Notes that autograd saves a tensor, and returns the number of this pack."""
        number = len(self.packs)
        self.packs.append(Pack(self.view(tensor), self.group, self.current))
        self._packed.append((number, torch._C._autograd._get_sequence_nr()))
        self.timeline.append(("pack", number))
        return number

    def returned_from(self, out: Any) -> None:
        """Notes which of the tensors that a call has saved no backward pass reads, and of which one reads signs alone."""
        for packed, reader in readers(out):
            if type(packed) is Packed:
                (self.signs if is_sign(reader) else self.unread).add(packed.number)

    def unpacking(self, number: int) -> None:
        """Notes that autograd needs a saved tensor again."""
        self.timeline.append(("unpack", number))

    def restored(self, number: int, tensor: Tensor) -> None:
        """Notes which tensor autograd got for a pack: its storage counts as the saved one."""
        view = self.packs[number].view
        storage = self.storages[view.storage]
        if self._hidden is not None:
            self._hidden.read((view.storage, view.writes))
        raw = tensor.untyped_storage()
        if self._of.get(raw._cdata) is not storage:
            self._attach(raw, storage)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return function(*args, **kwargs)
        flat, structure = tree_flatten((args, kwargs))
        arguments = [self.view(value) if has_storage(value) else value for value in flat]
        views = [value for value in arguments if isinstance(value, View)]
        reads = list(dict.fromkeys((view.storage, view.writes) for view in views))
        changed = _changed(function, args, kwargs)
        if self._guard is not None:
            self._guard([value for value in flat if isinstance(value, Tensor)], changed)
        out = function(*args, **kwargs)
        results = tree_flatten(out)[0]
        if not changed and not any(map(has_storage, results)):
            # A query, such as for the device.
            return out
        changes: list[int] = []
        for tensor in changed:
            storage = self.storage(tensor)
            if storage.number not in changes:
                storage.writes += 1
                changes.append(storage.number)
        if changes:
            self._write_saved(changes)
        known = {number for number, _ in reads}
        makes = [(number, self.storages[number].writes) for number in changes]
        outputs: list[View | None] = []
        device = None
        for value in results:
            if not has_storage(value):
                outputs.append(None)
                continue
            if type(value) is FakeTensor:
                self.made.append(weakref.ref(value))
            number = self._number_of(value)
            if number in self._unwatched and number not in known and number not in changes:
                # A new storage at the address of one that no longer exists.
                del self._of[torch._C._storage_address(value)]
            view = self.view(value)
            outputs.append(view)
            device = value.device
            if view.storage not in known and (view.storage, view.writes) not in makes:
                makes.append((view.storage, view.writes))
        flops = self._flops(function, args, kwargs, out) if self._flops is not None else 0.0
        self.add(
            Operation(
                function, arguments, structure, outputs, reads, makes, changes, self.stage, device, self.group, flops,
                self.current if self.stage == "forward" else -1,
            )
        )
        return out

    def _write_saved(self, changes: list[int]) -> None:
        """Updates packs of tensors that autograd saved for an operation before the operation wrote them."""
        now = torch._C._autograd._get_sequence_nr()
        self._packed = [(number, nodes) for number, nodes in self._packed if nodes == now]
        for number, _ in self._packed:
            pack = self.packs[number]
            if pack.view.storage in changes:
                pack.view = pack.view._replace(writes=self.storages[pack.view.storage].writes)

    def innermost(self) -> bool:
        """Whether this recorder is the first mode to see operations."""
        return not self.paused and _get_current_dispatch_mode() is self

    def recording(self) -> bool:
        """Whether operations are noted now."""
        return not self._finished and not self.paused and self._hidden is None

    def hiding(self) -> bool:
        """Whether the running code is hidden and recorded as one operation."""
        return self._hidden is not None

    def hide(self, inputs: list[Tensor], function: Other = COMPILED) -> None:
        """Begins a hidden part: this recorder does not see its calls, and records it as one operation."""
        views = [self.view(tensor) for tensor in inputs]
        reads = list(dict.fromkeys((view.storage, view.writes) for view in views))
        arguments: list[Any] = list(views)
        operation = Operation(function, arguments, None, [], reads, [], [], self.stage, None, self.group, 0.0)
        self._hidden = _Running(operation, [(tensor, tensor._version) for tensor in inputs], len(self.storages))
        if self.stage == "forward":
            # Its saved tensors are packed before it returns.
            self.add(operation)

    def outside(self, inputs: list[Tensor], run: Callable[[], Any], function: Other = COMPILED) -> Any:
        """Runs a hidden part with this recorder off, which PyTorch would otherwise see as a mode."""
        self.hide(inputs, function)
        self.__exit__(None, None, None)
        try:
            outputs = run()
        finally:
            self.__enter__()
        self.show([value for value in tree_flatten(outputs)[0] if isinstance(value, Tensor)])
        return outputs

    def show(self, outputs: list[Tensor]) -> None:
        """Ends the hidden part. Tensors that it saved or returned and that are new count as its results."""
        hidden, self._hidden = self._hidden, None
        assert hidden is not None
        operation = hidden.operation
        for tensor, version in hidden.inputs:
            storage = self.storage(tensor)
            if tensor._version != version and storage.number not in operation.changes:
                storage.writes += 1
                operation.changes.append(storage.number)
                operation.makes.append((storage.number, storage.writes))
        operation.outputs.extend(self.view(tensor) for tensor in outputs)
        for storage in self.storages[hidden.first :]:
            if storage.external is None:
                operation.makes.append((storage.number, storage.writes))
        if operation.stage != "forward":
            self.add(operation)

    def arrived(self, gradient: Tensor) -> None:
        """Notes a sum of gradients in a new storage, which autograd has computed while this recorder was off."""
        if self._finished or self.paused or not has_storage(gradient) or torch._C._storage_address(gradient) in self._of:
            return
        view = self.view(gradient)
        made = [(view.storage, view.writes)]
        self.add(Operation(SUMMED, [], None, [view], [], made, [], self.stage, gradient.device, self.group, 0.0))

    def stays(self, tensor: Tensor) -> Storage:
        """The storage of a tensor that outlives the step."""
        storage = self.storage(tensor)
        if storage.number in self._unwatched:
            storage.spans[-1][1] = -1
            self._unwatched.discard(storage.number)
        return storage

    def add(self, operation: Operation) -> None:
        """Notes an operation, which runs now."""
        self.operations.append(operation)
        self.timeline.append(("operation", len(self.operations) - 1))

    def called(self, name: str) -> None:
        """Notes the call of a module; what follows is named after it."""
        self.group = name
        self._inside.append((name, len(self.packs)))

    def returned(self, name: str, outputs: Any) -> None:
        """Notes that a module's call has ended."""
        call = self._calls[name] = self._calls.get(name, -1) + 1
        for packed, _ in readers(outputs):
            if type(packed) is Packed and self.packs[packed.number].group == name:
                self.shown[packed.number] = name, call
        # Others end here only where threads share the model.
        if self._inside and self._inside[-1][0] == name:
            self.saves.append(ModuleSaves(*self._inside.pop(), len(self.packs)))
        self.group = self._inside[-1][0] if self._inside else ""

    def drop_casts(self) -> None:
        """Ends the lives of casts of parameters, which autocast keeps until a program leaves it."""
        parameters = {storage.number for storage in self.storages if storage.external is not None and storage.external[0] == "parameter"}
        for operation in self.operations:
            if operation.name != "_to_copy" or not {number for number, _ in operation.reads} <= parameters:
                continue
            for number, _ in operation.makes:
                storage = self.storages[number]
                if storage.holders:
                    storage.holders, storage.spans[-1][1] = 0, len(self.timeline)

    def undo(self, operations: int, events: int) -> None:
        """Forgets everything after these numbers of operations and events."""
        del self.operations[operations:]
        del self.timeline[events:]
        for storage in self.storages:
            for span in storage.spans:
                span[:] = [min(place, events) for place in span]

    def _settle_stages(self) -> None:
        """Counts all that comes before the last saved tensor as forward. No call is noted after the first unpack, with which a pass is taken to end."""
        packs = [place for place, (event, _) in enumerate(self.timeline) if event == "pack"]
        first = next((place for place, (event, _) in enumerate(self.timeline) if event == "unpack"), len(self.timeline))
        if not packs or packs[-1] < first:
            return
        self.outer = packs[-1] + 1
        for event, number in self.timeline[first : self.outer]:
            if event == "operation":
                self.operations[number].stage, self.operations[number].call = "forward", -1
            elif event == "pack":
                self.packs[number].call = -1
            else:
                self.read_inside.add(number)

    def finish(self) -> None:
        """Ends every span that is still open; call it once, after the step."""
        self._settle_stages()
        for storage in self.storages:
            if storage.spans and storage.spans[-1][1] < 0:
                storage.spans[-1][1] = len(self.timeline) + 1
        self._finished = True
        self._watched.clear()
        self._of.clear()


def has_storage(value: Any) -> bool:
    """Whether a value is a tensor whose elements lie in one storage, by strides."""
    return isinstance(value, Tensor) and not other_layout(value)


def _bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor's storage, as far as its own elements reach, without an object for the storage."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.itemsize)


def _changed(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that a call changes in place."""
    schema = function._schema
    found: list[Tensor] = []
    positions = UNMARKED_WRITES.get(schema.name.split("::")[-1], ())
    if not schema.is_mutable and not positions:
        return found
    for position, argument in enumerate(schema.arguments):
        written = argument.alias_info is not None and argument.alias_info.is_write
        if not written and position not in positions:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        if position in positions and not _trains(args, kwargs):
            continue
        found.extend(item for item in (value if isinstance(value, list | tuple) else [value]) if has_storage(item))
    return found


def _trains(args: Any, kwargs: Any) -> bool:
    """Whether a batch normalization updates its running statistics."""
    value = args[5] if len(args) > 5 else kwargs.get("training", True)
    return bool(value)
