"""Runs a program within its budget in a Python that reads no `sitecustomize` of ours: under `-I`, `-E` or `-S`, or with an environment of its own.

Started by `tightfit run --budget` as ``python OPTIONS tightfit_program.py BUDGET RECOMPUTE COMPILE MET PROGRAM ARGUMENTS``, where the program is as for Python
itself: a script, ``-m MODULE`` or ``-c CODE``. It sees the arguments, the import path and the `__main__` that Python would give it.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _begin(budget: str, recompute: str, compiles: str, met: str) -> None:
    """Applies the budget in this Python and in every Python that it starts."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
    os.environ["TIGHTFIT_BUDGET"] = budget
    os.environ["TIGHTFIT_RECOMPUTE"] = recompute
    os.environ["TIGHTFIT_COMPILE"] = compiles
    if met:
        os.environ["TIGHTFIT_MET"] = met
    code = f"import sys; sys.path.insert(0, {here!r}); import tightfit_start; sys.path.remove({here!r}); tightfit_start.begin(); "
    exec(code, {})  # The same text begins processes that `multiprocessing` starts, which get our options.
    from tightfit_after_torch import AfterTorch  # type: ignore[import-not-found]  # imported by now

    def spawned() -> None:
        from multiprocessing import spawn

        command_line = spawn.get_command_line

        def with_budget(**arguments: Any) -> list[str]:
            words = command_line(**arguments)
            if "-c" in words:
                words[words.index("-c") + 1] = code + words[words.index("-c") + 1]
            return words

        spawn.get_command_line = with_budget

    sys.meta_path.insert(0, AfterTorch(spawned, "multiprocessing.spawn"))


def _main_module(file: str | None) -> dict[str, Any]:
    """The namespace of a new `__main__`, as Python creates it for a script or for code."""
    module = types.ModuleType("__main__")
    names = module.__dict__
    names["__builtins__"] = sys.modules["builtins"]
    names["__annotations__"] = {}
    if file is not None:
        names["__file__"] = file
        names["__cached__"] = None
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", file)
    sys.modules["__main__"] = module
    return names


def _run(words: list[str], first: str | None) -> None:
    """Runs the program. `first` is the folder of this file, if Python put it on the import path in place of the program's folder."""

    def comes_from(folder: str) -> None:
        if first is not None:
            sys.path.insert(0, folder)

    kind = words[0]
    if kind == "-c":
        comes_from("")
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), _main_module(None))
    elif kind == "-m":
        comes_from(os.getcwd())
        sys.argv = ["-m", *words[2:]]
        _main_module(None)
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # what Python itself calls
    else:
        sys.argv = words
        if not os.path.isfile(kind) or kind.endswith(".pyc"):
            # A folder or an archive with a `__main__` is put on the path by what runs it, and so is none for compiled code.
            runpy.run_path(kind, run_name="__main__")
            return
        comes_from(os.path.dirname(os.path.realpath(kind)))
        path = os.path.abspath(kind)
        with io.open_code(path) as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), _main_module(path))


if __name__ == "__main__":
    _, _budget, _recompute, _compiles, _met, *_words = sys.argv
    _first = None if getattr(sys.flags, "safe_path", False) or sys.flags.isolated else sys.path.pop(0)
    _begin(_budget, _recompute, _compiles, _met)
    _run(_words, _first)
