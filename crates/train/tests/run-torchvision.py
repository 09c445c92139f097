"""Writes a torchvision network with random weights, samples, and its probabilities for them, for torchvision.rs.

    python run-torchvision.py NETWORK FOLDER

Writes FOLDER/net.safetensors, samples.f32 and probabilities.f32; for googlenet also googlenet.onnx, exported from other
weights. Needs torch and torchvision; googlenet also onnx and onnxscript.
"""

import json
import pathlib
import struct
import sys
import warnings

import torch
import torchvision

warnings.filterwarnings("ignore")
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def network(seed):
    torch.manual_seed(seed)
    more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    net = getattr(torchvision.models, name)(weights=None, **more)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, around, by in [
                (module.weight, 1, 0.1), (module.bias, 0, 0.1), (module.running_mean, 0, 0.1), (module.running_var, 1, 0.1),
            ]:
                tensor.data.uniform_(around - by, around + by)
    return net


net = network(1)
header, data = {}, b""
for key, tensor in net.state_dict().items():
    bytes_ = tensor.contiguous().numpy().tobytes()
    dtype = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
    header[key] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(bytes_)]}
    data += bytes_
text = json.dumps(header).encode()
(folder / "net.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
samples = torch.rand(2, 3, 224, 224) * 4 - 2
with torch.no_grad():
    probabilities = net.eval()(samples).softmax(1)
(folder / "samples.f32").write_bytes(samples.numpy().tobytes())
(folder / "probabilities.f32").write_bytes(probabilities.numpy().tobytes())
if name == "googlenet":
    torch.onnx.export(
        network(2).train(), (samples,), str(folder / "googlenet.onnx"), dynamo=False, opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
    )
