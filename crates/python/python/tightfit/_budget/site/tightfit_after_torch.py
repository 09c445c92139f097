"""Waits for torch, or another module, to be imported. Read before torch and tightfit are, so it imports neither."""

from __future__ import annotations

import importlib.util
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["AfterTorch"]


class AfterTorch:
    """A finder of modules that calls a function once torch, or the module named, has been imported; never imports it itself.

    It stays in `sys.meta_path` until then: programs also look for modules without importing them.
    """

    def __init__(self, then: Callable[[], None], name: str = "torch") -> None:
        self.then = then
        self.name = name
        # Threads that are asking the other finders.
        self.asking: set[int] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        thread = get_ident()
        if name != self.name or thread in self.asking:
            return None
        self.asking.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking.discard(thread)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_call(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.then()

            spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec
