"""All uses of private interfaces of PyTorch's compilers: AOT autograd's partitioner, Inductor, and Dynamo's entry points.

They were tested with PyTorch 2.11. `Lacking` names a missing interface, and programs are then compiled without a budget.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten

from . import properties
from .buffers import Buffers, lay_out_as_saved
from .cut import minimum_cut
from .divider import Divider
from .graph import Graph, Pass, Rates, Value
from .joint import Ended, Free, divided_again

__all__ = [
    "Divisions", "Enough", "Free", "Lacking", "compile_errors", "compile_with", "compiled_by", "compiled_module", "keep_busy", "nothing_again", "options_of", "partition", "pass_to", "read",
    "real_tensors", "replace_default", "reset", "running_ddp", "settings_of", "settings_of_module", "source", "splitting",
]  # fmt: skip

Choose = Callable[[Any, Any], list[fx.Node]]

class Lacking(RuntimeError):
    """This version of PyTorch lacks an interface that the budget needs; the text names it."""

    def __init__(self, what: object) -> None:
        super().__init__(f"PyTorch {torch.__version__} differs from 2.11, with which this was tested: {what}")


# Divisions.


def partition(choose: Choose, module: fx.GraphModule, inputs: Any, **others: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Divides a joint graph as PyTorch does, except that ``choose`` picks the saved values, given the joint graph and PyTorch's node info.

    PyTorch's other steps stay: common subexpressions, states of random numbers in checkpoints, the order of the backward pass.
    """
    from torch._functorch import partitioners

    own = partitioners.choose_saved_values_set

    def chosen(joint: fx.Graph, info: Any, memory_budget: float = 1.0) -> list[fx.Node]:
        # The program set a share itself, for example for a region.
        if memory_budget != 1.0:
            return own(joint, info, memory_budget=memory_budget)  # type: ignore[no-any-return]
        # The chooser may call PyTorch's own function.
        partitioners.choose_saved_values_set = own
        return choose(joint, info)

    partitioners.choose_saved_values_set = chosen
    try:
        return partitioners.min_cut_rematerialization_partition(module, inputs, **others)  # type: ignore[no-any-return]
    finally:
        partitioners.choose_saved_values_set = own


class Divisions:
    """PyTorch's own divisions of a joint graph, with random results saved. Each of its least cuts is computed once, with a faster algorithm."""

    def __init__(self, joint: fx.Graph, info: Any) -> None:
        self.joint = joint
        self.info = info
        self.random = nothing_again(joint)
        self.cuts: dict[Any, Any] = {}

    def at(self, share: float) -> list[fx.Node]:
        """The values that PyTorch saves for a value of its `activation_memory_budget`; by default, it is 1."""
        if not share:
            # The least: the inputs, and results of operations that must not run again.
            return list(dict.fromkeys([*self.info.inputs, *(node for node in self.random if self.info.is_required_fw(node))]))
        import networkx
        from torch._functorch import partitioners

        own, own_cut = partitioners.solve_min_cut, networkx.minimum_cut

        def solve(joint: Any, info: Any, options: Any, dont_ban: Any = None) -> Any:
            key = (repr(vars(options)), frozenset(dont_ban or ()))
            if key not in self.cuts:
                self.cuts[key] = own(joint, info, options, dont_ban)
            saved, banned = self.cuts[key]
            return list(saved), banned

        partitioners.solve_min_cut, networkx.minimum_cut = solve, minimum_cut
        try:
            return list(partitioners.choose_saved_values_set(self.joint, self.info, memory_budget=share))
        finally:
            partitioners.solve_min_cut, networkx.minimum_cut = own, own_cut


def nothing_again(joint: fx.Graph) -> list[fx.Node]:
    """Marks the operations that must not run again, so that PyTorch saves their results. Returns the results."""
    from torch.utils.checkpoint import CheckpointPolicy

    kept: list[fx.Node] = []
    for node in joint.nodes:
        # PyTorch recomputes random operations inside the program's checkpoints from the saved state of the generator.
        if node.op == "call_function" and properties.is_random(node) and not _must_rerun(node):
            if isinstance(node.meta.get("val"), torch.Tensor):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                kept.append(node)
            else:
                parts = [user for user in node.users if user.target is operator.getitem]
                for part in (node, *parts):
                    part.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                kept += parts
    return kept


def _must_rerun(node: fx.Node) -> bool:
    from torch._functorch.partitioners import must_recompute

    return bool(must_recompute(node))


