"""What is recorded of a step, as data: nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["External", "ModuleCall", "ModuleSaves", "Operation", "Pack", "Step", "Storage", "View", "external_of", "inside", "place"]


class View(NamedTuple):
    """A tensor as a window on a storage after so many writes to it."""

    storage: int
    writes: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class External(NamedTuple):
    """A tensor that exists before the step: what it is, its name or its place among the inputs, and its view."""

    what: str
    which: Any
    view: View


class ModuleCall(NamedTuple):
    """A call of a module that has tensors: its name, and whether it is in training."""

    name: str
    training: bool


class ModuleSaves(NamedTuple):
    """What a call of a module saves, with those in it: the packs from the first to before the end."""

    name: str
    first: int
    end: int


@dataclass(slots=True)
class Storage:
    """A storage: its bytes, the spans of the timeline in which it is alive, and what made it if the step did not.

    `named` are the tensors that exist before the step and lie in it, `graded` says that autograd follows one of these.
    """

    number: int
    bytes: int
    device: torch.device
    external: Any = None
    named: list[External] = field(default_factory=list)
    graded: bool = False
    writes: int = 0
    spans: list[list[int]] = field(default_factory=list)
    holders: int = 0


@dataclass(slots=True)
class Operation:
    """One call, with views in place of tensors.

    `layer` says that a layer of PyTorch made it, whose numbers are its own, and `graded` that autograd could follow it.
    """

    function: Any
    arguments: list[Any]
    structure: Any
    outputs: list[View | None]
    reads: list[tuple[int, int]]
    makes: list[tuple[int, int]]
    changes: list[int]
    stage: str
    device: torch.device | None
    group: str
    flops: float
    layer: bool = False
    graded: bool = True

    @property
    def name(self) -> str:
        """The operation's name, without its namespace and overload."""
        return str(self.function._schema.name.split("::")[-1])


@dataclass(slots=True)
class Pack:
    """What autograd saved: the view, whether it is a parameter, the module that ran, how many were
    called before, and what made the tensor."""

    view: View
    leaf: bool
    group: str
    calls: int
    lineage: tuple[Any, ...]


@dataclass
class Step:
    """A step file's content, and how its tensors and operations correspond to the recording.

    Attributes
    ----------
    data
        The content, ready for JSON.
    packs
        For each pack, its tensor and its operation; -1 where it has none.
    unpacks
        In order, the pack that is unpacked and the operation of that; -1 where it has none.
    recorded
        For each operation, the recorded one, or None.
    tensors
        The tensor of each (storage, writes).
    externals
        For tensors that exist before the step, what the program has in them.
    given
        Operations after which the model has given its outputs.
    proofs
        For saved tensors of which reruns are right only if more of their lineage is compared: so many nodes.
    witnesses
        For saved tensors that have no lineage: another that is compared before they are given up.
    """

    data: dict[str, Any]
    packs: list[tuple[int, int]]
    unpacks: list[tuple[int, int]]
    recorded: list[Operation | None]
    tensors: dict[tuple[int, int], int]
    externals: dict[int, list[External]]
    assumed: list[str] = field(default_factory=list)
    given: int = 0
    proofs: dict[int, int] = field(default_factory=dict)
    witnesses: dict[int, int] = field(default_factory=dict)


def external_of(named: list[External], view: View) -> External | None:
    """The tensor of those in a storage that a view is of: the one that is this view, or one that it lies in."""
    exact = (external for external in named if place(external.view) == place(view))
    around = (external for external in named if _covers(external.view, view))
    return next(exact, None) or next(around, None)


def inside(base: View, view: View) -> View | None:
    """A view of a tensor, from where that begins; None if it is the tensor as it is."""
    return None if place(base) == place(view) else view._replace(offset=view.offset - base.offset)


def place(view: View) -> Any:
    """A view of a storage, whatever was written to that."""
    return view.storage, view.shape, view.stride, view.offset, view.dtype


def _covers(base: View, view: View) -> bool:
    return base.dtype == view.dtype and base.offset <= view.offset and _end(view) <= _end(base)


def _end(view: View) -> int:
    return view.offset + int(sum((size - 1) * stride for size, stride in zip(view.shape, view.stride, strict=True)))
