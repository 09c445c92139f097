"""The example notebook, run without Jupyter: it shows what is kept in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT, NOTEBOOK = ROOT / "scripts/run-notebook.py", ROOT / "examples/budget.ipynb"


def check(notebook):
    return subprocess.run([sys.executable, SCRIPT, "--check", notebook], capture_output=True, text=True, check=False)


def test_the_notebook_shows_what_is_kept_in_it():
    answer = check(NOTEBOOK)
    assert answer.returncode == 0, answer.stderr


def test_other_output_and_a_false_claim_are_found(tmp_path):
    cell = {"cell_type": "code", "source": ["print('exact', 41)\n", "2"], "metadata": {}, "id": "a"}

    def kept(*lines):
        outputs = [{"output_type": "stream", "name": "stdout", "text": [lines[0]]}, {"output_type": "execute_result", "data": {"text/plain": [lines[1]]}}]
        (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [{**cell, "outputs": outputs}]}))
        return check(tmp_path / "a.ipynb")

    assert kept("exact 41\n", "2").returncode == kept("exact 41\n", "3").returncode == 0
    assert "lacks: exact 42" in kept("exact 42\n", "2").stderr
    assert "cell 1 shows" in kept("other 41\n", "2").stderr


def test_the_notebook_is_one_and_is_readable_as_text():
    text = NOTEBOOK.read_text()
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert {kind for cell in notebook["cells"] for output in cell.get("outputs", ()) for kind in output.get("data", {"text/plain": 0})} == {"text/plain"}
    assert len(text.splitlines()) < 300
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.from_dict(notebook))
