"""Waits for torch to be imported. Read before torch and tightfit are, so it imports neither."""

from __future__ import annotations

import importlib.util
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["AfterTorch"]


class AfterTorch:
    """A finder of modules that calls a function once torch is imported; never imports torch itself."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_call(module: ModuleType) -> None:
                load(module)
                self.then()

            spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec
