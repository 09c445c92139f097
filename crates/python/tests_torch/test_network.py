"""PyTorch models as networks."""

import json
import os
import random
import subprocess
import sys

import numpy as np
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


class Counts(nn.Module):
    """Changes in a pass what modules may hold: a buffer in place, another by a new tensor, a number, a list in a dictionary, and other random states."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.kept = 0, {}

    def forward(self, x):
        self.calls += 1
        self.kept[self.calls] = random.random() + np.random.rand()
        self.seen = self.seen + 1
        self.mean.mul_(0.5).add_(0.25)
        return x + self.mean.view(1, -1, 1, 1)


@pytest.mark.parametrize("normed", [lambda layer: layer, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("training", [True, False])
def test_the_file_has_the_numbers_of_the_model_and_the_model_is_unchanged(training, normed, tmp_path):
    """The newer exporter alone takes the parametrization."""
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    net = nn.Sequential(
        normed(nn.Conv2d(3, 8, 3, padding=1)), nn.BatchNorm2d(8), nn.ReLU(), Counts(),
        nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, momentum=0.3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    samples = torch.randn(2, 3, 16, 16)
    net.train()(samples)
    loss = net.train(training)(samples).square().sum()
    called = []
    net[3].register_forward_hook(lambda *_: called.append(1))
    net[8].weight.grad = torch.ones(5, 8)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    held = [(module.training, dict(module._forward_hooks), dict(module._forward_pre_hooks), dict(module._buffers)) for module in net.modules()]
    kept, states = (net[3].calls, dict(net[3].kept)), (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    path = tt.network(net, samples, tmp_path / "net.onnx")
    assert [(m.training, dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._buffers)) for m in net.modules()] == held
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert (net[3].calls, net[3].kept) == kept and torch.equal(net[8].weight.grad, torch.ones(5, 8))
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1] and (np.random.get_state()[1] == states[2]).all()
    # A backward pass that was to come finds what it saved.
    loss.backward()
    written = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    named = [name for name in written if name in before]
    assert {"1.running_mean", "1.running_var", "3.mean", "5.running_mean", "8.weight"} <= set(named)
    assert all(written[name].tobytes() == before[name].numpy().tobytes() for name in named)


def randomized(net):
    """A model with statistics, and outputs that differ, as after training."""
    generator = torch.Generator().manual_seed(1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator) * 0.1)
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
    for parameter in list(net.parameters())[-2:]:
        parameter.data.mul_(8)
    return net


def predicted(path, folder, images):
    """The probabilities of the command for each image and class."""
    from PIL import Image

    files = [folder / f"{number}.png" for number in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    command = [sys.executable, "-m", "tightfit", "predict", path, *files, "--batch", str(len(files)), "--top", "10", "--backend", "cpu", "--format", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    samples = json.loads(ran.stdout)["predictions"]
    return np.array([[one["probability"] for one in sorted(sample["top"], key=lambda one: one["class"])] for sample in samples])


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "densenet121"])
def test_a_network_predicts_what_the_model_computes(name, tmp_path):
    models = pytest.importorskip("torchvision").models
    pytest.importorskip("PIL")
    torch.manual_seed(0)
    net = randomized(getattr(models, name)(num_classes=10))
    path = tt.network(net.train(), torch.randn(2, 3, 32, 32), tmp_path / "net.onnx")
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    with torch.no_grad():
        expected = net.eval()(torch.tensor(images).permute(0, 3, 1, 2).float() / 127.5 - 1).softmax(1).numpy()
    difference = np.abs(predicted(path, tmp_path, images) - expected).max()
    assert expected.max() > 0.105 and difference < 1e-5, difference


def test_a_model_whose_output_is_no_vector_is_refused_by_predict(tmp_path):
    path = tt.network(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(4, 2, 2, 2)), torch.randn(1, 3, 16, 16), tmp_path / "net.onnx")
    ran = subprocess.run([sys.executable, "-m", "tightfit", "predict", path, "x.png", "--batch", "1", "--backend", "cpu"], capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and "ConvTranspose: 1" in ran.stderr and "output of 2x32x32: it must be a vector" in ran.stderr, ran.stderr


def test_weights_that_are_computed_are_those_of_the_model_in_use(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    samples = torch.randn(2, 3, 8, 8)
    path = tt.network(net, samples, tmp_path / "net.onnx")
    [given] = (session := runtime.InferenceSession(path)).get_inputs()
    [got] = session.run(None, {given.name: samples.numpy()})
    with torch.no_grad():
        assert np.abs(got - net.eval()(samples).numpy()).max() < 1e-5