def read(joint: fx.Graph, info: Any, rates: Rates, fuses: bool) -> Graph:
    """Reads a joint graph, without times of kernels."""
    from torch._functorch import partitioners

    types = partitioners.get_default_op_list()
    nodes = [node for node in joint.nodes if node.op != "output"]
    (output,) = (node for node in joint.nodes if node.op == "output")
    place_of = {node: place for place, node in enumerate(nodes)}
    returned = {node for node in _nodes(output.args) if info.is_required_fw(node)}
    changed = properties.changed(joint, output)
    gradients = _gradients(output, info)
    values = []
    for node in nodes:
        bytes = _bytes(node)
        kind = _kind(node, types)
        forward = info.is_required_fw(node)
        rerun = "never"
        if isinstance(node.meta.get("val"), torch.SymFloat | torch.SymBool):
            # PyTorch never saves these.
            rerun = "may"
        elif node.op == "call_function":
            if _must_rerun(node):
                rerun = "must"
            elif not properties.is_random(node) and properties.may_rerun(node):
                rerun = "may"
        values.append(Value(
            name=node.name, kind=kind, bytes=0 if kind == "view" else bytes, inputs=tuple(place_of[one] for one in node.all_input_nodes),
            forward=forward, backward=node in info.tangents_closure,
            wanted=node in info.required_bw_nodes and node not in info.tangents_closure or node in gradients,
            returned=node in returned and forward,
            resident=node.op == "placeholder" and node not in info.required_bw_nodes,
            rerun=rerun, saved=properties.may_be_saved(node.meta.get("val")) and node not in changed,
            apart=properties.is_apart(node), stored=properties.is_drawn(node),
        ))  # fmt: skip
    return Graph(values, rates, fuses)


def _gradients(output: fx.Node, info: Any) -> set[fx.Node]:
    return {node for node in _nodes(output.args) if not info.is_required_fw(node) or node in info.required_bw_nodes}


def _nodes(values: Any) -> list[fx.Node]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, fx.Node)]


def _kind(node: fx.Node, types: Any) -> str:
    if node.op == "placeholder":
        return "tangent" if "tangents" in str(node.target) else "input"
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor | list | tuple):
        return "none"
    if node.target is operator.getitem:
        # A fused reduction may have several results, such as variance and mean.
        made = node.args[0]
        return "part" if isinstance(made, fx.Node) and not types.is_fusible(made) else "fused"
    name = properties.name_of(node.target)
    if types.is_view(node) or name in ("detach", "alias"):
        return "view"
    if types.is_fusible(node) and not types.is_compute_intensive(node):
        if isinstance(value, list | tuple):
            return "none"
        return "reduction" if name in properties.REDUCTIONS else "fused"
    return "fused" if name in (*properties.OF_SEEDS, *properties.POINTWISE) else "kernel"


def _bytes(node: fx.Node) -> int:
    from torch._functorch.partitioners import _size_of

    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        try:
            return int(_size_of(node))
        except (RuntimeError, ValueError, TypeError):
            return 0
    return 0


# Inductor's buffers.


@contextmanager
def _observed(divider: Divider, settings: dict[str, Any], plain: dict[str, Any]) -> Iterator[None]:
    """Passes the peak bytes of each graph's buffers to ``divider.keeps``, once Inductor has fused and ordered them and before it generates code.

    If it returns False or raises an error, the compilation ends with `Ended`. Otherwise the copies of offloaded values get their places in the
    order. Both graphs are compiled at once; PyTorch otherwise compiles the backward graph in the first backward pass. Inductor has ``settings``, or
    ``plain`` once the divider raises `Free`.
    """
    try:
        from torch._functorch import config
        from torch._inductor import config as inductor_config
        from torch._inductor.graph import GraphLowering
    except ImportError as error:
        raise Lacking(error) from error
    own = GraphLowering._update_scheduler
    try:
        lay_out_as_saved()
    except (AttributeError, ImportError) as error:
        raise Lacking(error) from error

    def update(graph: Any) -> None:
        own(graph)
        if type(graph) is not GraphLowering:
            return
        try:
            try:
                if graph.is_inference:
                    divider.infers(_kernels(graph.module.graph), lambda: Buffers(graph, divider.extra).peak)
                    return
                buffers = Buffers(graph, divider.extra)
            except (AttributeError, TypeError, ImportError) as error:
                raise Lacking(error) from error
            kept = buffers.is_sound and divider.keeps(bool(graph.is_backward), buffers.peak)
            if not buffers.is_sound:
                divider.stays()
            elif kept and buffers.copies:
                divider.reaches(bool(graph.is_backward), buffers.place(divider))
        except Exception as error:
            raise Ended(error) from error
        if not kept:
            raise Ended(None)

    @contextmanager
    def alone() -> Iterator[None]:
        GraphLowering._update_scheduler = own
        with inductor_config.patch(plain):
            yield

    GraphLowering._update_scheduler = update
    try:
        with config.patch(force_non_lazy_backward_lowering=True), inductor_config.patch(settings), divided_again(alone):
            yield
    finally:
        GraphLowering._update_scheduler = own


