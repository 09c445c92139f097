"""`tightfit run --budget` reaches the program's Python however it is started, or says that it does not.

Stand-in packages replace torch and the fitting code and print a line: the ways of starting Python are tested, not the fitting.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tightfit

SITE = Path(tightfit.__file__).parent / "_budget/site"

# Loads a library of torch's name, as the watching process sees it, and runs a model.
TORCH = """
import mmap, os, sys
with open(os.path.join(os.path.dirname(__file__), "libtorch_cpu.so"), "rb") as file:
    library = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
models = []
def train():
    for model in models:
        model()
    print("trained", flush=True)
"""
LAUNCH = """
from ..errors import BadInput
def install(met):
    import torch
    torch.models += [lambda: print("fitted", flush=True), met]
"""
TRAIN = "import sys, torch; torch.train(); print(__name__, sys.argv[1:])\n"
FITTED, PLAIN = ["fitted", "trained"], ["trained"]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with the packages that stand in."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [packages] = (folder / "venv/lib").glob("python3*/site-packages")
    for name, text in {"torch/__init__.py": TORCH, "torch/libtorch_cpu.so": "library", "tightfit/__init__.py": "", "tightfit/_budget/__init__.py": "",
                       "tightfit/errors.py": "class BadInput(Exception): pass", "tightfit/_budget/launch.py": LAUNCH}.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    shutil.copytree(SITE, packages / "tightfit/_budget/site", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "venv/bin/python"


@pytest.fixture
def folder(tmp_path, python):
    for name, text in {
        "train.py": TRAIN,
        "pack/__main__.py": TRAIN,
        "pack/__init__.py": "",
        "sites.py": f"import sys; sys.path.append({str(next((python.parent.parent / 'lib').glob('python3*')) / 'site-packages')!r})\n" + TRAIN,
        "imports.py": "import torch\n",
        "idle.py": "print('idle')\n",
        "parent.py": "import subprocess, sys; subprocess.run([sys.executable, '-u', 'train.py'], check=True)\n",
        "cleans.py": "import subprocess, sys; subprocess.run([sys.executable, 'slow.py'], env={}, check=True)\n",
        "slow.py": "import time, torch; torch.train(); time.sleep(2.5)\n",
        "forks.py": "import os, time, torch\nif os.fork(): os.wait(); torch.train()\nelse: time.sleep(1.5)\n",
        "spawns.py": "import multiprocessing as m\ndef child():\n    import torch; torch.train()\nif __name__ == '__main__':\n"
                     "    p = m.get_context('spawn').Process(target=child); p.start(); p.join()\n",
        "tool": f"#!{python} -Es\n" + TRAIN,
        "tool-env": f"#!/usr/bin/env -S {python} -I\n" + TRAIN,
        "train.sh": f"#!/bin/sh\nexec {python} train.py \"$@\"\n",
        "clean.sh": f"#!/bin/sh\nenv -i {python} slow.py\n",
        "isolated.sh": f"#!/bin/sh\n{python} -I slow.py\n",
        "none.sh": "#!/bin/sh\necho none\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(folder, python, command, **variables):
    """The output of a command under a budget, its lines on standard error after the first, and its exit code."""
    command = [str(python) if word == "python" else word for word in command.split()]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "TIGHTFIT_CACHE": "none", "TIGHTFIT_QUIET": "0", "PYTHONPATH": "", **variables}
    # Where no cuDNN is found, which a budget does not need.
    environment.pop("TIGHTFIT_CUDNN", None)
    started = [sys.executable, "-I", "-m", "tightfit", "run", "--quiet", "--budget", "1GiB", "--", *command]
    ran = subprocess.run(started, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    return ran.stdout.splitlines(), ran.stderr.splitlines(), ran.returncode


@pytest.mark.parametrize("command, arguments", [
    ("python train.py a", ["a"]),
    ("python -P train.py", []),
    ("python -I train.py a -I", ["a", "-I"]),
    ("python -E train.py", []),
    ("python -IuX dev train.py", []),
    ("python -S sites.py a", ["a"]),
    ("env -i python train.py a", ["a"]),
    ("env -i A=1 python -E train.py", []),
    ("env -u PYTHONPATH python train.py", []),
    ("python -m train a", ["a"]),
    ("python -m pack a", ["a"]),
    ("python -E -m pack a", ["a"]),
    ("python -Em train a", ["a"]),
    ("python -E pack a", ["a"]),
    ("env -i python -m train", []),
    ("./tool a", ["a"]),
    ("./tool-env a b", ["a", "b"]),
    ("sh train.sh a", ["a"]),
    ("./train.sh a", ["a"]),
    ("nohup python train.py", []),
    ("python parent.py", []),
    ("python -I parent.py", []),
])
def test_a_program_is_fitted_however_it_is_started(command, arguments, python, folder):
    out, err, code = run(folder, python, command)
    assert (out, err, code) == ([*FITTED, f"__main__ {arguments}"], [], 0)


@pytest.mark.parametrize("options", ["", "-I"])
def test_processes_that_a_program_spawns_or_forks_are_fitted(options, python, folder):
    assert run(folder, python, f"python {options} spawns.py") == (FITTED, [], 0)
    assert run(folder, python, f"python {options} forks.py") == (FITTED, [], 0)


@pytest.mark.parametrize("options", ["", "-I", "-E"])
def test_code_is_fitted_as_well(options, python, folder):
    (folder / "code.sh").write_text(f"exec {sys.executable} -I -m tightfit run --quiet --budget 1GiB -- {python} {options} -c '{TRAIN.strip()}' a\n")
    ran = subprocess.run(["sh", "code.sh"], cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "TIGHTFIT_CACHE": "none"})
    assert (ran.stdout.splitlines(), ran.stderr, ran.returncode) == ([*FITTED, "__main__ ['a']"], "", 0)


def test_files_of_the_program_with_our_names_are_the_programs(python, folder):
    (folder / "tightfit.py").write_text("note = 'mine'\n")
    (folder / "sitecustomize.py").write_text("print('never read')\n")
    (folder / "train.py").write_text("import torch; torch.train(); import tightfit; print(tightfit.note)\n")
    (folder / "before.py").write_text("import tightfit, torch; torch.train(); import tightfit as again; print(again is tightfit and again.note)\n")
    for command in ("python train.py", "python -E train.py", "env -i python train.py", "python -m train", "python before.py"):
        assert run(folder, python, command) == ([*FITTED, "mine"], [], 0), command
    # A customization on the import path is read, as without us.
    out, err, code = run(folder, python, "python train.py", PYTHONPATH=str(folder))
    assert (out, err, code) == (["never read", *FITTED, "mine"], [], 0)


@pytest.mark.parametrize("command, said", [
    ("sh clean.sh", ["loaded torch without the budget", "an environment of its own"]),
    ("sh isolated.sh", ["loaded torch without the budget", "python -I, -E or -S"]),
    ("python cleans.py", ["loaded torch without the budget"]),
    ("python idle.py", ["the budget was not applied: no process imported torch"]),
    ("python -I idle.py", ["the budget was not applied: no process imported torch"]),
    ("python imports.py", ["the budget was not applied: no model ran with gradients"]),
    ("sh none.sh", ["the budget was not applied: no Python was started"]),
])
def test_a_budget_that_is_not_applied_says_so(command, said, python, folder):
    out, err, code = run(folder, python, command)
    assert len(err) == 1 and all(part in err[0] for part in said), err
    # It goes on as without us.
    assert code == 0 and "fitted" not in out


@pytest.mark.parametrize("command, said", [
    ("python -I", "from standard input"),
    ("env -i python -", "from standard input"),
    ("/usr/bin/env no-python-of-this-name x.py", "no-python-of-this-name"),
])
def test_an_unreachable_python_is_refused_before_it_starts(command, said, python, folder):
    out, err, code = run(folder, python, command)
    assert out == [] and code != 0 and said in " ".join(err), err


def test_a_package_that_does_not_work_ends_the_program_where_it_imports_torch(python, folder, tmp_path):
    [launch] = python.parent.parent.glob("lib/python3*/site-packages/tightfit/_budget/launch.py")
    launch.write_text("raise ImportError('made for another Python')\n")
    try:
        for command in ("python train.py", "python -I train.py", "sh train.sh"):
            out, err, code = run(folder, python, command)
            assert (out, code) == ([], 1) and len(err) == 1, (command, err)
            assert "the budget cannot be applied" in err[0] and "made for another Python" in err[0]
    finally:
        launch.write_text(LAUNCH)


def test_without_the_package_beside_torch_nothing_starts(python, folder, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    for options in ("", "-I "):
        out, err, code = run(folder, python, f"{tmp_path}/bare/bin/python {options}train.py", PYTHONPATH="")
        assert (out, code) == ([], 1) and "-m pip install tightfit" in err[0], err
