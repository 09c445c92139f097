#!/usr/bin/env python3
"""Exports the networks that the tests of ONNX files read, without their weights, and PyTorch's description of them.

    python scripts/export-onnx.py crates/onnx/tests/data/onnx
    python scripts/export-onnx.py --small crates/train/tests/recorded [small|gated|resized ..]

Needs torch, torchvision, onnx and onnxscript. The figures in torch.json are counted by PyTorch in a training step:
convolutions, parameters, and the elements per sample of everything that an operation writes, without views and
without the second outputs of an operation.

With --small, exports small networks (all, or those named) with their weights, by both exporters, and the losses of three
training steps that PyTorch took from these weights in 64 bits.
"""

import gzip
import json
import pathlib
import sys
import tempfile
import warnings

import onnx
import torch
import torchvision
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

warnings.filterwarnings("ignore")
models = torchvision.models


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. 2015 with padding and batch normalization; its last upsampling is bilinear."""

    def __init__(self, width=64):
        super().__init__()
        two = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(True),
            nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(True))
        self.down = nn.ModuleList([two(3, width)] + [two(width << i, width << i + 1) for i in range(4)])
        self.pool = nn.MaxPool2d(2)
        self.widen = nn.ModuleList([nn.ConvTranspose2d(16 * width >> i, 8 * width >> i, 2, 2) for i in range(3)])
        self.last = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.up = nn.ModuleList([two(16 * width >> i, 8 * width >> i) for i in range(3)] + [two(3 * width, width)])
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        kept = []
        for i, step in enumerate(self.down):
            x = step(self.pool(x) if i else x)
            kept.append(x)
        for i in range(4):
            wide = self.widen[i](x) if i < 3 else self.last(x)
            x = self.up[i](torch.cat([kept[3 - i], wide], 1))
        return self.out(x)


NETWORKS = {
    "resnet50": (models.resnet50, 224),
    "efficientnet_b0": (models.efficientnet_b0, 224),
    "convnext_tiny": (models.convnext_tiny, 224),
    "unet": (UNet, 128),
    "googlenet": (lambda: models.googlenet(weights=None, aux_logits=False, init_weights=False), 224),
    "densenet121": (models.densenet121, 224),
    "mobilenet_v3_large": (models.mobilenet_v3_large, 224),
    "fcn_resnet50": (lambda: models.segmentation.fcn_resnet50(weights=None, weights_backbone=None), 224),
}

TRAINING = torch.onnx.TrainingMode.TRAINING
SCRIPT = dict(dynamo=False, input_names=["input"], dynamic_axes={"input": {0: "batch"}})
DYNAMO = dict(dynamo=True, verbose=False, external_data=True, dynamic_shapes=({0: "batch"},))
# For training by each exporter, by the oldest and the newest set of operators, and for inference.
FORMS = {
    "script": dict(SCRIPT, training=TRAINING, do_constant_folding=False, opset_version=20),
    "script13": dict(SCRIPT, training=TRAINING, do_constant_folding=False, opset_version=13),
    "dynamo": dict(DYNAMO, optimize=False, opset_version=20),
    "inference": dict(SCRIPT, opset_version=17),
    "inference-dynamo": dict(DYNAMO, opset_version=18),
}


class Count(TorchDispatchMode):
    """Counts the bytes that operations write, per sample of a mini-batch of 2."""

    # Views, and operations without a feature map. A permutation is counted: its reader makes the copy.
    VIEWS = {"view", "_unsafe_view", "reshape", "flatten", "t", "transpose", "expand", "detach", "unsqueeze", "alias",
             "empty", "empty_like", "bernoulli_", "div_", "slice", "select", "add_", "as_strided", "as_strided_", "clone"}

    def __init__(self):
        super().__init__()
        self.convolutions = self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        first = result[0] if isinstance(result, (tuple, list)) else result
        if name == "convolution" and not args[6]:
            self.convolutions += 1
        is_map = isinstance(first, torch.Tensor) and first.is_floating_point() and first.numel() > 2
        # In-place sums on residual branches are maps; those on counters are not.
        counts = name not in self.VIEWS or name == "add_" and first.dim() > 1
        # These copies could as well be views.
        moves_ones = name == "permute" and first.numel() == first.shape[0] * max(first.shape[1:])
        counts &= not (moves_ones or name == "cat" and len(args[0]) == 1)
        if is_map and counts:
            assert first.numel() % 2 == 0, name
            self.elements += first.numel() // 2
        return result


def figures(model, size):
    model.train()
    samples = torch.randn(2, 3, size, size)
    with torch.no_grad(), Count() as count:
        model(samples)
    return dict(convolutions=count.convolutions, parameters=sum(p.numel() for p in model.parameters()),
                elements=count.elements)


def without_weights(path):
    """The model as bytes: weights become references to a file that is not there, notes and known shapes are dropped."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    for tensor in graph.initializer:
        elements = 1
        for extent in tensor.dims:
            elements *= extent
        if tensor.data_type == onnx.TensorProto.FLOAT and elements > 8:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="weights")
    del graph.value_info[:]
    del model.metadata_props[:]
    for part in [model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output]:
        part.ClearField("doc_string")
        if part.DESCRIPTOR.fields_by_name.get("metadata_props"):
            del part.metadata_props[:]
    return model.SerializeToString()


