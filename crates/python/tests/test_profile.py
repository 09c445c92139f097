"""Profiles as data: rows, frames, caches; networks; and that the package stays light and stops when asked."""

import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import tightfit
from tightfit import _native


def test_rows_are_the_measurements(recorded):
    profile = tightfit.Profile.open(recorded)
    (device,) = profile.devices
    rows = profile.rows()
    assert "H200" in device["name"] and device["measurements"] == len(rows) > 10_000
    assert device["problems"] == len(profile.problems) == 15
    row = rows[0]
    assert row["device"] == device["name"] and row["time_us"] > 0 and row["repeats"] >= 1
    assert {type(row[name]) for name in ("micro_batch", "workspace_bytes")} == {int}
    filters = profile.rows(problem="backward-filter")
    assert 0 < len(filters) < len(rows) and all("backward-filter" in row["problem"] for row in filters)
    assert profile.rows(device="h200") == rows
    with pytest.raises(tightfit.BadInput, match="H200"):
        profile.rows(device="K80")


def test_frames_need_pandas_only(recorded):
    pandas = pytest.importorskip("pandas")
    profile = tightfit.Profile.open(recorded)
    frame = profile.frame(problem="forward c3 ")
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(profile.rows(problem="forward c3 "))
    assert frame.groupby("algorithm").time_us.min().min() > 0


def test_caches_take_in_profiles_and_each_other(tmp_path, recorded, mixed, command):
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    taken = tightfit.merge(first, recorded)
    assert taken == len(tightfit.Profile.open(first).rows())
    tightfit.record_steps(second, "Slow One", "resnet18", [(1, 10.5, 1000), (2, 20.0, 2000)], library="torch 2")
    assert tightfit.merge(first, second, mixed) == 2 + 3 * 32
    profile = tightfit.Profile.open(first)
    steps = profile.rows(device="Slow")
    assert [(row["problem"], row["micro_batch"], row["time_us"], row["workspace_bytes"]) for row in steps] == [
        ("step resnet18 f32", 1, 10.5, 1000),
        ("step resnet18 f32", 2, 20.0, 2000),
    ]
    listed = json.loads(command("cache", "list", "--cache", str(first), "--format", "json"))
    assert {line["device"]: int(line["measurements"]) for line in listed} == {
        device["name"]: device["measurements"] for device in profile.devices
    }
    ours = tightfit.optimize("alexnet-1col", 256, workspace="64MiB", cache=first, device="H200")
    assert ours.time_us == tightfit.optimize("alexnet-1col", 256, workspace="64MiB", profile=recorded).time_us


def test_a_profile_reaches_worker_processes_whole(tmp_path, recorded, mixed):
    cache = tmp_path / "cache.db"
    tightfit.merge(cache, recorded, mixed)
    for source in ([cache], [recorded, mixed]):
        profile = tightfit.Profile.open(*source)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(profile, protocol))
            assert copy.rows() == profile.rows() and copy.layers == profile.layers and copy.devices == profile.devices
        with multiprocessing.get_context("spawn").Pool(1) as workers:
            assert workers.apply(len, (profile.rows(),)) == workers.apply(_count, (profile,)) > 10_000


def _count(profile):
    return len(profile.rows())


def test_other_pickles_are_refused():
    with pytest.raises(tightfit.BadInput, match="line 1"):
        _native.restore_recordings([b"no profile"])


def test_the_default_cache_is_the_command_s(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTFIT_CACHE", "none")
    with pytest.raises(tightfit.BadInput, match="TIGHTFIT_CACHE"):
        tightfit.default_cache()
    with pytest.raises(tightfit.BadInput, match="TIGHTFIT_CACHE"):
        tightfit.Profile.open()
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "mine.db"))
    assert tightfit.default_cache() == tmp_path / "mine.db"
    monkeypatch.delenv("TIGHTFIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tightfit.default_cache() == tmp_path / "tightfit" / "cache.db"


def test_damaged_files_are_refused(tmp_path):
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(tightfit.FileError) as refused:
        tightfit.Profile.open(broken)
    assert refused.value.path == str(broken)
    cut = tmp_path / "cut.jsonl"
    cut.write_text('{"format":"tightfit-profile","version":1}\n{"device"')
    with pytest.raises(tightfit.FileError, match="line 2"):
        tightfit.Profile.open(cut)


def test_networks_are_listed_with_their_layers(command):
    ours = tightfit.networks()
    theirs = json.loads(command("networks", "--format", "json"))
    assert ours._rows() == theirs
    layers = tightfit.network("alexnet")
    convolutions = [layer for layer in layers if layer.kind == "convolution"]
    assert [layer.layer for layer in convolutions] == ["conv1", "conv2", "conv3", "conv4", "conv5"]
    assert (convolutions[1].channels, convolutions[1].extents) == (256, (27, 27))


def test_importing_stays_light():
    heavy = "{'torch', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys, tightfit; assert not {heavy}"], check=True)


def test_other_threads_go_on_meanwhile():
    """A long exact split: this thread could not count if the interpreter were locked."""
    times = [[(n, float(n * n % 977 + n + device)) for n in range(1, 4097)] for device in range(24)]
    worker = threading.Thread(target=tightfit.split_times, args=(times, 4096))
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 5


def test_ctrl_c_stops_a_long_call(recorded):
    """`all` on many layers takes long in one call after the other; the signal comes in the middle."""
    program = f"""
        import signal
        # A test run in the background of a shell inherits that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import tightfit
        profile = tightfit.Profile.open({recorded!r})
        print("begin", flush=True)
        try:
            while True:
                tightfit.optimize("alexnet-1col", 256, workspace="64MiB", sizes="all", profile=profile)
        except KeyboardInterrupt:
            print("stopped")
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begin\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    assert (out, child.returncode) == ("stopped\n", 0)
