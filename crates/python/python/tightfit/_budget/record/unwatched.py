"""Modules that compute otherwise if they are watched, and run unwatched for that reason.

PyTorch's transformer layers have faster kernels for inference, with other last bits. They do not use them under a function mode, nor if a module of
theirs has hooks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

__all__ = ["Ours", "Unwatched", "asks", "would_differ"]

_NAMES = {"has_torch_function", "_forward_hooks", "_forward_pre_hooks"}


class Ours:
    """A hook of this package on a module, called as ``hook(module, inputs)`` before it runs, or as ``hook(module, inputs, outputs)`` afterwards."""

    def __call__(self, *_: Any) -> None:
        raise NotImplementedError


def asks(module: nn.Module) -> bool:
    """Whether a module's code asks for function modes or hooks."""
    forwards = (getattr(type(module), "forward", None), vars(module).get("forward"))
    return any(_names(code) for forward in forwards if (code := getattr(forward, "__code__", None)) is not None)


def _names(code: CodeType) -> bool:
    if not _NAMES.isdisjoint(code.co_names) or not _NAMES.isdisjoint(one for one in code.co_consts if isinstance(one, str)):
        return True
    return any(_names(one) for one in code.co_consts if isinstance(one, CodeType))


def would_differ(module: nn.Module, inputs: Any) -> bool:
    """Whether a module that asks may compute otherwise if it is watched. PyTorch's own modules do not if they are trained."""
    if not type(module).__module__.startswith("torch.nn."):
        return True
    if all(part.training for part in module.modules()):
        return False
    if not torch.is_grad_enabled():
        return True
    first = inputs[0] if inputs else None
    return not (isinstance(first, Tensor) and first.requires_grad or all(weight.requires_grad for weight in module.parameters()))


def _nothing() -> None:
    """Nothing else watches a module."""


class Unwatched(Ours):
    """A hook before modules that ask: they run without this package's hooks, and everything else that watches them stops meanwhile.

    A hook that PyTorch calls after every module shows the end of such a module. A hook of the module itself would be seen.
    """

    def __init__(self, stop: Callable[[], None] = _nothing, go_on: Callable[[], None] = _nothing) -> None:
        self.stop = stop
        self.go_on = go_on

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not would_differ(module, inputs):
            return
        thread = threading.get_ident()
        taken: list[tuple[Any, list[tuple[int, Any]]]] = []
        after = [(key, hook) for key, hook in module._forward_hooks.items() if isinstance(hook, Ours)]

        def end(other: nn.Module, given: Any, outputs: Any) -> None:
            if other is not module or threading.get_ident() != thread:
                return
            handle.remove()
            for hooks, before in taken:
                later = [item for item in hooks.items() if item not in before]
                there = [item for item in before if isinstance(item[1], Ours) or item[0] in hooks]
                hooks.clear()
                hooks.update([*there, *later])
            self.go_on()
            # PyTorch has looked for the module's hooks by now.
            for key, hook in after:
                if key in module._forward_hooks_with_kwargs:
                    hook(module, given, {}, outputs)
                else:
                    hook(module, given, outputs)

        handle = register_module_forward_hook(end, always_call=True)
        for part in module.modules():
            for hooks in (part._forward_pre_hooks, part._forward_hooks):
                if any(isinstance(hook, Ours) for hook in hooks.values()):
                    taken.append((hooks, list(hooks.items())))
        for hooks, before in taken:
            for key, hook in before:
                if isinstance(hook, Ours):
                    del hooks[key]
        self.stop()
