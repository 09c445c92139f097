"""``python -m tightfit.names`` runs a program as ``python`` does. That layers get their names needs torch: tests_torch."""

import os
import subprocess
import sys

import pytest


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tightfit.names", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("value = 5\n")
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\nfrom beside import value\nprint(__name__, sys.argv[1:], value, 'torch' in sys.modules)\nsys.exit(value)\n"
    )
    return file


def test_a_file_sees_its_arguments_its_neighbors_and_its_exit_code(program):
    done = run(str(program), "a b", "--flag")
    assert (done.returncode, done.stdout) == (5, "__main__ ['a b', '--flag'] 5 False\n"), done.stderr


def test_a_module_runs_too(program):
    path = os.pathsep.join(filter(None, (str(program.parent), os.environ.get("PYTHONPATH"))))
    done = run("-m", "program", "x", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (5, "__main__ ['x'] 5 False\n"), done.stderr


def test_nothing_to_run_is_said():
    for arguments in [(), ("-m",), ("--help",)]:
        done = run(*arguments)
        assert done.returncode == 1 and "usage: python -m tightfit.names" in done.stderr
