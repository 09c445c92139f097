"""What is recorded of a step, as data: nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Operation", "Pack", "Step", "Storage", "View"]


class View(NamedTuple):
    """A tensor as a window on a storage after so many writes to it."""

    storage: int
    writes: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(slots=True)
class Storage:
    """A storage: its bytes, the spans of the timeline in which it is alive, and what made it if the step did not."""

    number: int
    bytes: int
    device: torch.device
    external: Any = None
    writes: int = 0
    spans: list[list[int]] = field(default_factory=list)
    holders: int = 0


@dataclass(slots=True)
class Operation:
    """One call, with views in place of tensors."""

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
    lineage: tuple[type, ...]


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
        For tensors that exist before the step, what they are.
    given
        Operations after which the model has given its outputs.
    """

    data: dict[str, Any]
    packs: list[tuple[int, int]]
    unpacks: list[tuple[int, int]]
    recorded: list[Operation | None]
    tensors: dict[tuple[int, int], int]
    externals: dict[int, tuple[str, Any]]
    assumed: list[str] = field(default_factory=list)
    given: int = 0
