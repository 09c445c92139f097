"""Installs a wheel as a user would, in a fresh environment, and tries what it brings; no GPU is needed.

``tightfit run`` runs a program on the mock driver and the mock cuDNN that a build of the tests leaves in the target folder.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CPU_TORCH = "https://download.pytorch.org/whl/cpu"
#: Starts a program that convolves on cuDNN, as PyTorch's workers are started: the library reaches it through Python.
STARTS = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
CONVOLVES = "import torch; print(torch.nn.Conv2d(1, 1, 3)(torch.ones(1, 1, 8, 8)).shape)"


class Failed(Exception):
    """The expectation of a step, and the result."""


def found_mocks(target: Path) -> tuple[Path, Path, Path] | None:
    """The mock driver, the mock cuDNN and the C program of the tests, of the newest build in a target folder."""
    builds = []
    for profile in sorted(path for path in target.glob("*") if path.is_dir()):
        libraries = [profile / f"deps/libtightfit_mock_{name}.so" for name in ("cuda", "cudnn")]
        clients = sorted(profile.glob("build/tightfit-test-support-*/out/Linked"), key=lambda path: path.stat().st_mtime)
        if all(path.is_file() for path in libraries) and clients:
            builds.append((*libraries, clients[-1]))
    return max(builds, key=lambda build: build[0].stat().st_mtime, default=None)


class Trial:
    """A fresh environment, and what went wrong in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wrong = folder, []
        self.python = folder / "venv/bin/python"
        self.environment = {
            "PATH": f"{folder / 'venv/bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "TIGHTFIT_CUDA": str(folder / "no-driver.so"),
        }
        # How packages are reached from here is part of the machine.
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "SSL"))}

    def run(self, *command: str | Path, codes: tuple[int, ...] = (0,), **variables: str) -> str:
        """The output of a command on both streams; fails if it exits with another code."""
        done = subprocess.run(
            [str(word) for word in command], cwd=self.folder, env=self.environment | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        if done.returncode not in codes:
            raise Failed(f"`{' '.join(map(str, command))}` exited with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def step(self, name: str, do: Callable[[], str]) -> None:
        """Does one thing, and prints its time and output."""
        begin = time.monotonic()
        try:
            said, state = do(), "ok"
        except (Failed, OSError) as failure:
            said, state = str(failure), "FAILED"
            self.wrong.append(f"{name}: {failure}")
        seconds = time.monotonic() - begin
        print(f"{state:6} {seconds:6.1f} s  {name}: {said.strip().splitlines()[0] if said.strip() else 'no output'}")


def expect(condition: bool, what: str, got: str) -> str:
    if not condition:
        raise Failed(f"{what}; got:\n{got}")
    return got


def borrow(python: Path, environment: Path) -> str:
    """Lets an environment see the packages of another one."""
    [ours] = python.parents[1].glob("lib/python*/site-packages")
    [theirs] = environment.resolve().glob("lib/python*/site-packages")
    (ours / "borrowed.pth").write_text(f"{theirs}\n")
    return f"that of {environment}"


def try_wheel(wheel: Path, target: Path, torch: str | None) -> list[str]:
    """Installs and tries a wheel; prints a line per step, and returns what is wrong."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        trial = Trial(Path(name))
        run, python = trial.run, trial.python
        trial.step("fresh environment", lambda: run(sys.executable, "-m", "venv", "venv") or f"Python {sys.version.split()[0]}")
        if torch and Path(torch).is_dir():
            trial.step("torch", lambda: borrow(python, Path(torch)))
        elif torch:
            pip = ("-m", "pip", "install", "--quiet", "--index-url", torch, "torch")
            trial.step("install torch", lambda: run(python, *pip) or f"from {torch}")
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", wheel.resolve())
        trial.step("install the wheel", lambda: run(python, *pip) or wheel.name)
        for command in (("tightfit",), (python, "-m", "tightfit")):
            words = [Path(word).name for word in command]
            trial.step(
                f"{' '.join(words)} --version",
                lambda command=command: expect_version(run(*command, "--version"), version),
            )
        shows = "import tightfit; print(tightfit.__version__)"
        trial.step("import tightfit", lambda: expect(version in (said := run(python, "-c", shows)), version, said))
        trial.step("tightfit plan", lambda: run("tightfit", "plan", "vgg19", "--batch", "128", "--budget", "8GiB", "--assume"))
        trial.step("tightfit doctor --preload", lambda: check_doctor(trial, torch is not None))
        mocks = found_mocks(target)
        if mocks is None:
            trial.wrong.append(f"{target} has no mock libraries; build them with `cargo test -p tightfit --no-run`")
        else:
            trial.step("tightfit run -- python -c ..", lambda: check_run(trial, mocks))
            if torch:
                trial.step("tightfit run, torch", lambda: run_torch(trial, mocks))
        return trial.wrong


def expect_version(said: str, version: str) -> str:
    return expect(said.split()[:2] == ["tightfit", version], f"tightfit {version}", said)


def check_doctor(trial: Trial, torch: bool) -> str:
    """Both libraries that the command carries must be usable; without CUDA's torch the check itself fails."""
    said = trial.run("tightfit", "doctor", "--preload", "--format", "csv", codes=(0, 1))
    carried = sum(",ok," in line and "carried by the command" in line for line in said.splitlines())
    expect(carried == 2, "two carried libraries", said)
    missing = "torch" in said and not torch
    return f"{carried} libraries carried{', torch missing as expected' if missing else ''}"


def check_run(trial: Trial, mocks: tuple[Path, Path, Path]) -> str:
    """A convolution on the mocks must be divided under a small limit."""
    driver, cudnn, client = mocks
    (trial.folder / "libcudnn.so.9").symlink_to(cudnn.resolve())
    program = trial.folder / "client"
    program.write_bytes(client.read_bytes())
    program.chmod(0o755)
    options = ("--workspace", "16KiB", "--tune", "first", "--report", "report.json", "--cudnn", trial.folder / "libcudnn.so.9")
    command = ("tightfit", "run", *options, "--", "python", "-c", STARTS, program, "engine=2", "n=12", "out=result")
    trial.run(*command, TIGHTFIT_CUDA=str(driver), TIGHTFIT_MOCK_CUDA=str(driver))
    [kernel] = json.loads((trial.folder / "report.json").read_text())["kernels"]
    used = kernel["ours"]["workspace_bytes"]
    expect(used <= 16 << 10, "at most 16 KiB of workspace", json.dumps(kernel))
    return f"one convolution, {kernel['decision']}, in {used} bytes of workspace"


def run_torch(trial: Trial, mocks: tuple[Path, Path, Path]) -> str:
    """CPU PyTorch has no cuDNN, and must run as without the command."""
    said = trial.run("tightfit", "run", "--quiet", "--cudnn", mocks[1], "--", "python", "-c", CONVOLVES)
    return expect("torch.Size([1, 1, 6, 6])" in said, "a convolution's shape", said)
