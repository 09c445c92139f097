"""What made a tensor: the nodes of autograd's graph behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LINEAGE", "lineage"]

# Nodes of a lineage, about: as many as most reruns have operations.
LINEAGE = 5
# The same reshaping has other names on fake tensors.
_RESHAPES = frozenset(["AsStridedBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0"])
# The nodes that end a graph at a parameter.
_LEAF = "AccumulateGrad"


class _Kinds(dict[type, Any]):
    """What a lineage has for a node of each type: the type, None for a reshaping, or False for the end of a graph."""

    def __missing__(self, own: type) -> Any:
        name = own.__name__
        kind = self[own] = False if name == _LEAF else None if name in _RESHAPES else own
        return kind


_kinds = _Kinds()


def lineage(tensor: Tensor, borders: set[Any], seen: dict[Any, Any] | None = None, most: int = LINEAGE) -> tuple[type, ...]:
    """The nodes that made a tensor, `most` of them, by their types, breadth first: what ran can be told from what was recorded by them.

    `borders` are nodes that made a model's inputs, behind which nothing is the model's. `seen` keeps what comes before each node, which
    lineages of one graph share: PyTorch makes an object for every node that Python sees, and that is what takes time.
    """
    node = tensor.grad_fn
    if node is None or node in borders:
        return ()
    if seen is None:
        seen = {}
    nodes = [node]
    kinds: list[type] = []
    at = expanded = 0
    while len(kinds) < most:
        if at < len(nodes):
            kind = _kinds[type(nodes[at])]
            at += 1
            if kind is not None:
                kinds.append(kind)
        elif expanded < at:
            # Only as many as are needed, in the order in which they were found.
            node = nodes[expanded]
            expanded += 1
            before = seen.get(node)
            if before is None:
                before = seen[node] = [
                    other
                    for other, _ in node.next_functions
                    if other is not None and _kinds[type(other)] is not False and other not in borders
                ]
            nodes += before
        else:
            break
    return tuple(kinds)
