"""What made a tensor: the nodes of autograd's graph behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["lineage"]

# Nodes of a lineage, about: as many as most reruns have operations.
LINEAGE = 5
# The same reshaping has other names on fake tensors.
_RESHAPES = frozenset(["AsStridedBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0"])
# The nodes that end a graph at a parameter.
_LEAF = "AccumulateGrad"


def lineage(tensor: Tensor, borders: set[Any], seen: dict[Any, Any] | None = None) -> tuple[type, ...]:
    """The nodes that made a tensor, by their types, breadth first: what ran can be told from what was recorded by them.

    `borders` are nodes that made a model's inputs, behind which nothing is the model's. `seen` keeps what is known of nodes, which
    lineages of one graph share.
    """
    node = tensor.grad_fn
    if node is None or node in borders:
        return ()
    if seen is None:
        seen = {}
    nodes = [node]
    kinds: list[type] = []
    for node in nodes:
        known = seen.get(node)
        if known is None:
            own = type(node)
            before = tuple(
                other
                for other, _ in node.next_functions
                if other is not None and type(other).__name__ != _LEAF and other not in borders
            )
            known = seen[node] = None if own.__name__ in _RESHAPES else own, before
        kind, before = known
        if kind is not None:
            kinds.append(kind)
            if len(kinds) >= LINEAGE:
                break
        nodes += before
    return tuple(kinds)
