"""What made a tensor: the nodes of autograd's graph behind it, and the parameters that these read.

What ran in a pass can be told from what was recorded by them alone, since nothing else of a forward pass shows from outside. Nodes have
the numbers of some calls (where a slice begins, a slope), so these are compared as well.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LINEAGE", "MOST", "UNNAMED", "beginning", "is_name", "is_node", "lineage", "place_of"]

# Nodes of a lineage, about: as many as most reruns have operations. And as many as are recorded.
LINEAGE, MOST = 5, 24
# A tensor that nothing has a name for.
UNNAMED = -1
# The same reshaping has other names on fake tensors.
_RESHAPES = frozenset(["AsStridedBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0"])
# The nodes that end a graph at a parameter.
_LEAF = "AccumulateGrad"
_OF_ATTENTION = "dropout_p", "is_causal", "scale"
_OF_POOLING = "kernel_size", "stride", "padding"
_OF_AVERAGES = *_OF_POOLING, "ceil_mode", "count_include_pad", "divisor_override"
# The numbers that nodes have of their calls, by the names of the nodes without the number behind: those that no shape shows.
_NUMBERS = {
    "AddBackward": ("alpha",),
    "AddcdivBackward": ("value",),
    "AddcmulBackward": ("value",),
    "AddmmBackward": ("alpha", "beta"),
    "AmaxBackward": ("dim",),
    "AminBackward": ("dim",),
    "AvgPool2DBackward": _OF_AVERAGES,
    "AvgPool3DBackward": _OF_AVERAGES,
    "BaddbmmBackward": ("alpha", "beta"),
    "CatBackward": ("dim",),
    "ConstantPadNdBackward": ("pad",),
    "ConvolutionBackward": ("stride", "padding", "dilation", "transposed"),
    "CudnnBatchNormBackward": ("epsilon",),
    "DiagonalBackward": ("offset", "dim1", "dim2"),
    "EluBackward": ("alpha", "scale", "input_scale"),
    "GeluBackward": ("approximate",),
    "GluBackward": ("dim",),
    "HardtanhBackward": ("min_val", "max_val"),
    "Im2ColBackward": ("kernel_size", "dilation", "padding", "stride"),
    "IndexSelectBackward": ("dim",),
    "LeakyReluBackward": ("negative_slope",),
    "LinalgVectorNormBackward": ("ord", "dim"),
    "LogSoftmaxBackward": ("dim",),
    "MaxPool2DWithIndicesBackward": (*_OF_POOLING, "dilation"),
    "MaxPool3DWithIndicesBackward": (*_OF_POOLING, "dilation"),
    "MeanBackward": ("dim",),
    "NativeBatchNormBackward": ("eps",),
    "NativeGroupNormBackward": ("group", "eps"),
    "PermuteBackward": ("dims",),
    "PixelShuffleBackward": ("upscale_factor",),
    "PixelUnshuffleBackward": ("downscale_factor",),
    "PowBackward": ("exponent",),
    "ReflectionPad2DBackward": ("padding",),
    "ReplicationPad2DBackward": ("padding",),
    "RollBackward": ("shifts", "dims"),
    "RsubBackward": ("alpha",),
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
    "StackBackward": ("dim",),
    "SubBackward": ("alpha",),
    "SumBackward": ("dim",),
    "TransposeBackward": ("dim0", "dim1"),
    "TrilBackward": ("diagonal",),
    "TriuBackward": ("diagonal",),
    "UnbindBackward": ("dim",),
    "UnfoldBackward": ("dimension", "size", "step"),
    "UnsqueezeBackward": ("dim",),
    "UpsampleBicubic2DBackward": ("align_corners", "scales_h", "scales_w"),
    "UpsampleBilinear2DBackward": ("align_corners", "scales_h", "scales_w"),
    "UpsampleNearest1DBackward": ("scales",),
    "UpsampleNearest2DBackward": ("scales_h", "scales_w"),
    "UpsampleNearest3DBackward": ("scales_d", "scales_h", "scales_w"),
    "UpsampleTrilinear3DBackward": ("align_corners", "scales_d", "scales_h", "scales_w"),
    "VarMeanBackward": ("correction", "dim"),
}


def _unnumbered(own: type) -> str:
    """The name of a node's type, without the number behind."""
    return own.__name__.rstrip("0123456789")


class _Kinds(dict[type, Any]):
    """What a lineage has for a node of each type: the type, None for a reshaping, False for the end of a graph, or the type and what reads
    its numbers."""

    def __missing__(self, own: type) -> Any:
        name = own.__name__
        # Another node of the same name, such as of a sum of everything, may have none.
        numbers = [f"_saved_{number}" for number in _NUMBERS.get(_unnumbered(own), ()) if hasattr(own, f"_saved_{number}")]
        of_node = (own, attrgetter(*numbers)) if numbers else own
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

    A node is its type, or, if it has numbers, a tuple of its type, which of its results was read, and the numbers; a reshaping, which is
    not counted, is the shape before it; a parameter is what `name` gives for it. `borders` are nodes that made a model's inputs, behind
    which nothing is the model's. `seen` keeps what comes before each node, which lineages of one graph share: PyTorch makes an object for
    every node that Python sees, and that is what takes time.
    """
    node = tensor.grad_fn
    if node is None or node in borders:
        return ()
    if seen is None:
        seen = {}
    made: list[Any] = []
    count = expanded = 0
    # Nodes with their kinds, and which of their results were read.
    found = [(node, _kinds[type(node)], tensor.output_nr)]
    waiting: list[Any] = []
    while True:
        for node, kind, result in found:
            entry = kind if kind.__class__ is type else _entry(node, kind, result)
            if entry is not None:
                made.append(entry)
            count += kind is not None
            if count == most:
                return tuple(made)
        waiting += found
        if expanded == len(waiting):
            return tuple(made)
        node = waiting[expanded][0]
        expanded += 1
        before = seen.get(node)
        if before is None:
            before = seen[node] = _before(node, borders, name)
        found, parameters = before
        made += parameters


def _entry(node: Any, kind: Any, result: int) -> Any:
    """What a lineage has for a node of which this result was read; None if nothing."""
    if kind is None:
        return _shape_before(node)
    return (kind[0], result, kind[1](node)) if kind.__class__ is tuple else kind


def _shape_before(reshape: Any) -> Any:
    """The shape before a reshaping, which says how elements are grouped there; None where a view was written to, of which fake tensors have
    another node."""
    shape = getattr(reshape, "_saved_self_sym_sizes", None)
    return None if shape is None or type(reshape.next_functions[0][0]).__name__ == "CopySlices" else shape


def _before(node: Any, borders: set[Any], name: Callable[[Tensor], Any]) -> tuple[list[Any], list[Any]]:
    """The nodes before one, each with its kind and which of its results was read, and the names of the parameters."""
    nodes, parameters = [], []
    for other, result in node.next_functions:
        if other is None or other in borders:
            continue
        kind = _kinds[type(other)]
        if kind is False:
            parameters.append(name(other.variable))
        else:
            nodes.append((other, kind, result))
    return nodes, parameters


def is_node(entry: Any) -> bool:
    """Whether an entry of a lineage stands for a node."""
    return isinstance(entry, type) or (isinstance(entry, tuple) and isinstance(next(iter(entry), None), type))


def is_name(entry: Any) -> bool:
    """Whether an entry of a recorded lineage is the name of a parameter, and not the shape before a reshaping."""
    return isinstance(entry, tuple) and isinstance(next(iter(entry), None), str)


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
