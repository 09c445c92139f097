"""The optimizers: the same numbers as the command, and exceptions that can be acted on."""

import itertools
import json
import pickle
import warnings

import pytest

import tightfit
from tightfit._profile import size

NETWORK, BATCH = "alexnet-1col", 256


@pytest.fixture(scope="module")
def profile(recorded):
    return tightfit.Profile.open(recorded)


@pytest.mark.parametrize("policy", ["undivided", "power-of-two", "all", "fit"])
@pytest.mark.parametrize(
    ("bound", "limit"), [("workspace", "64MiB"), ("total_workspace", "120MiB"), ("one_workspace", "256MiB")]
)
def test_same_json_as_the_command(profile, recorded, command, policy, bound, limit):
    option = "--" + bound.replace("_", "-")
    arguments = ["optimize", NETWORK, "--batch", str(BATCH), option, limit, "--sizes", policy]
    expected = json.loads(command(*arguments, "--backend", f"replay:{recorded}", "--format", "json"))
    found = tightfit.optimize(NETWORK, BATCH, **{bound: limit}, sizes=policy, profile=profile).to_dict()
    found = json.loads(json.dumps(found))
    assert {name: found[name] for name in expected} == expected
    assert all(found[name] is None for name in found.keys() - expected.keys())


def test_the_recorded_gain_of_dividing(profile):
    found = tightfit.optimize(NETWORK, BATCH, workspace=64 << 20, sizes="all", profile=profile)
    assert found.time_us == pytest.approx(sum(kernel.time_us for kernel in found.kernels), abs=1e-6)
    assert found.undivided_time_us / found.time_us == pytest.approx(found.speedup)
    assert found.speedup > 1.7
    for kernel in found.kernels:
        assert sum(part.micro_batch for part in kernel.configuration) == BATCH
        assert kernel.workspace_bytes == max(part.workspace_bytes for part in kernel.configuration) <= 64 << 20


def test_points_of_a_front_are_unbeaten(profile):
    front = tightfit.front(NETWORK, "conv2", "forward", BATCH, profile=profile)
    assert (front.layer, front.operation) == ("conv2", "forward")
    assert len(front.points) > 3
    for before, after in itertools.pairwise(front.points):
        assert before.workspace_bytes < after.workspace_bytes and before.time_us > after.time_us
    limit = front.points[2].workspace_bytes
    best = tightfit.optimize(NETWORK, BATCH, workspace=limit, sizes="all", layers=["conv2"], operations=["forward"], profile=profile)
    assert best.kernels[0].time_us == front.points[2].time_us


def test_too_little_workspace_says_how_much_would_do(tmp_path):
    layers, recording = tmp_path / "tiny.txt", tmp_path / "tiny.jsonl"
    layers.write_text("a n4 c3 h8 w8 k4 r3 s3\n")
    lines = [
        {"format": "tightfit-profile", "version": 1},
        {"device": {"backend": "cuda", "name": "Some GPU", "library": "cudnn", "threads": 0}},
        {"problem": "forward c3 h8 w8 k4 r3 s3 f32", "algorithm": "fft", "notes": 0,
         "rows": [[2, 100, 70, 0.0, 1, None], [4, 150, 90, 0.0, 1, None]]},
    ]  # fmt: skip
    recording.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = {"network": str(layers), "operations": ["forward"], "profile": recording}
    for bound in ("workspace", "total_workspace"):
        with pytest.raises(tightfit.DoesNotFit) as refused:
            tightfit.optimize(**arguments, **{bound: 69}, sizes="all")
        assert isinstance(refused.value, tightfit.Error)
        assert (refused.value.needed_bytes, refused.value.limit_bytes) == (70, 69)
        copy = pickle.loads(pickle.dumps(refused.value))
        assert (str(copy), copy.needed_bytes) == (str(refused.value), 70)
    assert tightfit.optimize(**arguments, workspace=70, sizes="all").kernels[0].configuration[0].micro_batch == 2


@pytest.mark.parametrize(
    ("arguments", "exception", "part"),
    [
        ({"network": "alexnett"}, tightfit.BadInput, "alexnet"),
        ({"sizes": "most"}, tightfit.BadInput, "power-of-two"),
        ({"types": "f64"}, tightfit.BadInput, "f16-f32"),
        ({"workspace": "64 Mi"}, tightfit.BadInput, "64 Mi"),
        ({"workspace": -1}, tightfit.BadInput, "-1"),
        ({"workspace": 1, "total_workspace": 1}, tightfit.BadInput, "one of them"),
        ({"layers": ["conv9"]}, tightfit.BadInput, "conv9"),
        ({"operations": ["sideways"]}, tightfit.BadInput, "backward-data"),
        ({"device": "K80"}, tightfit.BadInput, "H200"),
        ({"network": "lenet"}, tightfit.NotProfiled, "tightfit profile NETWORK --batch"),
        ({"profile": "/nowhere/at-all.jsonl"}, tightfit.FileError, "/nowhere/at-all.jsonl"),
        ({"profile": None, "cache": "/nowhere/cache.db"}, tightfit.FileError, "/nowhere/cache.db"),
        ({"cache": "both.db"}, tightfit.BadInput, "not both"),
    ],
)
def test_wrong_input_is_named(profile, arguments, exception, part):
    with pytest.raises(exception, match=part):
        tightfit.optimize(**{"network": NETWORK, "batch": BATCH, "profile": profile, **arguments})
    assert issubclass(exception, tightfit.Error)


def test_results_print_as_a_person_reads_them(profile):
    found = tightfit.optimize(NETWORK, BATCH, workspace="64MiB", profile=profile)
    kernel = next(kernel for kernel in found.kernels if (kernel.layer, kernel.operation) == ("conv2", "forward"))
    assert str(kernel.configuration) == "8 x 32 legacy:winograd-nonfused"
    assert repr(kernel) == "<Kernel conv2 forward: 8 x 32 legacy:winograd-nonfused, 1.51 ms, 55.5 MiB>"
    assert isinstance(kernel.configuration, tuple) and kernel.configuration[0].micro_batch == 32
    assert "1.74x as fast" in repr(found) and len(repr(found)) < 200
    front = tightfit.front(NETWORK, "conv2", "forward", BATCH, profile=profile)
    assert len(repr(front)) < 200 and f"{len(front.points)} points" in repr(front)
    for result, row in ((found, kernel.layer), (front, str(front.points[0].configuration))):
        page = result._repr_html_()
        rows = len(result.kernels if result is found else result.points)
        assert page.count("<tr>") == 1 + min(rows, 24) and row in page
        assert (f"and {rows - 24} more" in page) == (rows > 24)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict(), "plain dictionaries and lists"


def test_results_become_frames(profile):
    pandas = pytest.importorskip("pandas")
    found = tightfit.optimize(NETWORK, BATCH, workspace="64MiB", profile=profile)
    frame = found.frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(found.kernels)
    assert frame["time_us"].sum() == pytest.approx(found.time_us)


def test_the_version_equals_the_package_s():
    from importlib.metadata import version

    assert tightfit.__version__ == version("tightfit")
    with pytest.raises(AttributeError, match="no_such_thing"):
        tightfit.no_such_thing


def test_a_size_without_a_unit_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="`64` means 64 bytes; for 64 MiB, write 64MiB"):
        assert size("64") == 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [size("64B"), size(64), size("0")] == [64, 64, 0]
    with pytest.raises(tightfit.BadInput, match="8MiB"):
        size("8M")
