"""Which saved tensors no backward pass reads, and what takes their place.

Autograd saves more than it reads: a convolution saves its input even if its weight is frozen, and pooling saves its input for the shape
alone. Whether a node reads what it has saved is a property of the node: it says which gradients it can be asked for (an input without a
gradient has no edge), and no backward pass without `create_graph` asks for more::

    frozen convolution     input: not read       weight: read             edges: (relu, none, none)
    trained convolution    input: read           weight: read             edges: (relu, weight, bias)

So the node that this very pass has made decides, not the recorded step. What is dropped can be made again by the calls of this pass: who else
asks for it gets the tensor.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import graph

from .rebuild import Impossible, Lives, closure, leaves
from .recorded import Step

if TYPE_CHECKING:
    from .recorder import Recorder

__all__ = ["Blank", "droppable", "is_reading", "readers", "without"]

# For each kind of node: what it saves and does not read, and the edges without which that is so. All others are not known to leave anything
# unread.
_CONVOLUTION = ("input", (1,))
# The numbers of a batch normalization that evaluates do not depend on its input, but the gradient of its factor does.
_EVALUATION = ("input", (1, 2))
_SHAPE = ("self", ())
_NODES: dict[str, tuple[str, tuple[int, ...]]] = {
    "ConvolutionBackward0": _CONVOLUTION,
    **{f"{name}BatchNormBackward0": _EVALUATION for name in ("Native", "Cudnn", "Miopen")},
    **{
        f"{name}Backward0": _SHAPE
        for name in (
            "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D",
            "MaxPool2DWithIndices", "MaxPool3DWithIndices", "ReflectionPad1D", "ReflectionPad2D", "ReflectionPad3D",
            "ReplicationPad1D", "ReplicationPad2D", "ReplicationPad3D",
        )
    },
}  # fmt: skip
# Nodes of reshapings, behind which functions for one dimension call those for two.
_RESHAPING = frozenset(["SqueezeBackward0", "SqueezeBackward1", "ViewBackward0"])
# What runs the engine on the program's own thread.
_ENGINE = graph._engine_run_backward.__code__
# Nothing is a number whose bytes are these.
_NOT_A_NUMBER = 0xFF


def _unread(node: Any) -> Any:
    """What a node's saved tensor was packed as, if no backward pass reads it; else None."""
    known = _NODES.get(type(node).__name__)
    if known is None:
        return None
    name, absent = known
    if absent is _EVALUATION[1] and node._saved_training:
        return None
    edges = node.next_functions
    if any(place < len(edges) and edges[place][0] is not None for place in absent):
        return None
    # Without hooks, nothing was packed; older versions of PyTorch do not tell.
    return getattr(getattr(node, f"_raw_saved_{name}"), "data", None)


def readers(outputs: Any) -> list[tuple[Any, tuple[str, int]]]:
    """What the nodes of a call's outputs save and do not read, as it was packed, and which node that is."""
    found = []
    for tensor in outputs if isinstance(outputs, tuple | list) else (outputs,):
        node = tensor.grad_fn if isinstance(tensor, Tensor) else None
        while type(node).__name__ in _RESHAPING:
            node = node.next_functions[0][0]
        packed = _unread(node)
        if packed is not None:
            found.append((packed, _name(node)))
    return found


def _name(node: Any) -> tuple[str, int]:
    """Tells a node from all others of its graph; a reference to it would be a cycle."""
    return type(node).__name__, node._sequence_nr()


def is_reading(reader: tuple[str, int]) -> bool:
    """Whether what calls the caller is the backward pass of a node, which reads nothing of what is unpacked: not `create_graph`, which saves it
    again, nor a program that looks at what was saved, such as from a hook, or at what operations are given."""
    if torch.is_grad_enabled() or torch.is_anomaly_enabled() or torch._C._len_torch_dispatch_stack():
        return False
    # Threads of the engine have no other frames.
    above = sys._getframe(1).f_back
    if above is not None and above.f_code is not _ENGINE:
        return False
    node = torch._C._current_autograd_node()
    return node is not None and _name(node) == reader


