"""Shared fixtures: the repository's recorded profiles, and the command to compare with."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def recorded() -> str:
    return str(ROOT / "profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz")


@pytest.fixture(scope="session")
def mixed() -> str:
    return str(ROOT / "profiles/synthetic-mixed-cluster.jsonl")


@pytest.fixture(scope="session")
def command():
    """Standard output of ``tightfit`` with these arguments; the binary of ``cargo build``, or TIGHTFIT_COMMAND."""
    binary = os.environ.get("TIGHTFIT_COMMAND", str(ROOT / "target/debug/tightfit"))
    if not Path(binary).exists():
        pytest.skip(f"{binary} is not built")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}

    def run(*arguments: str) -> str:
        return subprocess.run([binary, *arguments], env=environment, check=True, capture_output=True, text=True).stdout

    return run
