"""What made a tensor: the nodes of autograd's graph behind it, and the parameters that these read.

What ran in a pass can be told from what was recorded by them alone, since nothing else of a forward pass shows from outside. Nodes have
the numbers of some calls (where a slice begins, a slope), so these are compared as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LINEAGE", "MOST", "UNNAMED", "beginning", "is_node", "lineage", "place_of"]

# Nodes of a lineage, about: as many as most reruns have operations. And as many as are recorded.
LINEAGE, MOST = 5, 24
# A tensor that nothing has a name for.
UNNAMED = -1
# The same reshaping has other names on fake tensors.
_RESHAPES = frozenset(["AsStridedBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0"])
# The nodes that end a graph at a parameter.
_LEAF = "AccumulateGrad"
_OF_ATTENTION = "dropout_p", "is_causal", "scale"
# The numbers that nodes have of their calls, by the names of the nodes without the number behind.
_NUMBERS = {
    "AddmmBackward": ("alpha", "beta"),
    "BaddbmmBackward": ("alpha", "beta"),
    "CatBackward": ("dim",),
    "ConstantPadNdBackward": ("pad",),
    "DiagonalBackward": ("offset", "dim1", "dim2"),
    "EluBackward": ("alpha", "scale", "input_scale"),
    "HardtanhBackward": ("min_val", "max_val"),
    "LeakyReluBackward": ("negative_slope",),
    "PermuteBackward": ("dims",),
    "RollBackward": ("shifts", "dims"),
    "ScaledDotProductCudnnAttentionBackward": _OF_ATTENTION,
    "ScaledDotProductEfficientAttentionBackward": _OF_ATTENTION,
    "ScaledDotProductFlashAttentionBackward": _OF_ATTENTION,
    "ScaledDotProductFlashAttentionForCpuBackward": _OF_ATTENTION,
    "SelectBackward": ("dim", "index"),
    "SliceBackward": ("dim", "start", "end", "step"),
    "SoftmaxBackward": ("dim",),
    "SoftplusBackward": ("beta", "threshold"),
    "SplitBackward": ("dim", "split_size"),
    "SplitWithSizesBackward": ("dim", "split_sizes"),
    "TransposeBackward": ("dim0", "dim1"),
    "TrilBackward": ("diagonal",),
    "TriuBackward": ("diagonal",),
    "UnbindBackward": ("dim",),
    "UnfoldBackward": ("dimension", "size", "step"),
}


def _unnumbered(own: type) -> str:
    """The name of a node's type, without the number behind."""
    return own.__name__.rstrip("0123456789")


class _Kinds(dict[type, Any]):
    """What a lineage has for a node of each type: the type, None for a reshaping, False for the end of a graph, or the type and its
    numbers' names."""

    def __missing__(self, own: type) -> Any:
        name = own.__name__
        numbers = _NUMBERS.get(_unnumbered(own))
        of_node = (own, tuple(f"_saved_{number}" for number in numbers)) if numbers else own
        kind = self[own] = False if name == _LEAF else None if name in _RESHAPES else of_node
        return kind


_kinds = _Kinds()


def lineage(
    tensor: Tensor,
    borders: set[Any],
    name: Callable[[Tensor], Any],
    seen: dict[Any, Any] | None = None,
    most: int = LINEAGE,
) -> tuple[Any, ...]:
    """The nodes that made a tensor, `most` of them, breadth first, and between them the parameters that they read.

    A node is its type, or, if it has numbers, a tuple of its type, which of its results was read, and the numbers; a parameter is what
    `name` gives for it. `borders` are nodes that made a model's inputs, behind which nothing is the model's. `seen` keeps what comes
    before each node, which lineages of one graph share: PyTorch makes an object for every node that Python sees, and that is what takes
    time.
    """
    node = tensor.grad_fn
    if node is None or node in borders:
        return ()
    if seen is None:
        seen = {}
    nodes = [(node, tensor.output_nr)]
    made: list[Any] = []
    count = at = expanded = 0
    while count < most:
        if at < len(nodes):
            node, result = nodes[at]
            at += 1
            kind = _kinds[type(node)]
            if kind is None:
                continue
            if kind.__class__ is tuple:
                own, numbers = kind
                kind = (own, result, *[getattr(node, number, None) for number in numbers])
            made.append(kind)
            count += 1
        elif expanded < at:
            # Only as many as are needed, in the order in which they were found.
            node, _ = nodes[expanded]
            expanded += 1
            before = seen.get(node)
            if before is None:
                before = seen[node] = _before(node, borders, name)
            nodes += before[0]
            made += before[1]
        else:
            break
    return tuple(made)


def _before(node: Any, borders: set[Any], name: Callable[[Tensor], Any]) -> tuple[list[Any], list[Any]]:
    """The nodes before one, each with the number of its result, and the names of the parameters."""
    nodes, parameters = [], []
    for pair in node.next_functions:
        other = pair[0]
        if other is None or other in borders:
            continue
        if _kinds[type(other)] is False:
            parameters.append(name(other.variable))
        else:
            nodes.append(pair)
    return nodes, parameters


def is_node(entry: Any) -> bool:
    """Whether an entry of a lineage stands for a node."""
    return isinstance(entry, type) or (isinstance(entry, tuple) and isinstance(entry[0], type))


def beginning(whole: tuple[Any, ...], nodes: int) -> tuple[Any, ...]:
    """What a lineage of so many nodes has."""
    found = 0
    for place, entry in enumerate(whole):
        found += is_node(entry)
        if found == nodes:
            return whole[: place + 1]
    return whole


def place_of(node: str, whole: tuple[Any, ...], count: int = 1) -> int:
    """How many nodes a lineage must have to reach so many of a name (without the number behind); 0 if there are fewer."""
    nodes = 0
    for entry in whole:
        if not is_node(entry):
            continue
        nodes += 1
        own = entry[0] if isinstance(entry, tuple) else entry
        count -= _unnumbered(own) == node
        if not count:
            return nodes
    return 0
