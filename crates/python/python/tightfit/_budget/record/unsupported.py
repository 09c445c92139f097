"""Models that are left alone, and models that must not be rehearsed."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
import torch.nn.modules.module as all_modules
from torch import Tensor, nn
from torch.nn.parameter import is_lazy as is_lazy_parameter

from ..messages import say
from .compiled_parts import compiled_parts, is_compiled
from .inputs import other_layout

__all__ = ["is_lazy", "say_compiled", "unrehearsed", "unsupported"]

_COMPILED = "is compiled as a whole, which is planned by torch.compile(model, backend='tightfit') instead"
_HOOKS = ("forward_pre", "forward", "backward_pre", "backward")
_said: set[str] = set()


@torch.compiler.assume_constant_result
def say_compiled(name: str) -> bool:
    """Reports that a model is compiled as a whole when PyTorch traces its hooks. The hook runs then, and is not compiled."""
    if name not in _said:
        _said.add(name)
        say(f"{name} {_COMPILED}; its memory is left alone")
    return True


def unrehearsed(module: nn.Module) -> str:
    """The parts of a model that must not run on fake tensors, apart from the step itself: compiled parts, and functions of the program.

    A rehearsal's copy of the model has copies of its hooks that are objects, but functions write where the program reads.
    """
    if compiled_parts(module):
        return "compiled modules"
    for name, part in module.named_modules():
        for kind in _HOOKS:
            if any(map(_is_of_program, getattr(part, f"_{kind}_hooks").values())):
                return f"a {kind.replace('_', ' ')} hook of your program" + (f" on '{name}'" if name else "")
    for kind in _HOOKS:
        if any(map(_is_of_program, getattr(all_modules, f"_global_{kind}_hooks").values())):
            return f"a {kind.replace('_', ' ')} hook of your program on all modules"
    return ""


def _is_of_program(hook: Any) -> bool:
    return isinstance(hook, FunctionType) and not str(hook.__module__).startswith(("torch.", "tightfit."))


def unsupported(module: nn.Module) -> str:
    """Why a model is left alone: compiled as a whole, or sharded parameters and other subclasses of tensors."""
    if is_compiled(module):
        return _COMPILED
    for parameter in module.parameters():
        if type(parameter.data) is not Tensor:
            return f"has parameters of type {type(parameter.data).__name__}, which are not planned"
        if other := other_layout(parameter):
            return f"has {other} tensors, which are not planned"
    for buffer in module.buffers():
        if other := other_layout(buffer):
            return f"has {other} buffers, which are not planned"
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            return f"gives '{name}' sparse gradients, which are not planned"
    return ""


def is_lazy(module: nn.Module) -> bool:
    """Whether parameters get their shapes in the first call."""
    return any(is_lazy_parameter(parameter) for parameter in module.parameters())
