"""Lets compiled graphs drop what no backward pass reads.

The backward operations of convolutions and pools take their inputs as arguments. A pool reads only the shape. A convolution does not read the
input if the gradient of its weight is not asked for. A blank tensor takes the place of such an input, so the input need not be saved. Of a
ReLU's result, only truth values are then left to save, one byte each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["blank_unread"]

_OPERATIONS = torch.ops.aten
_CONVOLUTION = _OPERATIONS.convolution_backward.default
# Operations whose second argument is an input that they do not read.
_UNREAD = (
    _CONVOLUTION,
    _OPERATIONS.avg_pool2d_backward.default,
    _OPERATIONS.avg_pool3d_backward.default,
    _OPERATIONS._adaptive_avg_pool2d_backward.default,
    _OPERATIONS.max_pool2d_with_indices_backward.default,
)


def blank_unread(module: fx.GraphModule) -> int:
    """Puts blank tensors in place of the inputs that operations of a joint graph do not read. Returns how many."""
    graph, found = module.graph, 0
    for node in [node for target in _UNREAD for node in graph.find_nodes(op="call_function", target=target)]:
        gradient, unread = node.args[0], node.args[1]
        value: Any = unread.meta.get("val") if isinstance(unread, fx.Node) else None
        if node.target is _CONVOLUTION and node.args[-1][1] or not isinstance(value, torch.Tensor) or not all(type(size) is int for size in (*value.shape, *value.stride())):
            continue
        sizes = [list(value.shape), list(value.stride())]
        with graph.inserting_before(node):
            # It depends on the gradient, so it is made in the backward pass.
            blank = graph.call_function(
                _OPERATIONS.new_empty_strided.default, (gradient, *sizes), {"dtype": value.dtype, "layout": value.layout, "device": value.device}
            )
        blank.meta["val"] = node.args[0].meta["val"].new_empty_strided(*sizes, dtype=value.dtype, device=value.device)
        node.update_arg(1, blank)
        found += 1
    if found:
        module.recompile()
    return found
