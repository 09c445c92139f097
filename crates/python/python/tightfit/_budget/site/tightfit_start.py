"""Starts `tightfit run --budget` or `tightfit compare` in a Python process: waits for the import of torch, then fits models or notes steps.

Imports neither torch nor tightfit itself, so that processes without torch lose no time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys

from tightfit_after_torch import AfterTorch  # type: ignore[import-not-found]  # beside this file
from tightfit_allocator import GROWING, SETTINGS, settings  # type: ignore[import-not-found]  # this too

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["HERE", "begin", "note"]

HERE = os.path.dirname(os.path.abspath(__file__))
# The package that this file is part of.
_PACKAGE = os.path.dirname(os.path.dirname(HERE))
# The name of our package if the program itself has a module called `tightfit`.
_ELSEWHERE = "_tightfit_of_run"
_FAILED = 1


def note(stage: str) -> None:
    """Notes the stage that this process has reached, for `tightfit_watch.py`: `python`, `torch`, `model`, or `said` after an error message."""
    path = os.environ.get("TIGHTFIT_MET")
    if not path:
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    with open(file, "a") as lines:
        lines.write(f"{os.getpid()} {stage}\n")


def begin() -> None:
    """Fits the models of this process, once torch is imported, and notes its steps for a comparison."""
    note("python")
    if os.environ.get("TIGHTFIT_BUDGET") and not settings():
        # torch reads this variable when it is imported.
        os.environ[SETTINGS[0]] = GROWING
    if "torch" in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, AfterTorch(_install))


def _install() -> None:
    """Installs the hooks. If that fails, it ends the program, because the program must not train without the requested budget."""
    try:
        if os.environ.get("TIGHTFIT_BUDGET"):
            _module("_budget.launch").install(functools.partial(note, "model"))
        if os.environ.get("TIGHTFIT_COMPARE"):
            _module("_compare").install()
    except Exception as error:  # Whatever a package that does not suit this Python or this torch raises.
        note("said")
        sys.stdout.flush()
        print(f"tightfit: the budget cannot be applied in {sys.executable}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(_FAILED)
    note("torch")


def _module(name: str) -> ModuleType:
    """Imports one of our modules: from the package that the program's `import tightfit` would find, or else from the package of this file."""
    if _is_importable():
        return importlib.import_module(f"tightfit.{name}")
    if _ELSEWHERE in sys.modules:
        return importlib.import_module(f"{_ELSEWHERE}.{name}")
    file = os.path.join(_PACKAGE, "__init__.py")
    spec = importlib.util.spec_from_file_location(_ELSEWHERE, file, submodule_search_locations=[_PACKAGE])
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be read")
    package = importlib.util.module_from_spec(spec)
    theirs = sys.modules.get("tightfit")
    # The package also imports itself by its own name.
    sys.modules[_ELSEWHERE] = sys.modules["tightfit"] = package
    try:
        spec.loader.exec_module(package)
        return importlib.import_module(f"{_ELSEWHERE}.{name}")
    finally:
        if theirs is None:
            del sys.modules["tightfit"]
        else:
            sys.modules["tightfit"] = theirs


def _is_importable() -> bool:
    """Whether `tightfit` is a package like this one, and not a module of the program."""
    known = sys.modules.get("tightfit")
    if known is not None:
        file = getattr(known, "__file__", None)
    else:
        spec = importlib.util.find_spec("tightfit")
        file = spec.origin if spec is not None else None
    return bool(file) and os.path.isfile(os.path.join(os.path.dirname(str(file)), "_budget", "launch.py"))
