"""Plans: the same as the command's, with errors that can be acted on, and files that the command reads."""

import csv
import io
import json
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import pytest

import tightfit

ASSUMED = {"budget": "5GiB", "assume": True}
POLICIES = ["optimal", "overlap", "baseline", "vdnn-all", "vdnn-conv", "vdnn-dynamic"]


@pytest.fixture(scope="module")
def profile(recorded):
    return tightfit.Profile.open(recorded)


@pytest.fixture(scope="module")
def small():
    """A plan with offloaded tensors."""
    return tightfit.plan("vgg16", 64, policy="vdnn-all", **ASSUMED)


@pytest.mark.parametrize("policy", POLICIES)
def test_assumed_plans_equal_the_command_s(policy, command):
    arguments = "plan lenet --batch 64 --budget 16MiB --assume --format json --policy".split()
    assert tightfit.plan("lenet", 64, budget="16MiB", assume=True, policy=policy).to_dict() == json.loads(command(*arguments, policy))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inference": True}, "--inference"),
        ({"solver": "adamw"}, "--solver adamw"),
        ({"freeze": ["conv1", "fc1"]}, "--freeze conv1,fc1"),
        ({"momentum": 0}, "--momentum 0"),
        ({"costs": "k40", "types": "f16"}, "--costs k40 --types f16"),
        ({"algorithms": "memory", "divide": "off", "host_budget": "1GiB"}, "--algorithms memory --divide off --host-budget 1GiB"),
    ],
)
def test_options_mean_the_same_as_the_command_s(options, words, command):
    arguments = f"plan lenet --batch 64 --budget 16MiB --assume --format json {words}"
    assert tightfit.plan("lenet", 64, budget="16MiB", assume=True, **options).to_dict() == json.loads(command(*arguments.split()))


@pytest.mark.parametrize("sizes", ["undivided", "fit"])
def test_replayed_plans_equal_the_command_s(sizes, profile, recorded, command, tmp_path):
    """The document, the table, the columns, the page, and the file, byte for byte."""
    ours = tightfit.plan("alexnet-1col", 256, budget="2GiB", sizes=sizes, profile=profile)
    arguments = ["plan", "alexnet-1col", "--batch", "256", "--budget", "2GiB", "--sizes", sizes, "--backend", f"replay:{recorded}"]
    theirs = {name: tmp_path / f"theirs.{name}" for name in ("json", "html")}
    document = command(*arguments, "--format", "json", "--out", str(theirs["json"]), "--html", str(theirs["html"]))
    assert ours.to_dict() == json.loads(document) and ours.backend == "replay"
    assert ours.report() == command(*arguments)
    ours.save(tmp_path / "ours.json")
    ours.html(tmp_path / "ours.html")
    for name, path in theirs.items():
        assert (tmp_path / f"ours.{name}").read_bytes() == path.read_bytes(), name
    ours.save(tmp_path / "ours.json.gz")
    assert (tmp_path / "ours.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_layers_have_the_columns_of_the_command(small, command):
    rows = list(csv.DictReader(io.StringIO(command(*"plan vgg16 --batch 64 --budget 5GiB --policy vdnn-all --assume --format csv".split()))))
    ours = [{name: "" if value is None else value for name, value in vars(layer).items()} for layer in small.layers]
    assert [list(row) for row in ours] == [list(row) for row in rows]
    for mine, theirs in zip(ours, rows, strict=True):
        assert {name: type(mine[name])(value) for name, value in theirs.items()} == mine


def test_frames_have_a_row_for_each_layer_and_tensor(small):
    pytest.importorskip("pandas")
    layers, tensors = small.frame(), small.frame("tensors")
    assert len(layers) == len(small.layers) and len(tensors) == len(small.tensors)
    assert tensors[tensors.fate == "offloaded"].bytes.sum() == small.offloaded_bytes
    with pytest.raises(ValueError, match="layers, tensors"):
        small.frame("kernels")


def test_every_tensor_has_a_fate_and_a_reason(small):
    document = small.to_dict()
    fates = {tuple(of["layers"]): of["fate"] for of in document["maps"]}
    maps = [of for of in small.tensors if of.kind == "feature-maps" and of.tensor.startswith("feature map")]
    assert [of.fate for of in maps] == list(fates.values())
    for of in small.tensors:
        assert of.bytes >= 0 and of.why and (of.copies_us is not None) == (of.fate == "offloaded")
    moved = next(of for of in small.tensors if of.tensor == "feature map conv1_2")
    assert moved.fate == "offloaded" and moved.idle_us > 0
    assert moved.why.startswith("read again by pool1 backward-data, ") and "copies out and back take" in moved.why
    weights = next(of for of in small.tensors if of.kind == "weights")
    assert (weights.fate, weights.why) == ("kept", "stays on the device between steps")


def test_recomputed_tensors_name_the_operations_that_run_again():
    found = tightfit.plan("densenet121", 64, budget="3GiB", assume=True)
    again = [of for of in found.tensors if of.fate == "recomputed"]
    assert again and found.recomputed_us > 0
    for of in again:
        assert of.recomputed_us > 0 and of.why.endswith((" runs again", " run again")), of
    assert all(of.recomputed_us is None for of in found.tensors if of.fate != "recomputed")


def test_a_budget_that_is_too_small_says_which_would_do():
    with pytest.raises(tightfit.BudgetTooSmall) as refused:
        tightfit.plan("vgg16", 64, budget="1GiB", policy="overlap", assume=True)
    error = refused.value
    assert isinstance(error, tightfit.DoesNotFit) and error.limit_bytes == 1 << 30
    assert error.needed_bytes >= error.least_bytes > error.limit_bytes and error.layer in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.needed_bytes, copy.least_bytes, copy.layer) == (
        str(error), error.needed_bytes, error.least_bytes, error.layer)  # fmt: skip
    met = tightfit.plan("vgg16", 64, budget=error.needed_bytes, policy="overlap", assume=True)
    assert met.peak_bytes <= error.needed_bytes == met.min_feasible_bytes


def test_too_little_host_memory_is_no_budget_that_is_too_small():
    with pytest.raises(tightfit.DoesNotFit, match="host budget") as refused:
        tightfit.plan("vgg16", 64, budget="5GiB", host_budget="1MiB", policy="vdnn-all", assume=True)
    assert type(refused.value) is tightfit.DoesNotFit and refused.value.limit_bytes == 1 << 20


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"network": "vgg17"}, "vgg16"),
        ({"policy": "fastest"}, "vdnn-conv"),
        ({"budget": "5 Gi"}, "5 Gi"),
        ({"batch": "64"}, "batch='64'"),
        ({"budget": "0%"}, "60%"),
        ({"budget": -0.5}, "not a size"),
        ({"costs": "a100-40gb"}, "a100 of 80 GB"),
        ({"batch": 0}, "batch=0"),
        ({"batch": -3}, "batch=-3"),
        ({"costs": "b500"}, "k40"),
        ({"solver": "adam"}, "adamw"),
        ({"momentum": float("nan")}, "momentum NaN: .*less than 1"),
        ({"momentum": 2}, "momentum 2: .*less than 1"),
        ({"plan_time": float("nan")}, "seconds"),
        ({"network": None}, "step="),
        ({"step": "step.json"}, "not both"),
        ({"backend": "cpu"}, "measures nothing"),
        ({"assume": None, "backend": "tpu"}, "cuda"),
        ({"assume": None, "device": "H200"}, "number"),
        ({"assume": None, "threads": 0}, "1024"),
        ({"policy": "vdnn-dynamic", "algorithms": "fit"}, "vdnn-dynamic"),
    ],
)
def test_wrong_input_is_named(arguments, part):
    with pytest.raises(tightfit.BadInput, match=part):
        tightfit.plan(**{"network": "vgg16", "batch": 64, **ASSUMED, **arguments})


