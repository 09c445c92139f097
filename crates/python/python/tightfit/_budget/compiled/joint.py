"""Divides a joint graph until a division is kept. It is traced once, and Inductor's passes over it run once.

Like `private.py`, this uses private interfaces of PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import fx

__all__ = ["Ended", "Free", "divided_again"]


class Ended(BaseException):
    """Ends the compilation of a division: it is replaced, or ``error`` is raised. It is no `Exception`, which PyTorch would wrap or suppress."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Free(BaseException):
    """A divider raises this if PyTorch compiles the graph alone."""


@contextmanager
def divided_again(alone: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Begins again with the same joint graph when `Ended` is raised without an error, or `Free`. Graphs for which that is not possible pass it on.

    Within ``alone``, PyTorch compiles as without a divider.
    """
    try:
        from torch._functorch._aot_autograd import graph_compile
        from torch._inductor import compile_fx

        own, own_passes = graph_compile.aot_stage2_autograd, compile_fx._recursive_joint_graph_passes
    except (ImportError, AttributeError):
        # Other versions trace the graph again.
        yield
        return
    made: list[fx.GraphModule] = []

    def passes(module: fx.GraphModule, *args: Any, **others: Any) -> fx.GraphModule:
        if not made:
            made.append(_copy(own_passes(module, *args, **others)))
        return _copy(made[0])

    def divide(state: Any, capture: Any) -> Any:
        meta, joint = state.fw_metadata, capture.graph_module
        nested = any(isinstance(child, fx.GraphModule) for child in joint.children())
        if nested or capture.maybe_subclass_meta is not None or meta.tokens or meta.num_backward_tokens:
            # Dividing changes more than the graph.
            return own(state, capture)
        known = _copies(vars(meta))

        def renew() -> None:
            vars(meta).update(_copies(known))
            capture.graph_module = _copy(joint)

        made.clear()
        compile_fx._recursive_joint_graph_passes = passes
        try:
            while True:
                renew()
                try:
                    return own(state, capture)
                except Ended as ended:
                    if ended.error is not None:
                        raise
        except Free:
            renew()
            # As without a divider, the backward graph is compiled in the first backward pass.
            state.aot_config.force_non_lazy_backward_lowering = False
            with alone():
                return own(state, capture)
        finally:
            compile_fx._recursive_joint_graph_passes = own_passes

    graph_compile.aot_stage2_autograd = divide
    try:
        yield
    finally:
        graph_compile.aot_stage2_autograd = own


def _copies(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, with other containers."""
    return {name: copy.copy(value) if isinstance(value, dict | list) else value for name, value in values.items()}


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph that shares its tensors."""
    copied = fx.GraphModule(module, copy.deepcopy(module.graph))
    copied.meta = dict(module.meta)
    return copied
