"""A plan as orders for each pack and unpack of a step, by number; `bind` makes them."""

from __future__ import annotations

import weakref
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .simulate import Outcome

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["DROP", "KEEP", "LEAF", "OFFLOAD", "REBUILD", "PackSchedule", "Expected", "Look", "Order"]

KEEP, LEAF, OFFLOAD, REBUILD, DROP = range(5)


class Order(NamedTuple):
    """Other actions at a pack: slots whose offload ends here, and slots that later packs do not need."""

    release: tuple[int, ...]
    forget: tuple[int, ...]


class Expected(NamedTuple):
    """The expected shape and type of a tensor that is not simply kept. If the tensor differs, its decision is not carried out."""

    shape: torch.Size
    dtype: torch.dtype


class Look(NamedTuple):
    """The saved bytes of one call of a module: dropped bytes, and bytes of tensors that are reduced to their signs."""

    dropped: int
    masked: int


@dataclass
class PackSchedule:
    """A plan bound to the packs and unpacks of a step.

    Attributes
    ----------
    answers
        For each pack: its action, its number of elements, other actions at this pack, its tensor, and the expected shape and type.
    kept
        For each pack that is kept, without other actions: its number of elements; -1 for other packs. Most packs read only this list.
    at_end
        The actions at the end of the forward pass.
    functions
        The functions that may be called again, see `functions`.
    noted
        Modules whose calls are noted; "" is the model itself.
    switches
        Modules at which the noting of calls begins (True) or ends (False).
    quiet
        Modules whose saved tensors are all kept, or dropped when the module ends. They run without hooks on saved tensors.
    flushes
        Modules without notes whose end shows that their last operation has returned.
    needs_hooks
        Whether any tensor is offloaded, recomputed, or read by a rerun.
    places
        For each module in `switches` or `quiet`, and for each of its calls: its first pack, and the first pack after it.
    unpacks
        The pack that is unpacked at each turn of the backward pass, for packs with hooks.
    fetch, drop, busy
        By turn: tensors to fetch, tensors to drop because another rerun precedes their next reader, and the turns that have either.
    on_demand
        Offloaded tensors that the plan fetches no earlier than their first reader.
    rounds
        The number of reruns of each recomputed tensor.
    dropped, masked
        Tensors that no backward pass reads, which noted calls recompute for any other reader; and those of them whose signs are kept as bits.
    looks
        For each module whose outputs show which of its saved tensors stay unread, so that no call is noted for them: the bytes of each of its calls.
    ended, is_asked
        The number of backward passes that have ended, and whether anything other than a dropped tensor's own node has asked for it.
    stay
        By tensor and number of earlier reruns: the tensors that stay on the device after the next rerun.
    convolves
        Whether reruns compute convolutions.
    slots
        The offset of each offloaded tensor in the host arena, and its bytes.
    host_bytes
        Length of the arena.
    small
        Weak references to small tensors that earlier passes copied. The next pass copies them in advance.
    keeps
        Weak references to small tensors that calls read, and whether autograd saved them at the time.
    saved_names
        Parameters that autograd saves itself, by name.
    outcome
        The prediction.
    """

    answers: list[tuple[int, int, Order | None, int, Expected]] = field(default_factory=list)
    kept: array[int] = field(default_factory=lambda: array("q"))
    at_end: Order = Order((), ())
    functions: dict[Any, int] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)
    switches: dict[str, bool] = field(default_factory=dict)
    quiet: set[str] = field(default_factory=set)
    flushes: set[str] = field(default_factory=set)
    needs_hooks: bool = True
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    unpacks: list[int] = field(default_factory=list)
    turns: dict[int, list[int]] = field(default_factory=dict)
    fetch: dict[int, list[int]] = field(default_factory=dict)
    on_demand: set[int] = field(default_factory=set)
    drop: dict[int, list[int]] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    rounds: dict[int, int] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    masked: frozenset[int] = frozenset()
    looks: dict[str, list[Look]] = field(default_factory=dict)
    ended: int = 0
    is_asked: bool = False
    stay: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    convolves: bool = False
    leaves: dict[int, list[int]] = field(default_factory=dict)
    kinds: dict[int, int] = field(default_factory=dict)
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    keep_until_filled: set[int] = field(default_factory=set)
    host_bytes: int = 0
    small: dict[int, Any] = field(default_factory=dict)
    keeps: dict[int, Any] = field(default_factory=dict)
    saved_names: set[str] = field(default_factory=set)
    decisions: dict[int, dict[str, Any]] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)

    def expect(self, module: nn.Module) -> None:
        """Looks up the parameters that autograd saves itself: the first pass needs no copies of them."""
        for name, parameter in module.named_parameters():
            if name in self.saved_names:
                self.keeps[id(parameter)] = weakref.ref(parameter), True
