"""Read by every Python that `tightfit run --budget` starts: waits for torch to be imported, and then fits its models.

Imports nothing else, so that processes without torch lose no time. The site's own `sitecustomize` runs as before.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_here = os.path.dirname(os.path.abspath(__file__))


def _run_the_sites_own() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class _AfterTorch:
    """Installs the hooks once torch is imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(_AfterTorch)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_install(module: Any) -> None:
                load(module)
                from tightfit._fit.launch import install

                install()

            spec.loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec


if os.environ.get("TIGHTFIT_BUDGET"):
    sys.meta_path.insert(0, _AfterTorch)
try:
    _run_the_sites_own()
except ImportError:
    pass
