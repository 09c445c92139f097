"""Layer names for the report and cache of ``tightfit run``. Without them, kernels are numbered by their first call.

Unmodified programs::

    tightfit run -- python -m tightfit.names train.py --epochs 3

or one line in the program, which does nothing if tightfit's library is not preloaded::

    tightfit.torch.name_layers(model)

The names appear in the report and in the cache: ``tightfit cache list --layers`` shows them under the program's name. The
library keeps one name per thread; each layer sets its name before its convolution is called and clears it afterwards. The
backward pass runs in autograd's own threads, so the node of the graph sets the name there too::

    forward thread     conv1 | cudnn forward |   -   conv2 | cudnn forward |   -
    autograd thread                                         conv2 | backward-data, backward-filter |   -   conv1 | ..
"""

from __future__ import annotations

import ctypes
import runpy
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._budget.site.tightfit_after_torch import AfterTorch

__all__ = ["Names", "name_layers"]

_Tell = Callable[[bytes | None], None]
# Prefixes that wrappers add to the names of the model they hold.
_WRAPPERS = ("module.", "_orig_mod.")


def _library() -> _Tell | None:
    """Returns the preloaded library's function that sets a thread's layer name, or None if the library is not preloaded."""
    try:
        # PyDLL keeps the GIL: releasing it would take longer than the call.
        function = ctypes.PyDLL(None).tightfitSetLayer
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_char_p]
    function.restype = None
    return function


class Names:
    """The named layers of a model.

    Attributes
    ----------
    layers : list of str
        Their names, in the order of ``model.named_modules()``; empty if tightfit's library is not preloaded.
    """

    def __init__(self) -> None:
        self.layers: list[str] = []
        self._hooks: list[Any] = []

    def __repr__(self) -> str:
        return f"<Names of {len(self.layers)} layers>"

    def remove(self) -> None:
        """Removes the names."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.layers.clear()


class _Layer:
    """Sets one layer's name around its forward and backward calls."""

    def __init__(self, tell: _Tell, name: str) -> None:
        self.tell = tell
        self.name = name.encode()

    def before(self, module: Any, inputs: Any) -> None:
        if not _compiling():
            self.tell(self.name)

    def after(self, module: Any, inputs: Any, output: Any) -> None:
        if _compiling():
            return
        self.tell(None)
        # Hook the node, not the tensor: a hooked tensor may not be changed in place, as ReLU(inplace=True) does.
        node = getattr(output, "grad_fn", None)
        if node is not None:
            node.register_prehook(self.enter)
            node.register_hook(self.leave)

    def enter(self, gradients: Any) -> None:
        self.tell(self.name)

    def leave(self, gradients: Any, outputs: Any) -> None:
        self.tell(None)


def _compiling() -> bool:
    """Whether torch.compile is tracing, which cannot represent a call into a library."""
    import torch

    return bool(torch.compiler.is_compiling())


def name_layers(model: Any, prefix: str = "") -> Names:
    """Names the kernels of a model's convolution layers after the layers.

    Covers ``Conv1d`` to ``ConvTranspose3d``. Convolutions called as functions, and layers inside ``torch.compile``, stay
    unnamed. Costs a few microseconds per layer and step, and nothing if tightfit's library is not preloaded.

    Parameters
    ----------
    model
        A ``torch.nn.Module``.
    prefix
        Prefix for every name, to tell two models apart.
    """
    named = Names()
    tell = _library()
    if tell is None:
        return named
    from torch.nn.modules.conv import _ConvNd

    for name, module in model.named_modules():
        if not isinstance(module, _ConvNd):
            continue
        for wrapper in _WRAPPERS:
            name = name.removeprefix(wrapper)
        layer = _Layer(tell, prefix + (name or type(module).__name__.lower()))
        named.layers.append(layer.name.decode())
        named._hooks.append(module.register_forward_pre_hook(layer.before))
        # Also called if the layer raises, so that no name outlives its layer.
        named._hooks.append(module.register_forward_hook(layer.after, always_call=True))
    return named


def _name_all() -> None:
    """Names the layers of every model on its first call."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def before(module: Any, inputs: Any) -> None:
        # The outermost module is called first, so names are relative to it.
        if module not in seen:
            seen.update(module.modules())
            name_layers(module)

    register_module_forward_pre_hook(before)


def main(arguments: list[str]) -> None:
    """Runs a program as ``python`` would, ``[-m MODULE | FILE] ARGUMENTS ..``, and names the layers of its models."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit("usage: python -m tightfit.names [-m MODULE | FILE] [ARGUMENTS ..]")
    if _library() is not None:
        sys.meta_path.insert(0, AfterTorch(_name_all))
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
