"""Uneven mini-batches: against the command, against search by hand, against the paper's figures."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time

import pytest

import tightfit


@pytest.mark.parametrize("devices", [["K80", "K80", "K20Xm"], ["K80", "K80", "K20Xm", "750Ti"], ["K20Xm", "750Ti"]])
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_same_json_as_the_command(mixed, command, devices, multiple_of):
    arguments = ["split", "--batch", "32", "--devices", ",".join(devices), "--network", "resnet18"]
    arguments += ["--multiple-of", str(multiple_of), "--backend", f"replay:{mixed}", "--format", "json"]
    found = tightfit.split(32, devices, network="resnet18", profile=mixed, multiple_of=multiple_of)
    assert json.loads(json.dumps(found.to_dict())) == json.loads(command(*arguments))
    assert all(batch % multiple_of == 0 for batch in found.batches)


def test_the_papers_cluster(mixed):
    """Figure 13; the times are interpolated so that its printed results are possible, see the generator's text."""

    def split(*devices):
        return tightfit.split(32, devices, network="resnet18", profile=mixed)

    three, four, two = split("K80", "K80", "K20Xm"), split("K80", "K80", "K20Xm", "750Ti"), split("750Ti", "K20Xm")
    assert three.batches == [12, 12, 8] == tightfit.best_batch_size(
        32, ["K80", "K80", "K20Xm"], network="resnet18", profile=mixed
    )
    assert round(three.speedup_over_alone, 2) == 2.12
    assert round(four.speedup_over_alone, 2) == 2.20
    assert round(two.speedup_over_even, 2) == 1.37
    assert [device.even_time_us for device in two.devices] == [168430.0, 83030.0]


def test_recorded_steps_are_split_by_their_name(tmp_path):
    cache = tmp_path / "cache.db"
    for device, us in [("Fast", 100.0), ("Slow", 300.0)]:
        steps = [(n, us * n, 0) for n in range(1, 9)]
        tightfit.record_steps(cache, device, "mymodel", steps, library="torch 2.11")
    found = tightfit.split(8, ["Fast", "Slow"], network="mymodel", cache=cache)
    assert (found.batches, found.time_us) == ([6, 2], 600.0)
    assert tightfit.best_batch_size(8, ["Fast", "Slow"], network="mymodel", cache=cache) == [6, 2]
    with pytest.raises(tightfit.BadInput, match="mymodl"):
        tightfit.split(8, ["Fast", "Slow"], network="mymodl", cache=cache)


def test_split_times_equals_exhaustive_search():
    generator = random.Random(5)
    for _ in range(60):
        devices = [
            [(n, float(generator.randint(0, 30))) for n in generator.sample(range(1, 9), generator.randint(1, 6))]
            for _ in range(generator.randint(1, 3))
        ]
        batch = generator.randint(1, 12)
        every = itertools.product(*[[(0, 0.0), *device] for device in devices])
        best = min((max(t for _, t in picks) for picks in every if sum(n for n, _ in picks) == batch), default=None)
        if best is None:
            with pytest.raises(tightfit.NotProfiled):
                tightfit.split_times(devices, batch)
        else:
            batches, time_us = tightfit.split_times(devices, batch)
            assert (sum(batches), time_us) == (batch, best), (devices, batch)
            taken = [dict(device).get(n, 0.0) for device, n in zip(devices, batches)]
            assert max(taken) == best


def test_steps_from_convolutions_under_a_limit(recorded):
    """One recorded device twice: each half is as fast as WR makes it, and the rest is added for each sample."""
    found = tightfit.split(
        256, ["H200", "H200"], network="alexnet-1col", profile=recorded, workspace="64MiB", rest_us=3.0, multiple_of=64
    )
    assert found.batches == [128, 128]
    half = tightfit.optimize("alexnet-1col", 128, workspace="64MiB", sizes="all", profile=recorded)
    assert found.devices[0].time_us == pytest.approx(half.time_us + 3.0 * 128, abs=1e-6)
    assert not found.devices[0].measured
    with pytest.raises(tightfit.NotProfiled):
        tightfit.split(256, ["H200"] * 2, network="alexnet-1col", profile=recorded, memory=["1GiB", "1MiB"])


def test_wrong_devices_are_named(mixed):
    with pytest.raises(tightfit.BadInput, match="Tesla K20Xm"):
        tightfit.split(32, ["Tesla"], network="resnet18", profile=mixed)
    with pytest.raises(tightfit.BadInput, match="V100"):
        tightfit.split(32, ["V100"], network="resnet18", profile=mixed)
    with pytest.raises(tightfit.NotProfiled, match="resnet34"):
        tightfit.split(32, ["K80"], network="resnet34", profile=mixed)
    for options in [{"multiple_of": 3}, {"rest_us": float("nan")}, {"memory": [1, 2, 3]}]:
        with pytest.raises(tightfit.BadInput):
            tightfit.split(32, ["K80", "K80"], network="resnet18", profile=mixed, **options)
    with pytest.raises(tightfit.BadInput, match="list of names"):
        tightfit.split(32, "K80", network="resnet18", profile=mixed)


def test_a_mini_batch_without_end_is_refused(mixed):
    for batch in [2**20 + 1, 2**31, 10**12, 2**63]:
        with pytest.raises(tightfit.BadInput, match="1048576"):
            tightfit.split_times([[(1, 1.0)]], batch)
        with pytest.raises(tightfit.BadInput, match="1048576"):
            tightfit.split(batch, ["K80"], network="resnet18", profile=mixed)


def test_ctrl_c_ends_a_long_split():
    """Every batch of 2^20 samples on two devices: hours of work, so it only ends because it is interrupted."""
    script = (
        "import signal, tightfit\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "times = [[(n, float(n)) for n in range(1, 2**20 + 1)]] * 2\n"
        "print('begin', flush=True)\n"
        "tightfit.split_times(times, 2**20)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "begin\n"
        time.sleep(1)  # Past the conversion of the arguments, into the search.
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=60)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in told, told
