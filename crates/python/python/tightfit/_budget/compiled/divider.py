"""The interface between compilers and plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import fx

from .moves import Link

__all__ = ["Divider"]


class Divider(Protocol):
    """Divides a joint graph."""

    identity: Any
    """Its divisions depend on this alone."""
    extra: dict[str, int]
    """By the name of a node, the bytes that it uses while it runs, in addition to its operands and results."""
    us: dict[str, float]
    """By the name of a node, the time of its kernel in microseconds."""
    memory: float
    """Bytes per microsecond that fused kernels read and write."""

    @property
    def link(self) -> Link:
        """The rates of copies."""

    def divide(self, module: fx.GraphModule, inputs: Any, **others: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and backward graphs."""

    def keeps(self, is_backward: bool, peak: int) -> bool:
        """Whether the division is kept, given the bytes that Inductor needs for one of its graphs. If not, `divide` is called once more."""

    def room(self, is_backward: bool) -> float:
        """The bytes for the buffers of one of its graphs."""

    def reaches(self, is_backward: bool, peak: int) -> None:
        """Called with the peak of one of its graphs, once the copies of offloaded values have their places."""

    def stays(self) -> None:
        """Called if Inductor itself would read the host memory of offloaded values. `divide` is then called once more, and offloads nothing."""

    def infers(self, kernels: list[fx.Node], peak: Callable[[], int]) -> None:
        """Called with the kernels and the peak bytes of a graph without a backward pass."""
