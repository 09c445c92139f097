"""Compiles the graphs of unmodified programs that call `torch.compile` within the budget of ``tightfit run --budget``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx, nn

from ...errors import DoesNotFit
from ..memory.sizes import Share
from ..messages import say
from . import private
from .backend import compile_within, device_of, misfit_in, tightfit

__all__ = ["by_inductor", "compile_in_place", "install"]


def by_inductor(module: nn.Module) -> bool:
    """Whether a module was compiled by Inductor."""
    return private.settings_of_module(module) is not None


def compile_in_place(module: nn.Module, budget: int | Share, optimizer: Any, misfit: Callable[[DoesNotFit], None], state: Any) -> None:
    """Compiles a model of an eager program within a budget. If that fails, the model stays eager.

    ``misfit`` is called if the budget cannot be met. While the model runs, ``state.compiled`` is the frame of its call.
    """
    module.compile(backend=tightfit, options={"budget": str(budget) if isinstance(budget, Share) else budget, "optimizer": optimizer})
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        state.compiled = sys._getframe()
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            cause = misfit_in(error)
            if cause is not None:
                misfit(cause)
            elif not isinstance(error, private.compile_errors()):
                raise
            why = cause or getattr(error, "inner_exception", None) or error
            say(f"{type(module).__name__} is not compiled, and runs eagerly: {type(why).__name__}: {(str(why).splitlines() or [''])[0]}")
        state.compiled = None
        module._compiled_call_impl = None
        return module(*args, **kwargs)

    module._compiled_call_impl = call


def install(budget: Callable[[Any], int | Share], misfit: Callable[[DoesNotFit], None], elsewhere: Callable[[], bool]) -> bool:
    """Takes over the graphs that programs pass to Inductor. Returns whether this version of PyTorch allows it.

    ``budget`` returns the bytes on a device. ``misfit`` is called if a budget cannot be met. ``elsewhere`` returns whether the graph is a compiled
    part of an eager model, which is planned as a whole.
    """

    def take(wrapper: Any, graph: fx.GraphModule, inputs: Sequence[Any], plain: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if elsewhere():
            return plain()
        device = device_of(inputs)
        try:
            return compile_within(budget(device), device, "inductor", private.settings_of(wrapper), graph, inputs, plain)
        except Exception as error:
            cause = misfit_in(error)
            if cause is None:
                raise
            misfit(cause)
            say(f"{cause}; it is compiled as without a budget, since training has begun")
            return plain()

    try:
        private.replace_default(take)
    except private.Lacking as error:
        say(f"{error}; what programs compile is left alone")
        return False
    return True
