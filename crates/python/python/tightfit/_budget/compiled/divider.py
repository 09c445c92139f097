"""The interface between compilers and plans."""

from __future__ import annotations

from typing import Any, Protocol

from torch import fx

__all__ = ["Divider"]


class Divider(Protocol):
    """Divides a joint graph."""

    identity: Any
    """Its divisions depend on this alone."""
    extra: dict[str, int]
    """By the name of a node, the bytes that it uses while it runs, in addition to its operands and results."""

    def divide(self, module: fx.GraphModule, inputs: Any, **others: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and backward graphs."""

    def keeps(self, is_backward: bool, peak: int) -> bool:
        """Whether the division is kept, given the bytes that Inductor needs for one of its graphs. If not, `divide` is called once more."""
