"""Read by every Python that `tightfit run --budget` starts: waits for torch to be imported, and then fits its models.

Imports neither torch nor tightfit itself, so that processes without torch lose no time. The site's own `sitecustomize` runs as before.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

from tightfit_after_torch import AfterTorch  # type: ignore[import-not-found]  # beside this file

# Where a program's user sets up torch's allocator: then nothing is changed.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
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
    if not any(os.environ.get(name) for name in _ALLOCATOR):
        # Read by torch when it is imported: reserved memory stays close to what is allocated.
        os.environ[_ALLOCATOR[0]] = "expandable_segments:True"
    sys.meta_path.insert(0, AfterTorch(_install))
try:
    _run_the_sites_own()
except ImportError:
    pass
