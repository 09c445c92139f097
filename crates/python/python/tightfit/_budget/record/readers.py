"""Finds the saved tensors that no backward pass reads, or whose signs alone it reads, from the autograd nodes of the current pass."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph

__all__ = ["is_reading", "is_sign", "readers", "unread"]

# For each kind of node: the saved tensor that it does not read, and the edges that must be absent for that. Nodes of other kinds are taken to
# read everything.
_CONVOLUTION = ("input", (1,))
# In evaluation, the input gradient of a batch normalization does not depend on its input, but the gradient of its weight does.
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
# Nodes that read only the signs of a saved tensor.
_SIGNS = {"ReluBackward0": "result"}
# Nodes of reshapings, by which one-dimensional functions call the two-dimensional ones.
_RESHAPING = frozenset(["SqueezeBackward0", "SqueezeBackward1", "ViewBackward0"])
# The function that runs the engine on the program's own thread.
_ENGINE = graph._engine_run_backward.__code__


def _unread(node: Any) -> Any:
    """The saved tensor of a node, if no backward pass reads it or if one reads only its signs; else None."""
    kind = type(node).__name__
    name, absent = _NODES.get(kind, ("", ()))
    if not name:
        name = _SIGNS.get(kind, "")
        if not name:
            return None
    if absent is _EVALUATION[1] and node._saved_training:
        return None
    edges = node.next_functions
    if any(place < len(edges) and edges[place][0] is not None for place in absent):
        return None
    return getattr(node, f"_raw_saved_{name}")


def readers(outputs: Any) -> list[tuple[Any, tuple[str, int]]]:
    """The packed tensors that the nodes of a call's outputs do not read, or of which they read only the signs; each with the name of its node."""
    # Older versions of PyTorch lack the attribute.
    return [(saved.data, reader) for saved, reader in unread(outputs) if hasattr(saved, "data")]


def unread(outputs: Any) -> list[tuple[Any, tuple[str, int]]]:
    """The same saved tensors as :func:`readers`, whether or not hooks have packed them."""
    found = []
    for tensor in outputs if isinstance(outputs, tuple | list) else (outputs,):
        node: Any = tensor.grad_fn if isinstance(tensor, Tensor) else None
        while type(node).__name__ in _RESHAPING:
            node = node.next_functions[0][0]
        saved = _unread(node)
        if saved is not None:
            found.append((saved, _name(node)))
    return found


def _name(node: Any) -> tuple[str, int]:
    """A name that identifies a node in its graph. A reference to the node would be a cycle."""
    return type(node).__name__, node._sequence_nr()


def is_sign(reader: tuple[str, int]) -> bool:
    """Whether a node reads the signs of its saved tensor."""
    return reader[0] in _SIGNS


def is_reading(reader: tuple[str, int], frames: int = 1) -> bool:
    """Whether the caller was called by the backward pass of this node, which reads nothing of the unpacked tensor or only its signs. With 2 frames,
    it is the caller of the caller.

    False under `create_graph`, which saves the tensor again and may read its numbers later. Also false if the program itself unpacks the tensor,
    for example in a hook, or inspects the arguments of operations.
    """
    if torch.is_grad_enabled() and not is_sign(reader) or torch.is_anomaly_enabled() or torch._C._len_torch_dispatch_stack():
        return False
    # Threads of the engine have no other frames.
    above = sys._getframe(frames).f_back
    if above is not None and above.f_code is not _ENGINE:
        return False
    node = torch._C._current_autograd_node()
    return node is not None and _name(node) == reader