# Compilers.


class Enough(BaseException):
    """A divider raises this to end a compilation that is no longer needed."""


def pass_to(divider: Divider, inner: str, graph: fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any]) -> None:
    """Compiles a graph until ``divider`` raises `Enough`. The graph is changed."""
    try:
        compile_with(inner, divider, graph, inputs, settings)
    except Enough:
        pass


def compile_with(
    inner: str, divider: Divider | None, graph: fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any]
) -> Callable[..., Any]:
    """Compiles a graph of the program. ``divider``, or else PyTorch, divides its joint graph."""
    return _eager(divider, graph, inputs) if inner == "eager" else _inductor(divider, graph, inputs, settings)


def _eager(divider: Divider | None, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    try:
        from torch._dynamo.backends.common import aot_autograd
    except ImportError as error:
        raise Lacking(error) from error
    ways: dict[str, Any] = {}
    if divider is not None:

        def infers(inner: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
            divider.infers(_kernels(inner.graph), lambda: _peak_alone(inner.graph))
            return _boxed(inner, given)

        ways = {"partition_fn": divider.divide, "inference_compiler": infers}
    return aot_autograd(fw_compiler=_boxed, keep_inference_input_mutations=True, **ways)(graph, inputs)  # type: ignore[no-any-return]


def _kernels(graph: fx.Graph) -> list[fx.Node]:
    """The nodes of a graph that kernels of libraries compute."""
    from torch._functorch import partitioners

    types = partitioners.get_default_op_list()
    return [node for node in graph.nodes if _kind(node, types) == "kernel"]


def _peak_alone(graph: fx.Graph) -> int:
    """The peak bytes of a graph without a backward pass, in its own order."""
    from torch._functorch import partitioners

    types = partitioners.get_default_op_list()
    nodes = [node for node in graph.nodes if node.op != "output"]
    (output,) = graph.find_nodes(op="output")
    returned = set(_nodes(output.args))
    place_of = {node: place for place, node in enumerate(nodes)}
    values = []
    for node in nodes:
        kind = _kind(node, types)
        inputs = tuple(place_of[one] for one in node.all_input_nodes)
        values.append(Value(node.name, kind, 0 if kind == "view" else _bytes(node), inputs, forward=True, returned=node in returned))
    alone = Graph(values, Rates(1.0), fuses=False)
    held = {alone.root[place] for place, value in enumerate(values) if value.returned}
    return Pass(alone, alone.forward_of(()), held).peak


def _boxed(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs a graph eagerly, and frees each of its inputs after its last use."""
    try:
        from torch.fx.graph import _BoxedCodeGen
    except ImportError as error:
        raise Lacking(error) from error
    graph.graph.set_codegen(_BoxedCodeGen())
    graph.recompile()
    forward = graph.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _inductor(divider: Divider | None, graph: fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any]) -> Callable[..., Any]:
    try:
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx
    except ImportError as error:
        raise Lacking(error) from error
    if divider is None:
        return compile_fx(graph, inputs, config_patches=settings)  # type: ignore[no-any-return]
    while True:
        try:
            # A buffer that waits to be reused stays allocated, which no order of operations shows.
            own = {"custom_partitioner_fn": _partitioner()(divider)} | ({"allow_buffer_reuse": False} if torch.is_grad_enabled() else {})
            others = {name: value for name, value in settings.items() if name not in own}
            with _observed(divider, own, {name: settings.get(name, getattr(config, name)) for name in own}):
                return compile_fx(graph, inputs, config_patches=others)  # type: ignore[no-any-return]
        except Free:
            return compile_fx(graph, inputs, config_patches=settings)  # type: ignore[no-any-return]
        except Ended as ended:
            if ended.error is not None:
                raise ended.error from None


@functools.cache
def _partitioner() -> Any:
    """A subclass of Inductor's partitioners; its base class is imported late, since it may be missing."""
    try:
        from torch._inductor.custom_graph_pass import CustomPartitionerFn
    except ImportError as error:
        raise Lacking(error) from error

    class Divides(CustomPartitionerFn):
        def __init__(self, divider: Divider) -> None:
            self.divider = divider

        def __call__(self, joint: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
            return self.divider.divide(joint, joint_inputs, **kwargs)

        def uuid(self) -> Any:
            return self.divider.identity

        def __reduce__(self) -> Any:
            # Pickled into the keys of PyTorch's caches, it is its identity.
            return tuple, (self.divider.identity,)

    return Divides


def options_of(mode: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Inductor's settings for a mode and options of `torch.compile`."""
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        raise Lacking("torch._TorchCompileInductorWrapper")
    return dict(wrapper(mode, options, None).config)


def settings_of(wrapper: Any) -> dict[str, Any]:
    """Inductor's settings in a call of `torch.compile`."""
    return dict(wrapper.config)


def settings_of_module(module: Any) -> Any:
    """The settings with which Inductor compiles a module; None if it does not."""
    compiled = module if type(module).__name__ == "OptimizedModule" else getattr(module, "_compiled_call_impl", None)
    ask = getattr(compiled, "get_compiler_config", None)
    return ask() if ask is not None else None


def compile_errors() -> type[BaseException]:
    """The base class of errors of `torch.compile`."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException  # type: ignore[no-any-return]


def replace_default(take: Callable[[Any, fx.GraphModule, Sequence[Any], Callable[..., Any]], Callable[..., Any]]) -> None:
    """Lets ``take`` compile the graphs that programs pass to Inductor. Its arguments: the settings, the graph, its inputs, Inductor's own compiler."""
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        raise Lacking("torch._TorchCompileInductorWrapper")
    own = wrapper.__call__

    def call(self: Any, graph: fx.GraphModule, inputs: Sequence[Any], **others: Any) -> Callable[..., Any]:
        # Subclasses compile ahead of time, and newer versions compile parts of graphs with other settings; they are left alone.
        if type(self) is not wrapper or any(others.values()):
            return own(self, graph, inputs, **others)  # type: ignore[no-any-return]
        return take(self, graph, inputs, lambda: own(self, graph, inputs))

    wrapper.__call__ = call


@contextmanager
def real_tensors() -> Iterator[None]:
    """Allows real tensors while a graph is compiled."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._mode_utils import no_dispatch

    with unset_fake_temporarily(), no_dispatch():
        yield


def keep_busy() -> None:
    """Keeps the current GPU busy for about 100 microseconds, so that kernels can queue."""
    torch.cuda._sleep(200_000)


@functools.cache
def source() -> bytes:
    """A hash of the source files that decide divisions."""
    from torch._inductor.custom_graph_pass import get_hash_for_files

    return bytes(get_hash_for_files(tuple(sorted(str(path) for path in Path(__file__).parent.glob("*.py")))))


def splitting() -> tuple[fx.GraphModule, fx.Node] | None:
    """The model that DistributedDataParallel has split by its buckets, and its part that is being compiled."""
    frame: Any = sys._getframe()
    while frame is not None:
        # PyTorch passes one part after another to the backend, as it interprets the split model.
        if frame.f_code.co_name == "run_node" and type(frame.f_locals.get("self")).__name__ == "SubmodCompiler":
            return frame.f_locals["self"].module, frame.f_locals["n"]
        frame = frame.f_back
    return None


def compiled_by(module: Any) -> Any:
    """The module that a wrapper of `torch.compile` holds, a module itself that was compiled in place, or None."""
    # FSDP2 derives a class from the class of each module that it shards.
    if any(base.__name__ == "OptimizedModule" for base in type(module).__mro__):
        return module._orig_mod
    return module if getattr(module, "_compiled_call_impl", None) is not None else None


def compiled_module() -> tuple[Any, Any]:
    """The module in whose call a graph is being compiled, and the module around it that was compiled, itself perhaps; or None for each."""
    frame: Any = sys._getframe()
    inner = None
    while frame is not None:
        own = frame.f_locals.get("self") if frame.f_code.co_name in ("_wrapped_call_impl", "_call_impl", "__call__") else None
        if isinstance(own, torch.nn.Module):
            outer = compiled_by(own)
            inner = inner or (own if outer is None else outer)
            if outer is not None:
                return inner, outer
        frame = frame.f_back
    return None, None


def running_ddp() -> Any:
    """The DistributedDataParallel model whose forward pass runs, or None."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module()


def reset() -> None:
    """Makes Dynamo compile every graph again at its next call."""
    torch._dynamo.reset()
