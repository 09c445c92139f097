"""Compiled parts of a model: `torch.compile` hides what they run, so a recording has each call as one operation.

Autograd sees two things of a compiled call: the tensors that it saves, when it returns, and the same tensors when its backward pass begins.
So what a compiled part saves is kept or offloaded, and no rerun goes through it::

    recorded     conv   pack x   compiled   pack a   pack b   add   ..   unpack a   unpack b   compiled (backward)   ..
    hidden                       |--------------------------|            |---------------------------------------|

Under a dispatch mode, such as a recorder, PyTorch runs compiled parts uncompiled. The recorder steps out while they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from .marks import without
from .recorder import Recorder

__all__ = ["Restore", "compiled_parts", "hide", "is_compiled", "within"]

# The node of a compiled call in autograd's graph.
_NODE = "CompiledFunctionBackward"


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of a module run compiled: ``torch.compile(module)``, or a module after ``module.compile()``."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def compiled_parts(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost compiled modules, by name."""
    parts: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if is_compiled(module) and not within(name, parts):
            parts[name] = module
    return parts


def within(name: str, parts: dict[str, nn.Module]) -> bool:
    """Whether a module is one of these parts, or inside one."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


class Restore:
    """Removes the wrapper of a hidden part."""

    def __init__(self, module: nn.Module, attribute: str, call: Any) -> None:
        self.module = module
        self.attribute = attribute
        self.call = call

    def remove(self) -> None:
        object.__setattr__(self.module, self.attribute, self.call)


def hide(recorder: Recorder, parts: dict[str, nn.Module]) -> list[Restore]:
    """Lets compiled parts run outside the recorder, which notes each call as one operation. Returns handles that undo this."""
    handles = []
    for name, module in parts.items():
        attribute = "forward" if type(module).__name__ == "OptimizedModule" else "_compiled_call_impl"
        call = getattr(module, attribute)
        object.__setattr__(module, attribute, _Hidden(recorder, name, module, call))
        handles.append(Restore(module, attribute, call))
    return handles


class _Hidden:
    """Calls a compiled part."""

    def __init__(self, recorder: Recorder, name: str, module: nn.Module, call: Callable[..., Any]) -> None:
        self.recorder = recorder
        self.name = name
        self.module = module
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if not recorder.innermost():
            # Under another mode, nothing runs compiled.
            return self.call(*args, **kwargs)
        inputs = [*_tensors((args, kwargs)), *self.module.parameters(), *self.module.buffers()]
        group, recorder.group = recorder.group, self.name
        # PyTorch would trace the modes.
        with without(recorder.marks):
            outputs = recorder.outside(inputs, lambda: self.call(*args, **kwargs))
        recorder.group = group
        self.follow(_tensors(outputs), {tensor.grad_fn for tensor in inputs})
        return outputs

    def follow(self, outputs: list[Tensor], borders: set[Any]) -> None:
        """Hides the backward passes of this call, too."""
        nodes = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
        seen = set(borders)
        for node in nodes:
            if node in seen:
                continue
            seen.add(node)
            if type(node).__name__ == _NODE:
                backward = _Backward(self.recorder, self.name)
                node.register_prehook(backward.before)
                node.register_hook(backward.after)
            nodes += [before for before, _ in node.next_functions if before is not None]


class _Backward:
    """The backward pass of one compiled call."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name

    def before(self, gradients: Any) -> None:
        recorder = self.recorder
        if recorder.recording():
            recorder.group = self.name
            recorder.hide(_tensors(gradients))
            recorder.paused += 1

    def after(self, results: Any, gradients: Any) -> None:
        recorder = self.recorder
        if recorder.hiding():
            recorder.paused -= 1
            recorder.show(_tensors(results))


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]
