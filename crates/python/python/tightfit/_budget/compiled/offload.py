"""Writes the copies of offloaded values into the forward and the backward graph of a division.

Each copy stands where its value is free to go, or needed. Inductor's order of kernels is known later; then the copies get their places in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from . import operators

__all__ = ["write_copies"]


def write_copies(forward: fx.GraphModule, backward: fx.GraphModule, shared: dict[str, set[str]]) -> None:
    """Offloads values in the forward graph, and copies them back in the backward graph.

    ``shared`` holds, by the name of an offloaded value in both graphs, the names of all values that share its bytes.
    """
    (output,) = forward.graph.find_nodes(op="output")
    returned = {node.name: node for node in output.args[0] if isinstance(node, fx.Node)}
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    hosts: dict[fx.Node, fx.Node] = {}
    for name, names in shared.items():
        node, given = returned.get(name), inputs.get(name)
        if node is not None and given is not None and given.users:
            hosts[node] = _out(forward.graph, node, names)
            _back(backward.graph, given)
    output.args = (tuple(hosts.get(node, node) for node in output.args[0]), *output.args[1:])
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _out(graph: fx.Graph, node: fx.Node, shared: set[str]) -> fx.Node:
    """Offloads a value after its last reader. Returns its host memory."""
    last = node
    for one in graph.nodes:
        if one.op != "output" and (one is node or any(read.name in shared for read in one.all_input_nodes)):
            last = one
    with graph.inserting_after(last):
        host = graph.call_function(operators.offload, (node,))
    with graph.inserting_after(host):
        left = graph.call_function(operators.release, (host, node))
    host.meta["val"] = left.meta["val"] = _on_host(node.meta["val"])
    return left


def _back(graph: fx.Graph, given: fx.Node) -> None:
    """Copies a value back before its first reader."""
    value = given.meta["val"]
    first = next(node for node in graph.nodes if given in node.all_input_nodes)
    with graph.inserting_before(first):
        allocated = graph.call_function(operators.prefetch, (given, value.device))
        there = graph.call_function(operators.wait, (allocated,))
    allocated.meta["val"] = there.meta["val"] = value
    given.replace_all_uses_with(there, delete_user_cb=lambda user: user is not allocated)
    given.meta["val"] = _on_host(value)
    given.meta.pop("tensor_meta", None)


def _on_host(value: Tensor) -> Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")
