"""The example from a program to a split and a picture, on two mock GPUs of unequal speed, over a C program on cuDNN."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import tightfit

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[3]
BUILT = ROOT / "target/debug"
FAST, SLOW = "Fast Mock", "Slow Mock"
# Each GPU's name, and how many times slower than usual it computes: a launch is little of each kernel.
PROGRAM = f"""#!/bin/sh
case "$CUDA_VISIBLE_DEVICES" in
0) export TIGHTFIT_MOCK_CUDA_NAME='{SLOW}' TIGHTFIT_MOCK_CUDNN_SLOWDOWN=600 ;;
1) export TIGHTFIT_MOCK_CUDA_NAME='{FAST}' TIGHTFIT_MOCK_CUDNN_SLOWDOWN=200 ;;
esac
exec "$(dirname "$0")/bin/client" "$@"
"""


@pytest.fixture
def machine(tmp_path):
    """The environment of a machine with two mock GPUs, and a program next to its cuDNN, from the build of `cargo test`."""
    libraries = {name: BUILT / f"deps/libtightfit_{name}.so" for name in ["mock_cuda", "mock_cudnn", "preload"]}
    clients = sorted(BUILT.glob("build/tightfit-test-support-*/out/Linked"), key=lambda path: path.stat().st_mtime)
    command = Path(os.environ.get("TIGHTFIT_COMMAND", BUILT / "tightfit"))
    missing = [str(path) for path in [command, *libraries.values()] if not path.exists()]
    if missing or not clients:
        pytest.skip(f"not built: {', '.join(missing) or 'the C program'}; `cargo test -p tightfit --no-run` builds it")
    (tmp_path / "bin").mkdir()
    shutil.copy(clients[-1], tmp_path / "bin/client")
    (tmp_path / "bin/libcudnn.so.9").symlink_to(libraries["mock_cudnn"])
    program = tmp_path / "client"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}
    environment |= {
        "TIGHTFIT_COMMAND": str(command),
        "TIGHTFIT_CUDA": str(libraries["mock_cuda"]),
        "TIGHTFIT_MOCK_CUDA": str(libraries["mock_cuda"]),
        "TIGHTFIT_CUDNN": str(tmp_path / "bin/libcudnn.so.9"),
        "TIGHTFIT_PRELOAD": str(BUILT / "deps"),
    }
    return environment


def run(arguments, folder, environment):
    command = [sys.executable, ROOT / "examples/program_to_split.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_program_is_recorded_optimized_split_and_drawn(machine, tmp_path):
    batch = 8
    # One layer's forward, backward-data and backward-filter.
    program = ["./client", "engine=2", "net=3", f"n={batch}"]
    options = ["--gpus", "0,1", "--workspace", "32KiB"]
    done = run([*options, *program], tmp_path, machine)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": 3 kernels in ") == 2, done.stdout

    profile = tightfit.Profile.open(tmp_path / "program_to_split.db")
    assert sorted(device["name"] for device in profile.devices) == [FAST, SLOW]
    assert sorted(layer["problem"].split()[0] for layer in profile.layers) == ["backward-data", "backward-filter", "forward"]
    slow, fast = [tightfit.optimize("client", workspace="32KiB", profile=profile, device=device) for device in [SLOW, FAST]]
    assert fast.time_us < slow.time_us
    for found in [slow, fast]:
        for kernel in found.kernels:
            assert sum(part.micro_batch for part in kernel.configuration) == batch
            assert kernel.workspace_bytes <= 32 << 10

    found = tightfit.split(batch, [SLOW, FAST], network="client", profile=profile, workspace="32KiB")
    assert sum(found.batches) == batch and found.batches[1] >= found.batches[0]
    assert found.time_us <= min(found.even_time_us, found.alone_time_us)
    for device in found.devices:
        assert f"{device.device}: {device.batch} of {batch} samples" in done.stdout, done.stdout

    picture = ElementTree.parse(tmp_path / "program_to_split.svg").getroot()
    texts = " ".join("".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text"))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert all(text in texts for text in [FAST, SLOW, "client, mini-batch 8"]), texts

    again = run([*options, *program], tmp_path, machine)
    assert again.stdout == done.stdout, again.stderr
    assert tightfit.Profile.open(tmp_path / "program_to_split.db").rows() == profile.rows(), "the second run measures nothing"


def test_impossible_requests_end_in_one_line(machine, tmp_path):
    program = ["./client", "engine=2", "n=2"]
    for arguments, variables, said in [
        (["./client", "idle=1"], {}, "./client ran no convolution on GPU 0"),
        (["./nowhere"], {}, "./nowhere failed on GPU 0"),
        (program, {"TIGHTFIT_COMMAND": "/nowhere/tightfit"}, "/nowhere/tightfit was not found"),
        (["--batch", "1048577", *program], {}, "1048576"),
    ]:
        done = run(["--gpus", "0", *arguments], tmp_path, machine | variables)
        assert done.returncode == 1 and said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
