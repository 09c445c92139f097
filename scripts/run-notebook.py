#!/usr/bin/env python3
"""Runs a notebook's cells in this Python, without Jupyter, and writes what they print and give back into it, as plain text.

usage: scripts/run-notebook.py [--check] examples/budget.ipynb ..

Text alone is kept, and no execution times, so that a notebook's changes can be read. With `--check` nothing is written: each cell must
print the kept text except its numbers, and lines with `exact` must be equal to the letter. Exits with 1 otherwise.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path


def run(source: str, names: dict) -> list[dict]:
    """The outputs of a cell."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    with contextlib.redirect_stdout(streams["stdout"]), contextlib.redirect_stderr(streams["stderr"]):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        value = eval(compile(last, "<cell>", "eval"), names) if last is not None else None
    said = {name: stream.getvalue() for name, stream in streams.items() if stream.getvalue()}
    outputs = [{"name": name, "output_type": "stream", "text": text.splitlines(keepends=True)} for name, text in said.items()]
    if value is not None:
        text = repr(value).splitlines(keepends=True)
        outputs.append({"data": {"text/plain": text}, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def executed(notebook: dict) -> dict:
    """The notebook with the outputs of this run."""
    names = {"__name__": "__main__"}
    number = 0
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = run("".join(cell["source"]), names)
            for output in outputs:
                if "execution_count" in output:
                    output["execution_count"] = number
            cell = {**cell, "execution_count": number, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def lines_of(cell: dict) -> list[str]:
    """All lines that a cell shows."""
    parts = [output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", [])]
    return [line.rstrip() for part in parts for line in part]


def differences(kept: dict, now: dict) -> list[str]:
    """The differences from the kept outputs."""
    wrong = []
    for before, after in zip(kept["cells"], now["cells"], strict=True):
        one, other = lines_of(before), lines_of(after)
        # Widths of columns follow the numbers.
        shape = [re.sub(r"[\d.]+", "#", re.sub(r"[ -]+", " ", line)) for line in one]
        if shape != [re.sub(r"[\d.]+", "#", re.sub(r"[ -]+", " ", line)) for line in other]:
            wrong.append(f"cell {after['execution_count']} shows\n" + "\n".join(other) + "\nand not\n" + "\n".join(one))
        wrong += [f"cell {after['execution_count']} lacks: {line}" for line in one if "exact" in line and line not in other]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("notebooks", nargs="+", type=Path)
    options = parser.parse_args()
    os.environ.pop("TIGHTFIT_QUIET", None)
    wrong = []
    for path in options.notebooks:
        kept = json.loads(path.read_text(encoding="utf-8"))
        now = executed(kept)
        if options.check:
            wrong += [f"{path}: {fault}" for fault in differences(kept, now)]
        else:
            path.write_text(json.dumps(now, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
