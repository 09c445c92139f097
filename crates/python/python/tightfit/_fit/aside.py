"""What is left alone, and what must not be rehearsed."""

from __future__ import annotations

from types import FunctionType

import torch
from torch import Tensor, nn

from .compiled import compiled_parts, is_compiled
from .lines import say

__all__ = ["say_compiled", "unrehearsed", "unsupported"]

_COMPILED = "is compiled as a whole, which is planned by torch.compile(model, backend='tightfit') instead"
_said: set[str] = set()


@torch.compiler.assume_constant_result
def say_compiled(name: str) -> bool:
    """Says that a model is compiled as a whole when PyTorch traces its hooks; it runs then, and is no part of what is compiled."""
    if name not in _said:
        _said.add(name)
        say(f"{name} {_COMPILED}; its memory is left alone")
    return True


def unrehearsed(module: nn.Module) -> str:
    """What of a model must not run on fake tensors, beside the step itself: compiled parts, and functions of the program.

    A rehearsal's copy of the model has copies of its hooks that are objects, but functions write where the program reads.
    """
    if compiled_parts(module):
        return "compiled modules"
    for name, part in module.named_modules():
        for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values()):
            if isinstance(hook, FunctionType) and not str(hook.__module__).startswith(("torch.", "tightfit.")):
                return "a forward hook of your program" + (f" on '{name}'" if name else "")
    return ""


def unsupported(module: nn.Module) -> str:
    """Why a model is left alone: compiled as a whole, or sharded parameters and other subclasses of tensors."""
    if is_compiled(module):
        return _COMPILED
    for parameter in module.parameters():
        if type(parameter.data) is not Tensor:
            return f"has parameters of type {type(parameter.data).__name__}, which are not planned"
        if parameter.is_nested:
            return "has nested tensors, which are not planned"
    return ""
