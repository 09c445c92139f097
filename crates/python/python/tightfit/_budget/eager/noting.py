"""Notes the calls that a pass makes, so that they can run again with the very arguments that they had.

A function mode sees each call of a function of PyTorch. A call is noted as a function and where its arguments come from::

    x = conv(image)        image: large, and saved by autograd        x: output 0 of call 1
    y = relu(x)            x: output 0 of call 1                      y: output 0 of call 2
    z = linear(y, w, b)    w: large, and saved; b: small, a copy      z: output 0 of call 3

Nothing is taken from another pass: the numbers, views and branches of a call are its own. A note holds no large tensor that autograd would
not hold. It lives as long as a saved tensor that was given up needs it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import batch_norm

from ..record.functions import CASTS, CHECKED, IN_PLACE, OPENED, SAME, STATISTICS, opened
from ..record.marks import Parts, is_small
from .slots import copy_of

if TYPE_CHECKING:
    from .slots import Slot

__all__ = ["Call", "Held", "Nest", "Noting", "Scratch", "Value", "is_cast", "settings", "view_of"]

# Arguments that are the same whenever they are read.
_PLAIN = frozenset(
    [
        bool, int, float, complex, str, type(None), slice, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
    ]
)  # fmt: skip
_grads = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling


class _CannotNote(Exception):
    """A call has an argument of which nobody knows whether it stays as it is."""


class Call:
    """A call of a function.

    Attributes
    ----------
    function, args, kwargs
        The call, with a :class:`Value`, :class:`Held` or :class:`Scratch` in place of each tensor, and a :class:`Nest` of each list.
    tensors, grads
        The references to its tensors, and whether each requires a gradient.
    flags, state
        Its kind, see `functions`; and the settings under which it ran.
    missing
        Large tensors from outside that nothing holds so far.
    ready
        Whether it can run again now: nothing that it needs is missing.
    slots
        Saved tensors that it makes again, weakly.
    packs
        How many tensors autograd saved during the call.
    """

    __slots__ = ("args", "flags", "function", "grads", "kwargs", "missing", "packs", "ready", "slots", "state", "tensors")

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    tensors: list[Any]
    grads: list[bool]
    flags: int
    state: Any
    missing: list[Held] | None
    ready: bool
    slots: list[Any]
    packs: int

    def makes_saved(self) -> bool:
        """Whether it saves the same tensors again: a call in place runs out of place instead, if it has an argument for that."""
        return not self.flags & IN_PLACE or "inplace" in (self.kwargs or {})

    def can_run(self) -> bool:
        """Whether everything that it needs is held, or can be made again."""
        if not self.ready:
            calls, seen = [self], set()
            while calls:
                call = calls.pop()
                if call.ready or id(call) in seen:
                    continue
                seen.add(id(call))
                if any(held.slot is None and held.base is None for held in call.missing or ()):
                    return False
                calls += [ref.call for ref in call.tensors if type(ref) is Value and not ref.is_held()]
            self.ready = True
        return True


class Value:
    """An output of a call: which of them, the tensor (weakly), and its version.

    `address` shows whether a program has given the tensor other bytes by `.data`. `base` is the tensor's bytes if autograd keeps them, `slot` the
    slot that answers for them otherwise, and `view` the tensor as a view of its storage.
    """

    __slots__ = ("address", "base", "call", "index", "slot", "tensor", "version", "view")

    def __init__(self, call: Call, index: int, tensor: Tensor) -> None:
        self.call, self.index = call, index
        self.tensor, self.version, self.address = weakref.ref(tensor), tensor._version, tensor.data_ptr()
        self.base: Tensor | None = None
        self.slot: Any = None
        self.view: Any = None

    def is_held(self) -> bool:
        """Whether its bytes stay as long as it is needed. A slot that is made again goes when autograd lets go of it."""
        return self.base is not None or self.slot is not None and type(self.slot) is not weakref.ref

    def found(self) -> Slot | None:
        """The slot that answers for its bytes, if that is still there."""
        slot = self.slot
        return slot() if type(slot) is weakref.ref else slot


class Held:
    """A tensor from outside of the noted calls: a copy if it is small, else what autograd saves of it.

    `transposed` says that `slot` or `base` has the tensor's matrix transposed.
    """

    __slots__ = ("address", "base", "is_copy", "slot", "tensor", "transposed", "version", "view")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version, self.address = weakref.ref(tensor), tensor._version, tensor.data_ptr()
        self.base: Tensor | None = None
        self.slot: Any = None
        self.view: Any = None
        self.is_copy = self.transposed = False


class Scratch:
    """Running statistics that a call updates, whose numbers it does not read: a rerun updates a copy."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


