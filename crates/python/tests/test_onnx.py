"""ONNX files in place of a network's name; exporting one needs torch: tests_torch."""

from pathlib import Path

import pytest

import tightfit

SMALL = Path(__file__).parents[2] / "train" / "tests" / "recorded" / "small.script.onnx"


def test_an_onnx_file_is_a_network():
    layers = tightfit.network(str(SMALL))
    convolutions = [layer.layer for layer in layers if layer.kind == "convolution"]
    assert convolutions == ["first", "left.0", "right", "both"]


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(SMALL.read_bytes()[:1000])
    with pytest.raises(tightfit.FileError, match="is not an ONNX model, or is cut off or damaged"):
        tightfit.network(str(path))
