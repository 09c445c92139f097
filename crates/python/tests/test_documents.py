"""Tables in the documents that scripts print from what was measured."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def printed(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_table_of_the_defaults_is_what_was_measured() -> None:
    table = printed("scripts/defaults-table.py", "table", "docs/measured/defaults.jsonl")
    assert table.count("\n") > 20
    assert table in (ROOT / "docs/results.md").read_text()


def check_papers(page: pathlib.Path, *tables: str) -> subprocess.CompletedProcess[str]:
    binary = os.environ.get("TIGHTFIT_COMMAND", str(ROOT / "target/debug/tightfit"))
    if not pathlib.Path(binary).exists():
        pytest.skip(f"{binary} is not built")
    command = [sys.executable, "scripts/papers.py", "--check", "--quick", "--tightfit", binary, "--page", str(page), *tables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_replayed_numbers_of_the_papers_are_what_their_commands_print() -> None:
    checked = check_papers(ROOT / "docs/papers.md")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_number_that_no_command_prints_is_found(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs/papers.md").read_text()
    wrong = page.replace("| 93.7%, at most 3 MiB |", "| 93.8%, at most 3 MiB |", 1)
    assert wrong != page
    (tmp_path / "papers.md").write_text(wrong)
    checked = check_papers(tmp_path / "papers.md", "mucudnn-figure-12")
    assert checked.returncode == 1
    assert "mucudnn-figure-12" in checked.stdout
    assert "+| AlexNet in two groups, f32" in checked.stdout
