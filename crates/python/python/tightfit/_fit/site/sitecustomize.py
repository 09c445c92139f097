"""Read by every Python that `tightfit run --budget` starts: waits for torch to be imported, and then fits its models.

Imports neither torch nor tightfit itself, so that processes without torch lose no time. The site's own `sitecustomize` runs as before.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

from tightfit_after_torch import AfterTorch  # type: ignore[import-not-found]  # beside this file
from tightfit_allocator import GROWING, SETTINGS, settings  # type: ignore[import-not-found]  # this too

_here = os.path.dirname(os.path.abspath(__file__))


def _run_the_sites_own() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _install() -> None:
    from tightfit._fit.launch import install

    install()


if os.environ.get("TIGHTFIT_BUDGET"):
    if not settings():
        # Read by torch when it is imported.
        os.environ[SETTINGS[0]] = GROWING
    sys.meta_path.insert(0, AfterTorch(_install))
# What it raises, Python says, as without us.
_run_the_sites_own()
