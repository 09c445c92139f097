"""Tables in the documents that scripts print from measured lines."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
GPU_VERSIONS = ("cudnn", "driver", "cuda")


def printed(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def check_results(page: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/results.py", "--check", "--page", str(page)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_tables_of_the_results_equal_the_measurements() -> None:
    checked = check_results(ROOT / "docs/results.md")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_number_of_the_results_that_was_not_measured_is_found(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs/results.md").read_text()
    begin = page.index("<!-- table budgets -->")
    wrong = page[:begin] + re.sub(r"\| (\d+)\.(\d) ms \|", r"| \g<1>9.\2 ms |", page[begin:], count=1)
    assert wrong != page
    (tmp_path / "results.md").write_text(wrong)
    checked = check_results(tmp_path / "results.md")
    assert checked.returncode == 1
    assert checked.stdout.startswith("budgets\n")


def test_the_picture_of_plans_equals_the_measurements(tmp_path: pathlib.Path) -> None:
    printed("scripts/joint-picture.py", str(tmp_path / "drawn.svg"))
    assert (tmp_path / "drawn.svg").read_text() == (ROOT / "docs/pictures/joint-plan.svg").read_text()


def lacking(folder: pathlib.Path) -> list[str]:
    """The fields that lines of measured files lack: `FILE: FIELD` for each line without it."""
    reader = f"""
import json, pathlib, sys
sys.path.insert(0, "scripts")
import measured_lines
for path in sorted(pathlib.Path({str(folder)!r}).glob("*.jsonl")):
    for line in measured_lines.read(path):
        print(json.dumps([path.name, line]))
"""
    found = []
    for name, line in map(json.loads, printed("-c", reader).splitlines()):
        versions = GPU_VERSIONS if "NVIDIA" in line.get("device", "NVIDIA") else ("rustc",)
        torch = ("torch",) if "scripts/" in line.get("command", "") else ()
        transcribed = ("from",) if "-printed" in name else ()
        wanted = ("command", "device", "date", *versions, *torch, *transcribed)
        found += [f"{name}: {field}" for field in wanted if not line.get(field)]
        if not re.fullmatch(r"20\d\d-\d\d-\d\d", line.get("date", "")):
            found.append(f"{name}: a day")
    return found


def test_every_measured_line_names_its_command_and_device() -> None:
    measured = ROOT / "docs/measured"
    assert len(list(measured.glob("*.jsonl"))) >= 7
    assert lacking(measured) == []


def test_a_measured_line_without_a_command_or_a_version_is_found(tmp_path: pathlib.Path) -> None:
    whole = {"command": "scripts/gpu-papers.sh", "device": "NVIDIA H200", "date": "2026-11-23"}
    versions = {"cudnn": "9.19.0", "driver": "580.159.04", "cuda": "13.0", "torch": "2.11.0"}
    without = {name: value for name, value in whole.items() if name != "command"}
    lines = [{"about": whole | versions}, {"step_ms": 1}, {"about": without | versions}, {"step_ms": 2}, {"about": whole}, {"step_ms": 3}]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert lacking(tmp_path) == [f"one.jsonl: {field}" for field in ("command", *GPU_VERSIONS, "torch")]


def check_papers(page: pathlib.Path, *tables: str) -> subprocess.CompletedProcess[str]:
    binary = os.environ.get("TIGHTFIT_COMMAND", str(ROOT / "target/debug/tightfit"))
    if not pathlib.Path(binary).exists():
        pytest.skip(f"{binary} is not built")
    command = [sys.executable, "scripts/papers.py", "--check", "--tightfit", binary, "--page", str(page), *tables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


# These plan the deepest networks, for tens of seconds in an unoptimized build: CONTRIBUTING.md has a command for all tables.
SLOW = {"mucudnn-variables", "vdnn-memory-ours", "vdnn-figure-13-h200", "summary"}


@pytest.mark.long
def test_replayed_numbers_of_the_papers_equal_their_commands() -> None:
    page = ROOT / "docs/papers.md"
    tables = set(re.findall(r"<!-- table (\S+) -->", page.read_text()))
    assert tables > SLOW
    checked = check_papers(page, *sorted(tables - SLOW))
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