class Nest:
    """A list or tuple among the arguments."""

    __slots__ = ("items", "kind")

    def __init__(self, kind: Any, items: list[Any]) -> None:
        self.kind, self.items = kind, items


class Noting(Parts):
    """Notes the calls of one pass while it is entered."""

    def __init__(self, kinds: dict[Any, int], active: Any, device: torch.device) -> None:
        super().__init__()
        self.kinds = kinds
        self.active = active
        self.device = device
        self.kind = device.type
        self.state: tuple[Any, ...] = ()
        self.on = True
        # The call that runs, and the number of its first saved tensor.
        self.now: Call | None = None
        self.first = 0
        self.values: dict[int, Value] = {}
        # By storage, the identities of tensors that were outputs in it, the latest last.
        self.of_storage: dict[int, list[int]] = {}
        self.helds: dict[int, Held] = {}
        self.on_gpu = device.type == "cuda"
        self.stream = torch._C._cuda_getCurrentRawStream(device.index or 0) if self.on_gpu else 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flags = self.kinds.get(function)
        if flags is None or not self.on or not _grads() or _is_compiling():
            return function(*args, **kwargs) if kwargs else function(*args)
        if flags != SAME:
            if flags >= OPENED:
                return self._special(function, flags, args, kwargs or {})
            if flags & CASTS:
                args = self.cast(args)
                if self._has_stale_casts(args, kwargs):
                    return function(*args, **kwargs) if kwargs else function(*args)
        call = Call()
        pairs: list[tuple[Tensor, Any]] = []
        try:
            if flags & STATISTICS:
                call.args, call.kwargs = self._of_batch_norm(function, args, kwargs or {}, pairs)
            else:
                call.args, call.kwargs = self._refer_all(args, pairs), None
                if kwargs:
                    if "inplace" in kwargs:
                        flags = flags | IN_PLACE if kwargs["inplace"] else flags & ~IN_PLACE
                    if "out" in kwargs:
                        raise _CannotNote
                    call.kwargs = dict(zip(kwargs, self._refer_all(kwargs.values(), pairs), strict=True))
            if not pairs or flags & IN_PLACE and type(call.args[0]) is not Value:
                raise _CannotNote
        except _CannotNote:
            return function(*args, **kwargs) if kwargs else function(*args)
        call.function, call.flags, call.slots, call.missing = function, flags, [], None
        call.tensors = [ref for _, ref in pairs]
        call.grads = [tensor.requires_grad for tensor, _ in pairs]
        state = settings(self.kind, False)
        call.state = self.state = self.state if state == self.state else state
        active = self.active
        if active.pending:
            active.flush()
        drawn = self._generators() if flags & CHECKED else None
        before, self.now, self.first = self.now, call, active.k
        try:
            out = function(*args, **kwargs) if kwargs else function(*args)
        finally:
            self.now = before
            call.packs = active.k - self.first
        self._ended(call, pairs, out, drawn)
        return out

    def _has_stale_casts(self, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether autocast may use a cast of a parameter that it made before the parameter was written."""
        if not torch.is_autocast_enabled(self.kind):
            return False
        stale = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor) and value.is_leaf and value.requires_grad and value.dtype is torch.float32:
                version, active = value._version, self.active
                stale |= active.cast_before.get(id(value), version) != version or active.cast_now.setdefault(id(value), version) != version
        return stale

    def goes_on(self, bound: Any) -> bool:
        """Whether the context of autocast goes on from the pass before: it still has a cast that was made for this question."""
        before, bound.mark = bound.mark, None
        if not torch.is_autocast_enabled(self.kind) or not torch.is_autocast_cache_enabled():
            return False
        casts: list[Tensor] = []
        mark, other = before[:2] if before is not None else [torch.ones(1, 1, device=self.device, requires_grad=True) for _ in range(2)]

        def keep(tensor: Tensor) -> Tensor:
            casts.append(tensor.detach())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            torch.mm(mark, other)
        addresses = [cast.data_ptr() for cast in casts]
        bound.mark = mark, other, casts
        return before is not None and addresses == [cast.data_ptr() for cast in before[2]]

    def _special(self, function: Any, flags: int, args: Any, kwargs: Any) -> Any:
        if flags == OPENED:
            body = opened(function)
            with self:
                return body(*args, **kwargs)  # type: ignore[misc]
        if args and isinstance(args[0], Tensor) and args[0].layout is torch.strided:
            self._is_written_unseen(args[0])
        return function(*args, **kwargs)

    def _is_written_unseen(self, tensor: Tensor) -> None:
        """A program takes a tensor's `.data`: what it writes there changes no version. Notes keep the bytes as they were; what autograd has
        saved shows the writes, as in plain PyTorch."""
        storage = tensor.untyped_storage()._cdata

        def is_in(other: Tensor | None) -> bool:
            return other is not None and other.untyped_storage()._cdata == storage

        tables: tuple[dict[int, Any], ...] = (self.values, self.helds)
        for refs in tables:
            for key, ref in list(refs.items()):
                origin = ref.tensor()
                if not is_in(origin):
                    continue
                slot = ref.found() if type(ref) is Value else ref.slot
                if not (type(ref) is Held and ref.is_copy) and (ref.base is not None or slot is not None):
                    ref.base, ref.slot = copy_of(origin.detach()), None
                    ref.tensor, ref.version = weakref.ref(ref.base), ref.base._version
                    if type(ref) is Held:
                        ref.is_copy, ref.transposed = True, False
                del refs[key]
        self.active.keep_storage(storage)

    # Arguments.

    def _refer_all(self, given: Any, pairs: list[tuple[Tensor, Any]]) -> tuple[Any, ...]:
        """The references to arguments; adds each of their tensors to `pairs`, with its reference."""
        values, found = self.values, []
        for value in given:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                ref: Any = values.get(id(value))
                if ref is None or ref.version != value._version or ref.tensor() is not value or ref.address != value.data_ptr():
                    ref = self._outside(value)
                pairs.append((value, ref))
                found.append(ref)
            elif kind in _PLAIN:
                found.append(value)
            elif kind is list or kind is tuple or kind is torch.Size:
                found.append(Nest(tuple if kind is torch.Size else kind, list(self._refer_all(value, pairs))))
            else:
                raise _CannotNote
        return tuple(found)

    def _outside(self, tensor: Tensor) -> Held:
        held = self.helds.get(id(tensor))
        if held is not None and held.version == tensor._version and held.address == tensor.data_ptr() and held.tensor() is tensor:
            return held
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise _CannotNote
        held = Held(tensor)
        known = self.active.schedule.keeps.get(id(tensor))
        is_kept = known is not None and known[1] and known[0]() is tensor
        if not is_kept and is_small(tensor.dim(), tensor.numel() * tensor.itemsize, tensor.is_leaf):
            held.base, held.is_copy = self.active.small(tensor), True
        else:
            held.slot = self.active.slot_of(tensor)
            held.view = view_of(tensor)
        self.helds[id(tensor)] = held
        return held

    def _of_batch_norm(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pairs: list[tuple[Tensor, Any]]
    ) -> tuple[Any, Any]:
        """The arguments of a batch normalization: in training, it updates its statistics and does not read them."""
        places = (1, 2) if function is batch_norm else (3, 4)
        training = kwargs["training"] if "training" in kwargs else args[5] if len(args) > 5 else None
        if training is None or len(args) <= places[1]:
            raise _CannotNote
        found, scratches = list(args), {}
        for place in places if training else ():
            if args[place] is not None:
                if type(args[place]) is not Tensor:
                    raise _CannotNote
                found[place], scratches[place] = None, Scratch(args[place])
        referred = [scratches.get(place, value) for place, value in enumerate(self._refer_all(found, pairs))]
        return tuple(referred), dict(zip(kwargs, self._refer_all(kwargs.values(), pairs), strict=True))

    def _generators(self) -> Any:
        if self.on_gpu:
            return torch.cuda.default_generators[self.device.index or 0].get_offset(), None
        return 0, torch.get_rng_state()

    def _has_drawn(self, before: Any) -> bool:
        offset, state = self._generators()
        return bool(offset != before[0] or state is not None and not torch.equal(state, before[1]))

    # Results.

    def _ended(self, call: Call, pairs: list[tuple[Tensor, Any]], out: Any, drawn: Any) -> None:
        """Notes the outputs of a call, and decides about the tensors that it has saved."""
        outputs = out if type(out) is tuple or type(out) is list else (out,)
        active = self.active
        same = drawn is None or not self._has_drawn(drawn)
        if self.on_gpu and torch._C._cuda_getCurrentRawStream(self.device.index or 0) != self.stream:
            same = False
        target = pairs[0][0] if call.flags & IN_PLACE else None
        ready, keeps = True, active.schedule.keeps
        for tensor, ref in pairs:
            if type(ref) is Value:
                ready = ready and (ref.call.ready or ref.is_held())
            elif ref.is_copy:
                if id(tensor) not in keeps and tensor.is_leaf:
                    active.note_kept(tensor)
            elif ref.base is None and ref.slot is None and tensor is not target:
                call.missing = call.missing or []
                call.missing.append(ref)
            if tensor._version != ref.version and tensor is not target:
                # It wrote to a tensor that it was not known to write to.
                same = False
        if call.missing and same:
            active.find_missing(call, pairs)
        call.ready = same and ready and not call.missing
        if same:
            for index, made in enumerate(outputs):
                if type(made) is Tensor and (made is target or not self._is_known(made, pairs)):
                    self._add(Value(call, index, made), made)
        active.call_ended(call if same else None, pairs, outputs)

    def _is_known(self, made: Tensor, pairs: list[tuple[Tensor, Any]]) -> bool:
        """Whether a call returned a tensor that it was given, or that another call has made."""
        return self.value_of(made) is not None or any(tensor is made for tensor, _ in pairs)

    def _add(self, value: Value, tensor: Tensor) -> None:
        """Adds an output of a call to the noted values."""
        storage = tensor.untyped_storage()._cdata
        self.values[id(tensor)] = value
        known = self.of_storage.get(storage)
        if known is None:
            self.of_storage[storage] = [id(tensor)]
            return
        if len(known) > 8:
            # Addresses of storages that are gone are used again.
            known[:] = [one for one in known if self.values_of(storage, (one,))]
        known.append(id(tensor))

    def values_of(self, storage: int, among: Sequence[int]) -> list[Value]:
        """The noted outputs that are in a storage, of tensors with these identities."""
        found = []
        for one in among:
            value = self.values.get(one)
            there = value.tensor() if value is not None else None
            if value is not None and there is not None and there.untyped_storage()._cdata == storage:
                found.append(value)
        return found

    def value_of(self, tensor: Tensor) -> Value | None:
        """The noted output that a tensor is."""
        value = self.values.get(id(tensor))
        return value if value is not None and value.version == tensor._version and value.tensor() is tensor else None


def settings(kind: str, caches: bool | None = None) -> tuple[Any, ...]:
    """The settings that choose kernels: the type to which autocast casts, whether it keeps casts of parameters, which reruns do not, and how
    matrices and convolutions are computed."""
    return (
        kind,
        _autocast_dtype(kind) if _is_autocast(kind) else None,
        _keeps_casts() if caches is None else caches,
        _cublas_tf32(),
        _cudnn_tf32(),
        _deterministic(),
        _cudnn_deterministic(),
        _cudnn_benchmark(),
    )


# Looked up once: settings are read at every noted call.
_autocast_dtype, _is_autocast, _keeps_casts = torch.get_autocast_dtype, torch.is_autocast_enabled, torch.is_autocast_cache_enabled
_cublas_tf32, _cudnn_tf32 = torch._C._get_cublas_allow_tf32, torch._C._get_cudnn_allow_tf32
_deterministic, _cudnn_deterministic = torch._C._get_deterministic_algorithms, torch._C._get_cudnn_deterministic
_cudnn_benchmark = torch._C._get_cudnn_benchmark


def view_of(tensor: Tensor) -> tuple[Any, ...]:
    """A tensor as a view of its storage."""
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def is_cast(saved: Tensor, weight: Tensor) -> int:
    """Whether a saved tensor is a weight that autocast has cast: 1 if it is, -1 if transposed, else 0."""
    if saved.dtype is weight.dtype or saved.numel() != weight.numel():
        return 0
    node, transposed = saved.grad_fn, False
    if node is not None and node.name() == "TBackward0":
        node, transposed = node.next_functions[0][0], True
    if node is None or node.name() != "ToCopyBackward0":
        return 0
    before = node.next_functions[0][0]
    if before is None or getattr(before, "variable", None) is not weight:
        return 0
    return -1 if transposed else 1
