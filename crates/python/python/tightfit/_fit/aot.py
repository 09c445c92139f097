"""All that is taken from PyTorch's compiler and is not promised to stay: backends, and joint graphs of AOT autograd.

A joint graph holds the forward pass and then the backward pass, as autograd recorded it::

    inputs  primals_1 .. (parameters, buffers, what the program gives)   tangents_1 .. (gradients of the outputs)
    nodes   tagged is_forward, then is_backward
    outputs those of the forward pass, then gradients of the primals, None where there is none
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["Joint", "Lacking", "compile_with", "default_partition", "hint", "inner_compiler", "is_symbolic", "split"]

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


class Lacking(RuntimeError):
    """This version of PyTorch lacks what the backend needs; the text says what."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"backend='tightfit' needs {what}, which PyTorch {torch.__version__} lacks; it is tested with 2.11 and 2.15"
        )


class Joint:
    """A joint graph, read.

    Attributes
    ----------
    primals, tangents
        Input nodes.
    outputs, gradients
        What the forward pass returns, and the gradient of each primal or None.
    static
        The primals that are parameters or buffers.
    mutated
        The primals that the program changes.
    """

    def __init__(self, module: fx.GraphModule, num_fwd_outputs: int, static: Sequence[int] | None) -> None:
        nodes = list(module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.module = module
        self.primals = [node for node in inputs if "tangents" not in str(node.target)]
        self.tangents = [node for node in inputs if "tangents" in str(node.target)]
        (output,) = (node for node in nodes if node.op == "output")
        results = list(output.args[0])
        self.outputs, self.gradients = results[:num_fwd_outputs], results[num_fwd_outputs:]
        self.static = {self.primals[index] for index in static or ()}
        descriptions = output.meta.get("desc")
        if descriptions is None or not any("partitioner_tag" in node.meta for node in nodes):
            raise Lacking("joint graphs with tags and descriptions")
        changed = [what for what in descriptions if type(what).__name__ == "InputMutationAOTOutput"]
        of = {node.meta.get("desc"): node for node in self.primals}
        self.mutated = {of[what.mutated_input] for what in changed if what.mutated_input in of}

    @staticmethod
    def in_backward(node: fx.Node) -> bool:
        """Whether a node runs in the backward pass."""
        return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def is_symbolic(node: fx.Node) -> bool:
    """Whether a node's result is a size, not a tensor."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def hint(size: Any) -> int:
    """A size as a number: for a symbolic one, that of the inputs which are compiled for."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return int(found) if found is not None else 1


def split(module: fx.GraphModule, num_fwd_outputs: int, saved: list[fx.Node]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graphs of a joint graph whose backward pass reads only what is saved, sizes, and tangents."""
    try:
        from torch._functorch.partitioners import _extract_fwd_bwd_modules
    except ImportError as error:
        raise Lacking("_extract_fwd_bwd_modules") from error
    sizes = [node for node in module.graph.nodes if is_symbolic(node) and not Joint.in_backward(node)]
    try:
        return _extract_fwd_bwd_modules(  # type: ignore[no-any-return]
            module, saved, saved_sym_nodes=sizes, num_fwd_outputs=num_fwd_outputs
        )
    except TypeError as error:
        raise Lacking("_extract_fwd_bwd_modules as it is called") from error


def default_partition(inner: str) -> Partition:
    """How PyTorch itself divides joint graphs for this inner compiler."""
    from torch._functorch import partitioners

    found = partitioners.min_cut_rematerialization_partition if inner == "inductor" else partitioners.default_partition
    return found  # type: ignore[no-any-return]


def inner_compiler(inputs: Sequence[Any]) -> str:
    """Inductor where it has a GPU and a compiler for it, else none."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in inputs)
    return "inductor" if on_gpu and importlib.util.find_spec("triton") is not None else "eager"


def compile_with(inner: str, partition: Partition, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph of the program; its joint graph is divided by ``partition``."""
    return (_inductor if inner == "inductor" else _eager)(partition, graph, inputs)


def _eager(partition: Partition, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    try:
        from torch._dynamo.backends.common import aot_autograd
    except ImportError as error:
        raise Lacking("aot_autograd") from error
    return aot_autograd(fw_compiler=_boxed, partition_fn=partition)(graph, inputs)  # type: ignore[no-any-return]


def _boxed(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs a graph as it is, and frees each of its inputs after its last use."""
    try:
        from torch.fx.graph import _BoxedCodeGen
    except ImportError as error:
        raise Lacking("_BoxedCodeGen") from error
    graph.graph.set_codegen(_BoxedCodeGen())
    graph.recompile()
    forward = graph.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _inductor(partition: Partition, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    try:
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.custom_graph_pass import CustomPartitionerFn
    except ImportError as error:
        raise Lacking("CustomPartitionerFn") from error

    class Ours(CustomPartitionerFn):
        def __call__(self, joint: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
            kwargs.pop("compiler", None)
            return partition(joint, joint_inputs, **kwargs)

        def uuid(self) -> None:
            return None

    # Never from a cache, which does not know the budget.
    with config.patch(enable_autograd_cache=False):
        return compile_fx(  # type: ignore[no-any-return]
            graph, inputs, config_patches={"custom_partitioner_fn": Ours(), "fx_graph_cache": False}
        )
