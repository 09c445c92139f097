"""A recorded step as data: nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["External", "ModuleSaves", "Operation", "Pack", "Step", "Storage", "View"]


class View(NamedTuple):
    """A tensor as a window on a storage after a number of writes to it."""

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


class ModuleSaves(NamedTuple):
    """The packs of a module's call and of the modules in it: from the first pack to before the end."""

    name: str
    first: int
    end: int


@dataclass(slots=True)
class Storage:
    """A storage: its bytes, the spans of the timeline in which it is alive, and what made it if the step did not.

    `named` are the tensors that exist before the step and lie in it.
    """

    number: int
    bytes: int
    device: torch.device
    external: Any = None
    named: list[External] = field(default_factory=list)
    writes: int = 0
    spans: list[list[int]] = field(default_factory=list)
    holders: int = 0


@dataclass(slots=True)
class Operation:
    """One call, with views in place of tensors.

    `call` is the number of the PyTorch function call that it belongs to; -1 if it belongs to no noted call.
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
    call: int = -1

    @property
    def name(self) -> str:
        """The operation's name, without its namespace and overload."""
        return str(self.function._schema.name.split("::")[-1])


@dataclass(slots=True)
class Pack:
    """A tensor that autograd saved: the view, the module that ran, and the call of a function that saved it."""

    view: View
    group: str
    call: int


@dataclass
class Step:
    """A step file's content, and how its tensors and operations correspond to the recording.

    Attributes
    ----------
    data
        The content, ready for JSON.
    packs
        For each pack, its tensor and its operation, or -1 for none.
    unpacks
        For each unpack, in order: its pack and its operation, or -1 for none.
    recorded
        For each operation, the recorded one, or None.
    tensors
        The tensor of each (storage, writes).
    externals
        For each tensor that exists before the step: the parameters, inputs and others in it.
    functions
        The functions that may be called again, see `functions`.
    given
        The number of operations after which the model returns its outputs.
    parts
        For each operation of the step, the recorded operations that it combines. A function call is one operation.
    dropped
        Tensors that autograd saves but no backward pass reads, each with the operations that recompute it. This step does not save them.
    masked
        The dropped tensors whose signs are read. The signs are saved as bits.
    """

    data: dict[str, Any]
    packs: list[tuple[int, int]]
    unpacks: list[tuple[int, int]]
    recorded: list[Operation | None]
    tensors: dict[tuple[int, int], int]
    externals: dict[int, list[External]]
    functions: dict[Any, int]
    assumed: list[str] = field(default_factory=list)
    given: int = 0
    parts: list[list[Operation]] = field(default_factory=list)
    dropped: dict[int, list[int]] = field(default_factory=dict)
    masked: set[int] = field(default_factory=set)
