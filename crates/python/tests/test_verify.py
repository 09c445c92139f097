"""Running the optimizers' choices: the command's document, and the text of an exception or a fault."""

import json
import pickle

import pytest

import tightfit

HERE = {"backend": "cpu", "threads": 1, "cache": "none"}


def shape(value):
    """The keys of a document, without the numbers of this run."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__ if isinstance(value, float) else value


@pytest.mark.parametrize(("bound", "limit"), [("workspace", "64KiB"), ("total_workspace", "256KiB")])
def test_the_document_equals_the_command_s(bound, limit, command, tmp_path):
    network = ["lenet", "--batch", "4", "--layers", "conv1,conv2", "--backend", "cpu", "--threads", "1"]
    option, cache = "--" + bound.replace("_", "-"), tmp_path / "cache.db"
    expected = json.loads(command("verify", *network, option, limit, "--cache", str(cache), "--format", "json"))
    found = tightfit.verify("lenet", 4, **{bound: limit}, layers=["conv1", "conv2"], **{**HERE, "cache": cache})
    assert found.passed and found.fault is None
    document = json.loads(json.dumps(found.to_dict()))
    # The command's measurements are in the cache, so the choices are the same, and so are the random numbers.
    for name in ("kernels", "side_by_side"):
        assert shape(document[name]) == shape(expected.get(name, [])), name
    errors = [name for name in vars(found.kernels[0].verification) if "error" in name]
    for mine, theirs in zip(document["kernels"], expected["kernels"], strict=True):
        assert all(mine["verification"][name] == theirs["verification"][name] for name in errors)
    assert document["measured_time_us"] > 0
    absent = document.keys() - expected.keys()
    assert absent - {"fault", "side_by_side"} == {name for name in absent if document[name] is None and name != "fault"}


def test_rows_equal_the_command_s(command):
    network = ["lenet", "--batch", "2", "--layers", "conv2", "--backend", "cpu", "--threads", "1", "--cache", "none"]
    header = command("verify", *network, "--workspace", "64KiB", "--format", "csv").splitlines()[0]
    found = tightfit.verify("lenet", 2, layers=["conv2"], workspace="64KiB", **HERE)
    assert {*found._rows()[0]} == {*header.split(","), "configuration"}


def test_whole_numbers_are_exact_and_results_can_be_copied():
    found = tightfit.verify("lenet", 4, layers=["conv1"], values="whole", full=True, seed=7, sizes="undivided", **HERE)
    assert len(found.kernels) == 3
    for kernel in found.kernels:
        assert isinstance(kernel, tightfit.Kernel) and kernel.verification.outputs_compared > 0
    forward = found.kernels[0].verification
    assert forward.outputs_compared == 4 * 20 * 24 * 24 or forward.outputs_compared > 4096
    again = pickle.loads(pickle.dumps(found))
    assert again == found and again.passed
    assert "all results agree" in repr(found) and len(found.table().splitlines()) > 4


def test_a_difference_is_named():
    found = tightfit.verify("lenet", 2, layers=["conv1"], operations=["forward"], sizes="undivided", **HERE)
    wrong = type(found)(**{**vars(found), "fault": "results differ too much from 64-bit arithmetic: conv1 forward by 1.0e-1"})
    assert not wrong.passed and "results differ" in repr(wrong)


def test_a_model_of_its_own_is_verified():
    root = __import__("conftest").ROOT
    found = tightfit.verify(root / "crates/train/tests/recorded/small.script.onnx", 2, sizes="undivided", **HERE)
    assert found.passed and {kernel.layer for kernel in found.kernels} >= {"first", "right", "both"}


@pytest.mark.parametrize(
    ("arguments", "exception", "part"),
    [
        ({"network": "lennet"}, tightfit.BadInput, "lenet"),
        ({"values": "odd"}, tightfit.BadInput, "real, whole"),
        ({"backend": "replay"}, tightfit.BadInput, "a recording cannot run kernels"),
        ({"device": "H200"}, tightfit.BadInput, "named by its number"),
        ({"seed": -1}, tightfit.BadInput, "seed=-1"),
        ({"batch": 0}, tightfit.BadInput, "0"),
        ({"workspace": 1, "total_workspace": 1}, tightfit.BadInput, "one of them"),
        ({"layers": ["conv9"]}, tightfit.BadInput, "conv9"),
    ],
)
def test_wrong_input_is_named(arguments, exception, part):
    with pytest.raises(exception, match=part):
        tightfit.verify(**{"network": "lenet", "batch": 2, **HERE, **arguments})
