"""Transforms of ``torch.func``, such as ``vmap``, refuse to run under hooks on saved tensors. The hooks of a budget step aside for them: what a
transform saves stays on the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

__all__ = ["StepsAside", "is_inside", "step_aside", "top_hooks"]

# PyTorch's own, which raises where there are hooks.
_disable = torch.autograd.graph.disable_saved_tensors_hooks


class StepsAside:
    """An object whose methods are hooks that are taken away while a transform runs."""


def is_inside() -> bool:
    """Whether a transform runs. Its tensors have no storage."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def top_hooks() -> tuple[Any, Any] | None:
    """The hooks that answer now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[no-any-return]


@contextmanager
def _disable_all_but_ours(error_message: str) -> Iterator[None]:
    with ExitStack() as stack:
        while (top := top_hooks()) is not None and isinstance(getattr(top[0], "__self__", None), StepsAside):
            torch._C._autograd._pop_saved_tensors_default_hooks()
            stack.callback(torch._C._autograd._push_saved_tensors_default_hooks, *top)
        stack.enter_context(_disable(error_message))
        yield


def step_aside() -> None:
    """Lets the hooks of budgets step aside from now on."""
    torch.autograd.graph.disable_saved_tensors_hooks = _disable_all_but_ours
    dynamo = sys.modules.get("torch._dynamo.variables.torch")
    if dynamo is not None:
        # Dynamo knows PyTorch's context managers by identity.
        dynamo.supported_ctx_manager_classes[_disable_all_but_ours] = None
