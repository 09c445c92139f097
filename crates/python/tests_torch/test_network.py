"""PyTorch models as networks."""

import os

import pytest
import torch
from torch import nn

import tightfit
import tightfit.torch as tt


def model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(8, 5))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_read_as_it_is_trained_and_left_as_it_is(training):
    net = model().train(training)
    net[0].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    torch.manual_seed(3)
    random = torch.random.get_rng_state()
    layers = tightfit.network(tt.network(net, torch.randn(2, 3, 16, 16)))
    torch.random.set_rng_state(random)
    kinds = [layer.kind for layer in layers]
    assert kinds == ["input", "convolution", "batch-norm", "relu", "average-pooling", "flatten", "dropout",
                     "fully-connected", "softmax-loss"]
    assert sum(layer.parameters for layer in layers) == sum(parameter.numel() for parameter in net.parameters())
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_exporting_draws_no_random_numbers():
    net, samples = model(), torch.randn(2, 3, 16, 16)
    before = torch.random.get_rng_state()
    tt.network(net, samples)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_file_of_ones_own_is_kept(tmp_path):
    path = tmp_path / "mine.onnx"
    assert tt.network(model(), torch.randn(2, 3, 16, 16), path) == os.fspath(path)
    assert path.exists()
    with pytest.raises(tightfit.BadInput, match="must end in .onnx"):
        tt.network(model(), torch.randn(2, 3, 16, 16), tmp_path / "mine.bin")


def test_what_cannot_be_exported_is_said():
    class Strange(nn.Module):
        def forward(self, x):
            raise RuntimeError("no such thing")

    with pytest.raises(tightfit.BadInput, match="cannot export the model: .*no such thing"):
        tt.network(Strange(), torch.randn(2, 3, 16, 16))