class Small(nn.Module):
    """Every layer that can be trained on any machine."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.left = nn.Sequential(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.right = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.both = nn.Conv2d(10, 10, 3, padding=1)
        self.hidden = nn.Linear(90, 7)
        self.out = nn.Linear(7, 5, bias=False)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 3, 2, ceil_mode=True)
        join = torch.cat([self.left(x), torch.relu(self.right(x))], 1)
        x = nn.functional.avg_pool2d(torch.relu(self.both(join) + join), 2, 2, ceil_mode=True)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class Gated(nn.Module):
    """The activations, gates and normalizations of MobileNetV3, EfficientNet and ConvNeXt."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.SiLU(), nn.Conv2d(4, 8, 1))
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.wide = nn.Linear(8, 12)
        self.narrow = nn.Linear(12, 8)
        self.layer_scale = nn.Parameter(torch.linspace(0.5, 1.5, 8).reshape(8, 1, 1))
        self.soft = nn.Linear(8, 6)
        self.out = nn.Linear(6, 5)

    def forward(self, x):
        x = nn.functional.hardswish(self.first(x))
        s = self.squeeze(x)
        x = x * torch.sigmoid(s) + nn.functional.hardsigmoid(s) * x
        y = nn.functional.gelu(self.wide(self.norm(x.permute(0, 2, 3, 1))))
        y = nn.functional.gelu(self.narrow(y), approximate="tanh").permute(0, 3, 1, 2)
        x = nn.functional.relu6(x + self.layer_scale * y) * nn.functional.leaky_relu(y, 0.1)
        x = nn.functional.mish(x).mean((2, 3))
        return self.out(torch.tanh(nn.functional.elu(self.soft(x))))


class Resized(nn.Module):
    """A network that makes its maps smaller and larger again, in each way that runs."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.join = nn.Conv2d(12, 6, 3, padding=1)
        self.out = nn.Linear(54, 5)

    def forward(self, x):
        resize = nn.functional.interpolate
        x = torch.relu(self.down(x))
        wide = [resize(x, scale_factor=2, mode="nearest"), resize(x, scale_factor=2, mode="bilinear"),
                resize(x, size=(10, 10), mode="bilinear", align_corners=True)]
        x = torch.relu(self.join(torch.cat(wide, 1)))
        return self.out(resize(x, size=(3, 3), mode="bilinear").flatten(1))


def numbers(count, seed):
    """Numbers from -1 to 1 by their place, as in the test."""
    return torch.tensor([((i * 37 + i // 7 * 11 + seed * 29) % 101 - 50) / 50 for i in range(count)])


def small(folder, name, model):
    """Exports a model under this name, and the losses of its training."""
    model.train()
    for form, options in (("script", FORMS["script"]), ("dynamo", dict(FORMS["dynamo"], external_data=False))):
        state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        torch.onnx.export(model, (torch.randn(4, 3, 10, 10),), str(folder / f"{name}.{form}.onnx"), **options)
        model.load_state_dict(state)
        exported = onnx.load(folder / f"{name}.{form}.onnx")
        for part in [exported.graph, *exported.graph.node]:
            del part.metadata_props[:]
        onnx.save(exported, folder / f"{name}.{form}.onnx")
    model = model.double()
    solver = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for step in range(3):
        samples = numbers(4 * 300, 50 + step).double().reshape(4, 3, 10, 10)
        labels = torch.tensor([(3 * n + step) % 5 for n in range(4)])
        loss = nn.functional.cross_entropy(model(samples), labels)
        solver.zero_grad()
        loss.backward()
        solver.step()
        losses.append(loss.item())
    (folder / f"{name}.json").write_text(json.dumps({"losses": losses}) + "\n")


def main():
    if sys.argv[1] == "--small":
        for name, make in [("small", Small), ("gated", Gated), ("resized", Resized)]:
            if name in (sys.argv[3:] or name):
                torch.manual_seed(5)
                small(pathlib.Path(sys.argv[2]), name, make())
        return
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    forms = sys.argv[2:] or FORMS
    torch.manual_seed(1)
    said = {}
    for name, (make, size) in NETWORKS.items():
        model = make()
        said[name] = figures(model, size)
        print(name, said[name], flush=True)
        for form in forms:
            model.train(not form.startswith("inference"))
            with tempfile.TemporaryDirectory() as temporary:
                path = pathlib.Path(temporary) / "model.onnx"
                torch.onnx.export(model, (torch.randn(2, 3, size, size),), str(path), **FORMS[form])
                packed = gzip.compress(without_weights(path), mtime=0)
                (folder / f"{name}.{form}.onnx.gz").write_bytes(packed)
    (folder / "torch.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
