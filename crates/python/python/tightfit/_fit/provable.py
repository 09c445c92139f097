"""Which reruns a pass can prove right: what they read is found again, and the numbers of their calls are the recorded ones.

A rerun has the numbers that were recorded, but a program may crop, shift or scale a map by others in every step. Those of PyTorch's
layers are their own. Others must be seen in the graph: in the lineages of the saved tensors that are rebuilt with them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from .lineage import place_of
from .recorded import External, Operation, Pack, View, external_of, place
from .rerun import may_run_again

__all__ = ["Proofs"]

# Nodes of views that are parts of their bases; "" where none tells which part.
_PARTS = {
    "as_strided": "",
    "diagonal": "DiagonalBackward",
    "narrow": "",
    "select": "SelectBackward",
    "slice": "SliceBackward",
    "split": "SplitBackward",
    "split_with_sizes": "SplitWithSizesBackward",
    "unbind": "UnbindBackward",
    "unfold": "UnfoldBackward",
}
# Nodes of operations whose numbers change no shape; "" where none has them. That of layer normalization has none, whose numbers are the
# normalized shape, which is seen, and what is added to a variance, which programs do not change.
_NUMBERED = {
    "add": "AddBackward",
    "addcdiv": "AddcdivBackward",
    "addcmul": "AddcmulBackward",
    "addmm": "AddmmBackward",
    "amax": "AmaxBackward",
    "amin": "AminBackward",
    "arange": "",
    "avg_pool2d": "AvgPool2DBackward",
    "avg_pool3d": "AvgPool3DBackward",
    "baddbmm": "BaddbmmBackward",
    "constant_pad_nd": "ConstantPadNdBackward",
    "convolution": "ConvolutionBackward",
    "cudnn_batch_norm": "CudnnBatchNormBackward",
    "elu": "EluBackward",
    "gelu": "GeluBackward",
    "hardtanh": "HardtanhBackward",
    "im2col": "Im2ColBackward",
    "index_select": "IndexSelectBackward",
    "leaky_relu": "LeakyReluBackward",
    "linalg_vector_norm": "LinalgVectorNormBackward",
    "max_pool2d_with_indices": "MaxPool2DWithIndicesBackward",
    "max_pool3d_with_indices": "MaxPool3DWithIndicesBackward",
    "mean": "MeanBackward",
    "native_batch_norm": "NativeBatchNormBackward",
    "native_group_norm": "NativeGroupNormBackward",
    "pixel_shuffle": "PixelShuffleBackward",
    "pixel_unshuffle": "PixelUnshuffleBackward",
    "pow": "PowBackward",
    "reflection_pad2d": "ReflectionPad2DBackward",
    "replication_pad2d": "ReplicationPad2DBackward",
    "roll": "RollBackward",
    "rsub": "RsubBackward",
    "select_backward": "",
    "softplus": "SoftplusBackward",
    "stack": "StackBackward",
    "sub": "SubBackward",
    "sum": "SumBackward",
    "threshold": "",
    "tril": "TrilBackward",
    "triu": "TriuBackward",
    "upsample_bicubic2d": "UpsampleBicubic2DBackward",
    "upsample_bilinear2d": "UpsampleBilinear2DBackward",
    "upsample_nearest1d": "UpsampleNearest1DBackward",
    "upsample_nearest2d": "UpsampleNearest2DBackward",
    "upsample_nearest3d": "UpsampleNearest3DBackward",
    "upsample_trilinear3d": "UpsampleTrilinear3DBackward",
    "var_mean": "VarMeanBackward",
    "_log_softmax": "LogSoftmaxBackward",
    "_scaled_dot_product_cudnn_attention": "ScaledDotProductCudnnAttentionBackward",
    "_scaled_dot_product_efficient_attention": "ScaledDotProductEfficientAttentionBackward",
    "_scaled_dot_product_flash_attention": "ScaledDotProductFlashAttentionBackward",
    "_scaled_dot_product_flash_attention_for_cpu": "ScaledDotProductFlashAttentionForCpuBackward",
    "_softmax": "SoftmaxBackward",
}
# What a program may run on its inputs as they come without autograd's knowledge: casts, mostly of autocast.
_OF_INPUTS = frozenset(["_to_copy", "clone", "contiguous"])
# Operations with several results whose numbers are a layer's own, if one makes them; those of attention are its call's.
_OF_LAYERS = frozenset(["cudnn_batch_norm", "max_pool2d_with_indices", "max_pool3d_with_indices", "native_batch_norm", "native_group_norm"])


class Proofs:
    """What proves the operations of a recorded forward pass.

    Attributes
    ----------
    nodes
        For each value (storage and writes), how many nodes of its lineage must be compared, where that is known to matter.
    witnesses
        For saved values that have no lineage: another result of the same operation, whose lineage shows its numbers.
    silent
        Those for which there is none: they are never given up.
    """

    def __init__(self, operations: list[Operation], packs: list[Pack], named: dict[int, list[External]], graded: set[int]) -> None:
        self.nodes: dict[tuple[int, int], int] = {}
        self.witnesses: dict[tuple[int, int], tuple[int, int]] = {}
        self.silent: set[tuple[int, int]] = set()
        self.named = named
        # Storages that autograd follows, and those that were ever complex: of these, views have bits that no stride shows.
        self.graded = set(graded)
        self.complex: set[int] = set()
        self.lineages: dict[tuple[int, int], tuple[Any, ...]] = {}
        for pack in packs:
            value = pack.view.storage, pack.view.writes
            self.lineages[value] = max(self.lineages.get(value, ()), pack.lineage, key=len)
        self.readers: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        # For views that are parts: the nodes that say which.
        self.parts: dict[Any, list[str]] = {}
        # Views that a layer made.
        self.of_layers: set[Any] = set()
        for operation in operations:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        views = [value for value in operation.arguments if isinstance(value, View)]
        outputs = [value for value in operation.outputs if value is not None]
        self.complex.update(view.storage for view in (*views, *outputs) if getattr(view.dtype, "is_complex", False))
        if operation.stage != "forward":
            return
        if operation.graded and any(view.storage in self.graded for view in views):
            self.graded.update(storage for storage, _ in operation.makes)
        if may_run_again(operation):
            # What comes behind another, such as a dropout's mask, is not made again.
            for value in operation.reads:
                self.readers[value].append(operation)
        self._find_witnesses(operation)
        if operation.makes or not views:
            return
        source = views[0]
        part = _PARTS.get(operation.name)
        for view in outputs:
            if place(view) == place(source):
                continue
            if operation.layer:
                self.of_layers.add(place(view))
            nodes = self.parts.get(place(source), [])
            if part is not None and not operation.layer:
                nodes = [*nodes, part]
            if nodes:
                self.parts[place(view)] = nodes

    def _find_witnesses(self, operation: Operation) -> None:
        """Notes what shows the numbers of an operation of several results in place of those that have no lineage."""
        node = _NUMBERED.get(operation.name)
        if not node or len(operation.makes) < 2:
            return
        witness = next((value for value in operation.makes if place_of(node, self.lineages.get(value, ()))), None)
        for value in operation.makes:
            if self.lineages.get(value) != ():
                continue
            if witness is not None:
                self.witnesses[value] = witness
            elif not (operation.layer and operation.name in _OF_LAYERS):
                self.silent.add(value)

    def proves(self, operation: Operation) -> bool:
        """Whether a pass can tell that an operation would run as it was recorded; notes what must be compared for that."""
        views = [value for value in operation.arguments if isinstance(value, View)]
        if any(view.storage in self.complex for view in views):
            return False
        if not self._found_again(operation, views):
            return False
        nodes = [node for view in views for node in self.parts.get(place(view), [])]
        if nodes and not self._shows(operation, nodes):
            return False
        number = _NUMBERED.get(operation.name.removesuffix("_"))
        if number is None:
            return True
        # A layer has the same numbers in each step, most likely; where the graph has them, they are compared all the same.
        return self._shows(operation, [*nodes, number]) or operation.layer

    def _found_again(self, operation: Operation, views: list[View]) -> bool:
        """Whether what is read is of the graph, or a tensor that exists before the step, as it is."""
        if not operation.reads:
            return True
        of_inputs = operation.name in _OF_INPUTS and all(view.storage in self.named for view in views)
        if not of_inputs and not any(view.storage in self.graded for view in views):
            return False
        for view in views:
            if view.storage in self.named and place(view) not in self.of_layers:
                external = external_of(self.named[view.storage], view)
                if external is None or (external.what == "input" and not _alike(external.view, view)):
                    return False
        return True

    def _shows(self, operation: Operation, nodes: list[str]) -> bool:
        """Whether lineages of all saved tensors that are made with an operation, without another one between, have these nodes."""
        if "" in nodes:
            return False
        needed: dict[tuple[int, int], int] = {}
        seen = set(operation.makes)
        # Operations between that have the same nodes come before them.
        waiting = [(made, Counter(nodes)) for made in operation.makes]
        while waiting:
            value, counts = waiting.pop()
            if value in self.silent or value in self.witnesses:
                continue
            whole = self.lineages.get(value)
            if whole is not None:
                found = [place_of(node, whole, count) for node, count in counts.items()]
                if not all(found):
                    return False
                needed[value] = max(found)
                continue
            for reader in self.readers[value]:
                new = [made for made in reader.makes if made not in seen]
                seen.update(new)
                between = _NUMBERED.get(reader.name.removesuffix("_"), "")
                waiting += [(made, counts + Counter([between] if between in counts else [])) for made in new]
        for value, count in needed.items():
            self.nodes[value] = max(count, self.nodes.get(value, 0))
        return True


def _alike(base: View, view: View) -> bool:
    """Whether a view is a tensor as it is, or its elements in their order in another shape."""
    return place(base) == place(view) or (
        base.offset == view.offset and base.shape.numel() == view.shape.numel() and _is_dense(base) and _is_dense(view)
    )


def _is_dense(view: View) -> bool:
    """Whether the elements follow each other."""
    length = 1
    for size, stride in zip(reversed(view.shape), reversed(view.stride), strict=True):
        if size != 1 and stride != length:
            return False
        length *= size
    return True