def test_a_profile_and_a_device_to_measure_exclude_each_other(profile):
    with pytest.raises(tightfit.BadInput, match="already measured"):
        tightfit.plan("alexnet-1col", 256, budget="1GiB", profile=profile, backend="cpu")
    with pytest.raises(tightfit.BadInput, match="budget"):
        tightfit.plan("alexnet-1col", 256, profile=profile)
    with pytest.raises(tightfit.NotProfiled):
        tightfit.plan("vgg16", 64, budget="5GiB", profile=profile)


def test_an_assumed_plan_is_not_saved_to_be_run(small, tmp_path):
    with pytest.raises(tightfit.BadInput, match="assume=False"):
        small.save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())
    with pytest.raises(tightfit.FileError) as refused:
        small.html(tmp_path / "missing" / "plan.html")
    assert str(tmp_path / "missing") in refused.value.path


def test_a_network_that_was_opened_is_planned(tmp_path, command):
    path = tmp_path / "mine.json"
    command("networks", "lenet", "--out", str(path))
    opened = tightfit.network(path)
    assert opened.name == str(path) and "2 convolutions" in repr(opened)
    planned = [tightfit.plan(network, 64, budget="16MiB", assume=True) for network in (path, opened, "lenet")]
    assert planned[0] == planned[1] == planned[2]


def test_a_plan_on_the_cpu_is_measured_and_can_run(tmp_path, command):
    cache = tmp_path / "cache.db"
    found = tightfit.plan("lenet", 8, budget="64MiB", sizes="undivided", backend="cpu", threads=1, cache=cache)
    assert found.backend == "cpu" and tightfit.Profile.open(cache).rows()
    found.save(tmp_path / "plan.json")
    out = command(*"train lenet --data synthetic --steps 1 --backend cpu --threads 1 --cache none --plan".split(), str(tmp_path / "plan.json"))
    assert "lenet" in out


def test_without_a_gpu_a_warning_says_that_times_are_assumed(monkeypatch):
    monkeypatch.setenv("TIGHTFIT_CUDA", "/nowhere/libcuda.so")
    with pytest.warns(UserWarning, match="no GPU was found.*costs=.*backend=") as told:
        found = tightfit.plan("lenet", 64, budget="16MiB", cache="none")
    assert found.backend == "assumed" and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tightfit.plan("lenet", 64, budget="16MiB", assume=True) == found


def test_a_recorded_step_is_planned(tmp_path):
    tensors = [{"name": "a", "bytes": 4096, "kind": "feature-map", "residence": "movable"}]
    forward = {"group": 0, "name": "load", "stage": "forward", "reads": [], "writes": [0], "time_us": 12.5}
    backward = {"group": 0, "name": "store", "stage": "backward", "reads": [0], "writes": [], "time_us": 2.5}
    step = {"tightfit_step": 1, "name": "tiny", "batch": 8, "types": "f32", "mode": "training", "tensors": tensors}
    path = tmp_path / "step.json"
    path.write_text(json.dumps({**step, "groups": [{"name": "conv1"}], "operations": [forward, backward]}))
    found = tightfit.plan(step=path, budget="1MiB")
    assert (found.network, found.batch, found.backend, found.peak_bytes) == ("tiny", 8, "recorded", 4096)
    assert found.tensors[0].why.startswith("read again by conv1 store")
    with pytest.raises(tightfit.BadInput, match="recorded step"):
        pickle.dumps(found)
    with pytest.raises(tightfit.BadInput, match="drop batch"):
        tightfit.plan(step=path, budget="1MiB", batch=3)


def test_a_share_is_of_plain_and_a_card_has_its_memory():
    plain = tightfit.plan("resnet18", 32, assume=True)
    assert plain.peak == plain.plain == plain.baseline_bytes and plain.fits
    for share in ("60%", 0.6):
        found = tightfit.plan("resnet18", assume=True, budget=share)
        assert found.batch == 32 and found.budget_bytes == int(0.6 * plain.plain)
        assert found.plain == plain.plain and found.least <= found.peak <= found.budget_bytes
    assert tightfit.plan("lenet", 8, assume=True, budget=float(1 << 30)).budget_bytes == 1 << 30
    with pytest.raises(tightfit.BudgetTooSmall, match=r"The budget is 20% of plain's \S+ MiB; at least (\d+)% is needed") as refused:
        tightfit.plan("resnet18", assume=True, budget="20%")
    enough = re.search(r"(\d+)% is needed", str(refused.value))[1]
    assert tightfit.plan("resnet18", assume=True, budget=f"{enough}%").least <= refused.value.needed_bytes
    card = tightfit.plan("lenet", 8, assume=True, costs="RTX 4090")
    assert (card.device, card.budget_bytes) == ("4090", (24564 - 1024) << 20)


