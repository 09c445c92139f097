"""The installed wheel is all that is needed: the command, the libraries that it preloads, and the package.

A wheel of an unoptimized build carries the libraries with the feature embed-unoptimized, which .ci/run builds.
"""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points, metadata
from pathlib import Path

import pytest
from conftest import ROOT
from tightfit import _native

SCRIPT = Path(sysconfig.get_path("scripts")) / "tightfit"
MODULE = [sys.executable, "-m", "tightfit"]
#: A program that opens cuDNN by name, as JAX does, and says where its functions come from.
OPENS_CUDNN = """
import ctypes, os
cudnn = ctypes.CDLL("libcudnn.so.9")
cudnn.cudnnGetVersion.restype = ctypes.c_size_t
print(cudnn.cudnnGetVersion(), os.environ["LD_PRELOAD"])
"""


def run(command: list[str], home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command for a user whose cache is in ``home``, without the settings of this machine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}
    environment |= {"XDG_CACHE_HOME": str(home), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def unpacked(home: Path) -> list[Path]:
    return sorted((home / "tightfit").glob("*.so"))


def test_the_backend_of_torch_compile_is_registered() -> None:
    [backend] = [backend for backend in entry_points(group="torch_dynamo_backends") if backend.name == "tightfit"]
    assert backend.value == "tightfit._budget.compiled.backend:tightfit"


@pytest.fixture
def cudnn(tmp_path: Path) -> Path:
    """A cuDNN that knows its version and nothing else."""
    source, library = tmp_path / "cudnn.c", tmp_path / "libcudnn.so.9"
    source.write_text("unsigned long cudnnGetVersion(void) { return 91900; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_the_script_and_the_module_are_the_same_command(tmp_path: Path) -> None:
    [script] = [script for script in entry_points(group="console_scripts") if script.name == "tightfit"]
    assert script.value == "tightfit.__main__:main"
    answers = [run([*command, "networks"], tmp_path) for command in ([str(SCRIPT)], MODULE)]
    assert answers[0].returncode == 0 and "vgg16" in answers[0].stdout, answers[0].stderr
    assert answers[0].stdout == answers[1].stdout
    for command in ([str(SCRIPT)], MODULE):
        wrong = run([*command, "plan", "lenet", "--batch", "0"], tmp_path)
        assert (wrong.returncode, wrong.stdout) == (2, "") and "a whole number from 1 to 1048576" in wrong.stderr
        too_small = run([*command, "plan", "vgg19", "--batch", "64", "--budget", "1MiB", "--assume"], tmp_path)
        assert too_small.returncode == 3 and "vgg19" in too_small.stderr
        assert run([*command, "--version"], tmp_path).stdout == f"tightfit {metadata('tightfit')['Version']}\n"


def test_run_preloads_the_library_that_the_command_carries(tmp_path: Path, cudnn: Path) -> None:
    program = ["run", "--quiet", "--cudnn", str(cudnn), "--", sys.executable, "-c", OPENS_CUDNN]
    for command in ([str(SCRIPT)], MODULE):
        answer = run([*command, *program], tmp_path)
        assert answer.returncode == 0, answer.stderr
        version, library = answer.stdout.split()
        assert (version, Path(library)) == ("91900", unpacked(tmp_path)[0])
    assert len(unpacked(tmp_path)) == 1, "written once"


def test_a_changed_library_is_not_used(tmp_path: Path, cudnn: Path) -> None:
    program = [*MODULE, "run", "--cudnn", str(cudnn), "--", "true"]
    assert run(program, tmp_path).returncode == 0
    [library] = unpacked(tmp_path)
    content = library.read_bytes()
    library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert run(program, tmp_path).returncode == 0
    assert library.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_named_with_the_variable(tmp_path: Path, cudnn: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    program = [*MODULE, "run", "--quiet", "--cudnn", str(cudnn), "--", "true"]
    refused = run(program, home)
    assert refused.returncode == 1 and not refused.stdout
    assert str(home / "tightfit") in refused.stderr and "TIGHTFIT_PRELOAD" in refused.stderr
    assert run(program, home, TIGHTFIT_PRELOAD=str(tmp_path)).returncode == 0
    missing = run(program, home, TIGHTFIT_PRELOAD=str(tmp_path / "missing"))
    assert missing.returncode == 1 and f"TIGHTFIT_PRELOAD is {tmp_path / 'missing'}" in missing.stderr
    assert list(tmp_path.glob("libtightfit_preload-*.so"))


def test_doctor_shows_both_libraries_and_where_they_come_from(tmp_path: Path) -> None:
    answer = run([*MODULE, "doctor", "--preload", "--format", "csv"], tmp_path)
    for library in unpacked(tmp_path):
        assert f"carried by the command,{library}," in answer.stdout
    assert len(unpacked(tmp_path)) == 2
    assert "preload library,ok," in run([*MODULE, "doctor", "--format", "csv"], tmp_path).stdout


def checked(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts/check-wheel.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)


def test_nothing_in_the_wheel_needs_a_newer_glibc_than_the_readme_says(tmp_path: Path) -> None:
    """As built on this machine; wheels to publish are built in an image with glibc 2.28, and checked there."""
    import zipfile

    wheel = tmp_path / "tightfit-0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.write(_native.__file__, "tightfit/_native.abi3.so")
        files.writestr("tightfit-0.dist-info/entry_points.txt", "[console_scripts]\ntightfit=tightfit.__main__:main\n")
    assert "glibc 2.34" in (ROOT / "docs/guide/install.md").read_text()
    answer = checked("--glibc", "2.34", wheel)
    faults = [line for line in answer.stderr.splitlines() if "not stripped" not in line]
    assert not faults, "an unoptimized build has symbols; nothing else may be wrong"
    assert answer.stdout.count("carried library") == 2
    small = checked("--glibc", "2.2", "--megabytes", "0.1", wheel)
    assert small.returncode == 1 and "over the limit of 2.2" in small.stderr and "over the limit of 0.1" in small.stderr


def test_a_wheel_without_its_parts_is_refused(tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "tightfit-0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("tightfit/__init__.py", "")
    answer = checked(wheel)
    assert answer.returncode == 1
    assert "no `tightfit` command" in answer.stderr and "carries 0 libraries" in answer.stderr


def test_importing_the_package_leaves_cudnn_to_others():
    """A module with cuDNN's SONAME would be what PyTorch gets when it is imported next."""
    code = """
import ctypes
import tightfit
try:
    cudnn = ctypes.CDLL("libcudnn.so.9")
except OSError:
    print("not installed")
else:
    print("itself" if cudnn._handle == ctypes.CDLL(tightfit._native.__file__)._handle else "another")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() in ("not installed", "another"), found.stdout + found.stderr
