"""The backend of `torch.compile` that holds a budget: ``torch.compile(model, backend="tightfit", options={"budget": "8GiB"})``.

PyTorch finds the backend by the package's entry point, so programs import nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import fx

from ...errors import BadInput, DoesNotFit
from ..memory.sizes import Share, budget_of
from ..messages import say
from . import private
from .held import held_by

__all__ = ["compile_within", "device_of", "misfit_in", "tightfit"]

_OURS = ("budget", "inner", "optimizer", "mode", "offload")
_INNER = ("eager", "inductor")


def tightfit(
    graph: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles a graph so that its training step holds a budget.

    Each value that the backward pass reads is saved, or recomputed right before it is read.

    Parameters
    ----------
    options
        ``budget``, as for :func:`tightfit.torch.fit`; ``optimizer``, whose state counts (by default, the program's optimizer is found);
        ``offload``, False to recompute only; ``mode``, as for `torch.compile`; ``inner``, the compiler of the planned graphs: ``"inductor"`` (the default on a GPU with Triton)
        or ``"eager"``; and any option of Inductor.

    Raises
    ------
    BadInput
        If the budget is missing, or an option is wrong.
    DoesNotFit
        If no plan within the budget is found. ``torch.compile`` raises both errors as the ``inner_exception`` of its exception.
    """
    given = dict(options or {})
    ours = {name: given.pop(name) for name in _OURS if name in given}
    if "budget" not in ours:
        near = "".join(f"; did you mean 'budget' by {name!r}?" for name in get_close_matches("budget", given, 1))
        raise BadInput(f"backend='tightfit' needs options={{'budget': '8GiB'}}{near}")
    device = device_of(inputs)
    inner = ours.get("inner") or ("inductor" if device.type == "cuda" and importlib.util.find_spec("triton") is not None else "eager")
    if inner not in _INNER:
        raise BadInput(f"inner={inner!r}: give one of {', '.join(_INNER)}")
    budget = budget_of(ours["budget"], device)
    try:
        settings = private.options_of(ours.get("mode") or mode, given)
    except RuntimeError as error:
        if isinstance(error, private.Lacking):
            raise
        raise BadInput(f"options: {str(error).split(', known options')[0]}; beside options of Inductor, these are known: {', '.join(_OURS)}") from None
    plain = lambda: private.compile_with(inner, None, graph, inputs, settings)  # noqa: E731
    return compile_within(budget, device, inner, settings, graph, inputs, plain, ours.get("optimizer"), bool(ours.get("offload", True)))


def compile_within(
    budget: int | Share, device: torch.device, inner: str, settings: dict[str, Any], graph: fx.GraphModule, inputs: Sequence[Any],
    plain: Callable[[], Callable[..., Any]], optimizer: Any = None, offloads: bool = True,
) -> Callable[..., Any]:  # fmt: skip
    """Compiles a graph within a budget. Where that is not possible, prints a line and compiles it without a budget.

    Raises
    ------
    DoesNotFit
        If no plan within the budget is found.
    """
    if settings.get("triton.cudagraphs"):
        say("compiled: CUDA graphs reserve memory beyond a budget; this graph is compiled without them")
        settings = {**settings, "triton.cudagraphs": False}
    try:
        return held_by(device, budget).compile(graph, inputs, inner, settings, optimizer, offloads)
    except Exception as error:
        if misfit_in(error) is not None or isinstance(error, torch.OutOfMemoryError):
            raise
        say(f"compiled: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; this graph is compiled as without a budget")
    return plain()


def misfit_in(error: BaseException | None) -> DoesNotFit | None:
    """The budget that cannot be met, in the chain of an error's causes."""
    while error is not None and not isinstance(error, DoesNotFit):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error


def device_of(inputs: Sequence[Any]) -> torch.device:
    """The device that a graph runs on."""
    devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))