def test_a_sweep_has_the_plans_of_the_command(command, tmp_path):
    sweep = tightfit.plan("resnet18", assume=True).sweep((1.0, 0.75, 0.5, 0.01))
    theirs = list(csv.DictReader(io.StringIO(command(*"plan resnet18 --batch 32 --assume --sweep 50..100:25 --format csv".split()))))
    expected = {int(row["budget_bytes"]): float(row["step_time_us"]) for row in theirs}
    found = {plan.budget_bytes: plan.step_time_us for _, plan in sweep.plans}
    assert expected.items() <= found.items() and len(found) == 4
    assert sweep.refused == 0.01 and sweep.plans[-1][1].budget_bytes == sweep.least
    plain, times = sweep.plans[0][1], {int(row["budget_bytes"]): row["checkpoints_step_time_us"] for row in theirs}
    added = {share: float(times[int(share * plain.plain)]) / plain.baseline_time_us - 1 for share, _ in sweep.checkpoints}
    assert dict(sweep.checkpoints) == pytest.approx(added, abs=1e-6) and added.keys() == {1.0, 0.75}
    assert "does not fit" in sweep.table() and "h200 (assumed)" in sweep.svg()
    sweep.html(tmp_path / "sweep.html")
    assert "<svg" in (tmp_path / "sweep.html").read_text()
    copy = pickle.loads(pickle.dumps(sweep.plans[0][1]))
    assert copy.sweep((1.0,)).plans[0][1] == sweep.plans[0][1]
    with pytest.raises(tightfit.BadInput, match="0.8, 0.6"):
        copy.sweep((0,))


def test_a_plan_reaches_worker_processes(small):
    copy = pickle.loads(pickle.dumps(small))
    assert copy == small and copy.to_dict() == small.to_dict() and copy.svg() == small.svg()


def test_a_plan_prints_in_one_line(small):
    assert repr(small) == f"<Plan vgg16 b64: 4.2 GiB of 5.0 GiB, {small.step_time_us / 1e3:.2f} ms, vdnn-all, assumed h200>"
    unlimited = tightfit.plan("lenet", 64, assume=True)
    assert " of " not in repr(unlimited) and "of a budget of unlimited" in unlimited.table()
    for part in (*small.tensors, *small.layers, *small.attempts):
        assert "\n" not in repr(part) and len(repr(part)) < 200


def test_ctrl_c_ends_the_planner():
    """The search would take ten minutes: the call ends, and no thread goes on searching."""
    program = """
        import os, signal, tightfit, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("begin", flush=True)
        try:
            tightfit.plan("resnet152", 64, budget="5GiB", assume=True, plan_time=600)
        except KeyboardInterrupt:
            # A thread that has ended is listed until the kernel has taken it down.
            deadline = time.monotonic() + 30
            while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            print("stopped", threads)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begin\n"
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert (out, child.returncode) == ("stopped 1\n", 0)


def test_advice_names_arguments_and_not_options(tmp_path):
    with pytest.raises(tightfit.BudgetTooSmall, match="or search longer with plan_time, which may find"):
        tightfit.plan("vgg19", 128, budget="64MiB", assume=True, plan_time=1)
    (tmp_path / "file").touch()
    with pytest.raises(tightfit.FileError, match='name another file with cache=FILE, or keep nothing with cache="none"'):
        tightfit.measure("lenet", "conv1", batch=1, backend="cpu", cache=tmp_path / "file" / "cache.db")
