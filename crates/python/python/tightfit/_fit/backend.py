"""The backend of `torch.compile` that holds a budget: ``torch.compile(model, backend="tightfit", options={"budget": "8GiB"})``.

Experimental. PyTorch finds it by the package's entry point, so programs import nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..errors import BadInput
from .aot import Joint, compile_with, default_partition, inner_compiler
from .lines import say
from .partition import carry_out, plan_joint
from .sizes import budget_bytes

__all__ = ["tightfit"]

_OPTIONS = ("budget", "inner", "optimizer")
_INNER = ("eager", "inductor")


def tightfit(
    graph: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles a graph so that its training step holds a budget.

    What the forward pass saves is kept, or computed again right before the backward pass reads it; nothing is moved to the host.
    Each graph of a program is planned by itself.

    Parameters
    ----------
    options
        ``budget``, as for :func:`tightfit.torch.fit`; ``inner``, which compiles the planned graphs: ``"inductor"`` (the default on
        a GPU with Triton) or ``"eager"``; and ``optimizer``, for the bytes of its state (AdamW is assumed if none is given).

    Raises
    ------
    BadInput
        If there is no budget, or an option is wrong.
    DoesNotFit
        If no plan within the budget is found. ``torch.compile`` raises these as ``inner_exception`` of its own exception.
    """
    given = dict(options or {})
    if mode not in (None, "default"):
        raise BadInput(f"mode={mode!r}: backend='tightfit' takes options={{'budget': ..}} and no mode")
    if unknown := [name for name in given if name not in _OPTIONS]:
        raise BadInput(f"options: {unknown[0]!r} is none of {', '.join(_OPTIONS)}")
    if "budget" not in given:
        raise BadInput("backend='tightfit' needs options={'budget': '8GiB'}")
    inner = given.get("inner") or inner_compiler(inputs)
    if inner not in _INNER:
        raise BadInput(f"inner={inner!r}: give one of {', '.join(_INNER)}")
    budget = budget_bytes(given["budget"], _device(inputs))

    def partition(
        module: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, static_lifetime_input_indices: Any = None, **others: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = Joint(module, num_fwd_outputs, static_lifetime_input_indices)
        planned = plan_joint(joint, budget, given.get("optimizer"))
        say(planned.line())
        if planned.again:
            return carry_out(joint, planned)
        return default_partition(inner)(
            module, joint_inputs, num_fwd_outputs=num_fwd_outputs, static_lifetime_input_indices=static_lifetime_input_indices, **others
        )

    return compile_with(inner, partition, graph, inputs)


def _device(inputs: Sequence[Any]) -> torch.device:
    """Where the graph's inputs are."""
    devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))
