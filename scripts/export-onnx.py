#!/usr/bin/env python3
"""Exports the networks that the tests of ONNX files read, without their weights, and what PyTorch says of them.

    python scripts/export-onnx.py crates/core/tests/data/onnx

Needs torch, torchvision, onnx and onnxscript. The figures in torch.json are counted by PyTorch in a training step:
convolutions, parameters, and the elements per sample of everything that an operation writes, without views and
without the second outputs of an operation.
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
    """Counts what operations write, per sample of a mini-batch of 2."""

    # Views, and what computes no feature map. A permutation is counted: its reader makes the copy.
    VIEWS = {"view", "_unsafe_view", "reshape", "flatten", "t", "transpose", "expand", "detach", "unsqueeze", "alias",
             "empty", "empty_like", "bernoulli_", "div_", "slice", "select", "add_", "as_strided", "clone"}

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
        # These copy nothing but what could as well be a view.
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


def main():
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
