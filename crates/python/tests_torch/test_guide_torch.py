"""The guide's Python with PyTorch, on models that its sentences leave to the reader."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tightfit.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from guide import blocks, needs_torch  # noqa: E402

WITH_TORCH = [(page, code) for page, code in blocks() if needs_torch(code)]


def names() -> dict[str, object]:
    """The definitions in a reader's program before the block."""
    layers = [nn.Conv2d(3, 4, 3), *(layer for _ in range(4) for layer in (nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)))]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    return {
        "torch": torch, "tightfit": tightfit, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "x": torch.randn(16, 3, 32, 32), "example": torch.randn(2, 3, 16, 16), "generator": generator,
        "discriminator": discriminator, "criterion": nn.MSELoss(), "z": torch.randn(2, 4), "real": torch.ones(2, 1),
    }


@pytest.mark.parametrize(("page", "code"), WITH_TORCH, ids=[f"{page}-{number}" for number, (page, _) in enumerate(WITH_TORCH)])
def test_blocks_run(page, code, monkeypatch, tmp_path) -> None:
    if "onnx" in code:
        pytest.importorskip("onnx")
    if "dynamo=True" in code:
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), names())
    assert ("model.onnx" in code) == (tmp_path / "model.onnx").exists()


def test_the_guide_has_python_with_torch() -> None:
    assert len(WITH_TORCH) >= 3
