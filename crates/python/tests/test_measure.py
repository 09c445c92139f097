"""The candidates of one convolution: measured on the CPU, or answered from recordings."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

import tightfit

PROBLEM = "forward n4 c2 h8 w8 k4 r3 s3 pad1 f32"
HERE = {"backend": "cpu", "threads": 1, "cache": "none"}


def test_candidates_are_within_the_limit_and_the_mini_batch():
    found = tightfit.measure(PROBLEM, sizes="all", workspace="4KiB", **HERE)
    assert found.measured >= len(found) == len(found.candidates) > 4 and found.cached == 0
    for one in found:
        assert 0 <= one.workspace_bytes <= 4096 and one.time_us > 0
    assert {one.micro_batch for one in found} == {1, 2, 3, 4}
    assert {one.micro_batch for one in tightfit.measure(PROBLEM, sizes="undivided", **HERE)} == {4}
    order = [(-one.micro_batch, one.time_us) for one in found]
    assert order == sorted(order) and found[0].micro_batch == 4, "every algorithm on the whole mini-batch comes first"
    assert (found.problem.split()[0], found.backend, found.batch, found.cache) == ("forward", "cpu", 4, None)
    assert found.fastest.time_us / found.fastest.micro_batch == min(one.time_us / one.micro_batch for one in found)
    assert repr(found).startswith("<Measured convolution forward b4 on ") and "\n" not in repr(found)


def test_measurements_are_kept(tmp_path):
    cache = tmp_path / "cache.db"
    first = tightfit.measure(PROBLEM, sizes="undivided", **{**HERE, "cache": cache})
    again = tightfit.measure(PROBLEM, sizes="undivided", **{**HERE, "cache": cache})
    assert first.measured > 0 and first.cached == 0 and again.measured == 0 and again.cached > 0
    assert again.candidates == first.candidates and again.cache == str(cache)
    # Again, without a device.
    assert tightfit.measure(PROBLEM, sizes="undivided", backend="replay", cache=cache).candidates == first.candidates


def test_a_recorded_layer_is_answered_without_a_device(recorded):
    found = tightfit.measure("alexnet-1col", "conv2", "backward-data", 256, sizes="all", profile=recorded)
    rows = tightfit.Profile.open(recorded).rows(problem=found.problem.replace(" n256", ""))
    known = {(row["micro_batch"], row["algorithm"], row["time_us"], row["workspace_bytes"]) for row in rows}
    assert {(one.micro_batch, one.algorithm, one.time_us, one.workspace_bytes) for one in found} <= known
    assert (found.layer, found.operation, "H200" in found.device) == ("conv2", "backward-data", True)
    assert found.workspace_limit_bytes == 64 << 20 and max(one.workspace_bytes for one in found) <= 64 << 20
    assert found.to_dict()["candidates"][0]["micro_batch"] == 256


def test_frames_have_a_row_for_each_candidate(recorded):
    pytest.importorskip("pandas")
    found = tightfit.measure("alexnet-1col", "conv2", batch=256, profile=recorded)
    frame = found.frame()
    assert list(frame.columns) == ["micro_batch", "algorithm", "time_us", "workspace_bytes"] and len(frame) == len(found)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("lenet",), "layer='conv1'"),
        ((PROBLEM, None, "forward", 3), "its own batch"),
        (("lenet", "conv9", "forward", 4), "conv1, conv2"),
        (("lenet", "conv1", "sideways", 4), "backward-filter"),
        (("lenet", "conv1", "forward", 0), "batch=0"),
        (("forward n4 c2 h8",), "`r` is missing"),
    ],
)
def test_wrong_input_is_named(arguments, part):
    with pytest.raises(tightfit.BadInput, match=part):
        tightfit.measure(*arguments, **HERE)


def test_a_missing_gpu_is_an_error_of_the_backend(monkeypatch):
    monkeypatch.setenv("TIGHTFIT_CUDA", "/nowhere/libcuda.so")
    with pytest.raises(tightfit.BackendError, match="/nowhere/libcuda.so"):
        tightfit.measure(PROBLEM, backend="cuda", cache="none")
    assert tightfit.measure(PROBLEM, sizes="undivided", cache="none", threads=1).backend == "cpu", "auto"


def test_a_measurement_that_cannot_fit_is_refused_before_it_begins():
    with pytest.raises(tightfit.BackendError, match="nothing was measured"):
        tightfit.measure("forward n1048576 c64 h224 w224 k64 r3 s3 pad1 f32", **HERE)


def kept(cache):
    """The contents of a cache that another process may be creating."""
    try:
        return tightfit.Profile.open(cache).rows()
    except tightfit.FileError:
        return []


def test_ctrl_c_keeps_measurements(tmp_path):
    """Every size of a larger convolution takes long; the signal comes in the middle."""
    cache = tmp_path / "cache.db"
    program = f"""
        import signal, tightfit
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("begin", flush=True)
        try:
            for size in range(14, 200):
                problem = f"forward n64 c16 h{{size}} w{{size}} k16 r3 s3 pad1 f32"
                tightfit.measure(problem, sizes="all", backend="cpu", threads=1, cache={str(cache)!r})
        except KeyboardInterrupt:
            print("stopped")
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begin\n"
    while not kept(cache):
        assert child.poll() is None, "it ends only when it is told to"
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert (out, child.returncode) == ("stopped\n", 0)
    assert kept(cache)
