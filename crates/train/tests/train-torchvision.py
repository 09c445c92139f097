"""Exports a torchvision network with random weights, and writes the losses of its first training steps, for steps.rs.

    python train-torchvision.py NETWORK FOLDER

Writes FOLDER/net.onnx, samples.f32 (one mini-batch after another) and record.json. Needs torch, torchvision and onnx.
"""

import copy
import json
import pathlib
import sys
import warnings

import torch
import torchvision

warnings.filterwarnings("ignore")
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
# With fewer positions in its last layers, batch normalization of ResNet-50 magnifies what 32 bits round.
BATCH, SIZE, STEPS, CLASSES = 8, 96 if name == "resnet50" else 64, 3, 10

torch.manual_seed(1)
more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
net = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES, **more).train()
for module in net.modules():
    # Random layers would differ between PyTorch and tightfit.
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
    if isinstance(module, torchvision.ops.StochasticDepth):
        module.p = 0.0
    # At its first value of 1, the sum of many branches lets the rounding of one step decide the loss of the next.
    if hasattr(module, "bn3"):
        module.bn3.weight.data.fill_(0.2)
    # With its first value of 1e-6, ConvNeXt's branches would change nothing.
    if hasattr(module, "layer_scale"):
        module.layer_scale.data.uniform_(0.1, 0.3)
# The same samples in every step, so that the loss falls by learning.
samples = (torch.rand(BATCH, 3, SIZE, SIZE) * 4 - 2).repeat(STEPS, 1, 1, 1, 1)
labels = torch.arange(BATCH).repeat(STEPS, 1)
state = copy.deepcopy(net.state_dict())
torch.onnx.export(
    net, (samples[0],), str(folder / "net.onnx"), dynamo=False, opset_version=17, do_constant_folding=False,
    training=torch.onnx.TrainingMode.TRAINING, input_names=["input"], dynamic_axes={"input": {0: "batch"}},
)
net.load_state_dict(state)


def train(types):
    """Losses of the first steps in these types."""
    model = copy.deepcopy(net).to(types)
    solver = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9, weight_decay=5e-4)
    losses = []
    for step in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(samples[step].to(types)), labels[step])
        solver.zero_grad()
        loss.backward()
        solver.step()
        losses.append(loss.item())
    return losses


(folder / "samples.f32").write_bytes(samples.numpy().tobytes())
(folder / "record.json").write_text(json.dumps({"losses": train(torch.float64), "narrow": train(torch.float32), "labels": labels.tolist()}))