class Blank:
    """Tensors that nobody reads: views of one block without numbers, with the strides of what they stand for, since kernels are chosen by
    these."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.block: Tensor | None = None

    def like(self, view: Any) -> Tensor:
        """A tensor of this form."""
        shape, stride, _, dtype = view
        made = torch.empty(0, dtype=dtype, device=self.device)
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
        if self.block is None or self.block.numel() < span * made.itemsize:
            # The former block goes first.
            self.block = None
            self.block = torch.full((span * made.itemsize,), _NOT_A_NUMBER, dtype=torch.uint8, device=self.device)
        return made.set_(self.block.untyped_storage(), 0, shape, stride)  # type: ignore[call-overload, no-any-return]


def droppable(step: Step, lives: Lives, recorder: Recorder) -> dict[int, list[int]]:
    """Movable tensors of a recorded step that nothing reads in the backward pass, with the operations that would make each again.

    These begin at tensors that are saved before it, and stay at least as long: notes of calls hold no others.
    """
    if not recorder.unread:
        return {}
    packs: dict[int, list[int]] = {}
    for number, (tensor, operation) in enumerate(step.packs):
        if operation >= 0:
            packs.setdefault(tensor, []).append(number)
    turn = next(
        (place for place, (event, number) in enumerate(recorder.timeline) if event == "unpack" or event == "operation" and recorder.operations[number].stage != "forward"),
        len(recorder.timeline),
    )  # fmt: skip
    overwritten = {before for before in lives.before if before is not None}
    found: dict[int, list[int]] = {}
    begins: dict[int, set[int]] = {}
    for tensor in sorted(packs, key=lambda tensor: lives.first[tensor]):
        numbers = packs[tensor]
        if not lives.movable[tensor] or tensor in overwritten or not recorder.unread.issuperset(numbers):
            continue
        views = [recorder.packs[number].view for number in numbers]
        if not all(view.dtype.is_floating_point for view in views):
            continue
        spans = recorder.storages[views[0].storage].spans
        if any(start < turn < end for start, end in spans):
            # The program has it anyway.
            continue
        try:
            operations = closure(lives, tensor)
        except Impossible:
            continue
        first = {leaf for leaf in leaves(lives, operations) if not lives.resident[leaf]}
        if any(leaf not in packs or packs[leaf][0] > numbers[0] for leaf in first):
            continue
        begin = {other for leaf in first for other in begins.get(leaf, {leaf})}
        if all(lives.last[leaf] >= lives.last[tensor] for leaf in begin):
            found[tensor], begins[tensor] = operations, begin
    return found


def without(step: Step, lives: Lives, dropped: dict[int, list[int]]) -> Step:
    """The step in which these tensors are not saved, and in their place one block is there from the first that would have been read on."""
    tensors = [{**tensor, "residence": "temporary"} if index in dropped else tensor for index, tensor in enumerate(step.data["tensors"])]
    operations = list(step.data["operations"])
    block, size, last = -1, 0, -1
    for index, operation in enumerate(operations):
        if operation["name"] != "pack" and index < lives.turn:
            continue
        here = [tensor for tensor in operation["reads"] if tensor in dropped]
        if not here:
            continue
        reads, writes = [tensor for tensor in operation["reads"] if tensor not in dropped], list(operation["writes"])
        if operation["name"] not in ("pack", "unpack", "held"):
            needed = max(lives.bytes[tensor] for tensor in here)
            if needed > size:
                block, size = len(tensors), needed
                tensors.append(
                    {"name": "what nobody reads", "bytes": size, "kind": "other", "residence": "temporary", "result": False, "alias": None}
                )
                writes.append(block)
            else:
                reads.append(block)
            last = index
        operations[index] = {**operation, "reads": reads, "writes": writes}
    end = max((index for index, operation in enumerate(operations) if operation["stage"] == "backward"), default=-1)
    if block >= 0 and end > last:
        # It goes with the graph.
        operations[end] = {**operations[end], "reads": [*operations[end]["reads"], block]}
    return replace(step, data={**step.data, "tensors": tensors, "operations": operations}, dropped=dropped)
