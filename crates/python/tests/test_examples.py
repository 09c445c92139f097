"""The examples run, and docstrings' examples say what happens."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import tightfit

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("example", "lines"),
    [
        ("best_batch_size.py", ["['K80', 'K80', 'K20Xm'] [12, 12, 8]"]),
        ("mixed_cluster.py", ["2.12x over one K80 chip", "2.20x over one K80 chip", "1.37x over the even split"]),
    ],
)
def test_examples_run(example, lines):
    out = subprocess.run([sys.executable, ROOT / "examples" / example], check=True, capture_output=True, text=True).stdout
    for line in lines:
        assert line in out


@pytest.mark.parametrize("function", ["front", "measure", "network", "optimize", "plan", "split", "verify"])
def test_docstrings(function, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = sys.modules[getattr(tightfit, function).__module__]
    assert ">>>" in getattr(tightfit, function).__doc__
    results = doctest.testmod(module)
    assert results.attempted >= 2 and results.failed == 0
