"""Read by every Python that `tightfit run --budget` or `tightfit compare` starts, unless its options or its environment forbid it. The site's own `sitecustomize` runs as before."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

from tightfit_start import HERE, begin  # type: ignore[import-not-found]  # beside this file


def _run_the_sites_own() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("TIGHTFIT_BUDGET") or os.environ.get("TIGHTFIT_COMPARE"):
    begin()
# What it raises, Python says, as without us.
_run_the_sites_own()
