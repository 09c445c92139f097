"""Tables in the documents that scripts print from what was measured."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]


def printed(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_table_of_the_defaults_is_what_was_measured() -> None:
    table = printed("scripts/defaults-table.py", "table", "docs/measured/defaults.jsonl")
    assert table.count("\n") > 20
    assert table in (ROOT / "docs/results.md").read_text()
