"""Times training steps of the same networks in PyTorch: plain, with activations on the host, and with checkpoints.

    python3 scripts/gpu_train/peers.py RESULTS NETWORK:BATCH [plain|checkpoint|save_on_cpu ..]

Convolutions in fp32 without tensor cores, algorithms by cuDNN's heuristics; SGD with momentum and weight decay; the median of
the steps between CUDA events, and the most memory that tensors took. One line of JSON for each way, with what failed where the
memory was too little. Steps of over a second are timed once, after one that warms up.
"""

import json
import sys

import torch
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
# A checkpoint's input must not be overwritten by the piece after it.
INPLACE = True


def conv(i, o, k, s=1, p=0):
    return [nn.Conv2d(i, o, k, s, p), nn.ReLU(inplace=INPLACE)]


def classifier(i, *sizes):
    layers = [nn.Flatten()]
    for o in sizes:
        layers += [nn.Linear(i, o), nn.ReLU(inplace=INPLACE), nn.Dropout(0.5)]
        i = o
    return layers[:-2]


def alexnet():
    pool = lambda: nn.MaxPool2d(3, 2)
    return nn.Sequential(
        *conv(3, 64, 11, 4, 2), pool(), *conv(64, 192, 5, 1, 2), pool(), *conv(192, 384, 3, 1, 1),
        *conv(384, 256, 3, 1, 1), *conv(256, 256, 3, 1, 1), pool(), *classifier(256 * 36, 4096, 4096, 1000)), 224


def overfeat():
    pool = lambda: nn.MaxPool2d(2, 2)
    return nn.Sequential(
        *conv(3, 96, 11, 4), pool(), *conv(96, 256, 5), pool(), *conv(256, 512, 3, 1, 1), *conv(512, 1024, 3, 1, 1),
        *conv(1024, 1024, 3, 1, 1), pool(), *classifier(1024 * 36, 3072, 4096, 1000)), 231


def vgg(*counts):
    """With this number of convolutions in each of the five groups."""
    def make():
        layers, i = [], 3
        for o, count in zip([64, 128, 256, 512, 512], counts):
            for _ in range(count):
                layers += conv(i, o, 3, 1, 1)
                i = o
            layers.append(nn.MaxPool2d(2, 2))
        return nn.Sequential(*layers, *classifier(512 * 49, 4096, 4096, 1000)), 224
    return make


class Inception(nn.Module):
    def __init__(self, i, one, three, five, pool):
        super().__init__()
        self.one = nn.Sequential(*conv(i, one, 1))
        self.three = nn.Sequential(*conv(i, three[0], 1), *conv(three[0], three[1], 3, 1, 1))
        self.five = nn.Sequential(*conv(i, five[0], 1), *conv(five[0], five[1], 5, 1, 2))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), *conv(i, pool, 1))

    def forward(self, x):
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def googlenet():
    pool = lambda: nn.MaxPool2d(3, 2, ceil_mode=True)
    lrn = lambda: nn.LocalResponseNorm(5)
    layers = [*conv(3, 64, 7, 2, 3), pool(), lrn(), *conv(64, 64, 1), *conv(64, 192, 3, 1, 1), lrn(), pool()]
    blocks = [(192, 64, (96, 128), (16, 32), 32), (256, 128, (128, 192), (32, 96), 64), None,
              (480, 192, (96, 208), (16, 48), 64), (512, 160, (112, 224), (24, 64), 64),
              (512, 128, (128, 256), (24, 64), 64), (512, 112, (144, 288), (32, 64), 64),
              (528, 256, (160, 320), (32, 128), 128), None, (832, 256, (160, 320), (32, 128), 128),
              (832, 384, (192, 384), (48, 128), 128)]
    layers += [pool() if block is None else Inception(*block) for block in blocks]
    return nn.Sequential(*layers, nn.AvgPool2d(7), nn.Dropout(0.4), nn.Flatten(), nn.Linear(1024, 1000)), 224


def resnet50():
    net = torchvision.models.resnet50()
    net.relu.inplace = INPLACE
    blocks = [*net.layer1, *net.layer2, *net.layer3, *net.layer4]
    return nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, *blocks, net.avgpool, nn.Flatten(), net.fc), 224


NETWORKS = {"alexnet-1col": alexnet, "overfeat": overfeat, "googlenet": googlenet, "resnet50": resnet50,
            "vgg16": vgg(2, 2, 3, 3, 3), "vgg19": vgg(2, 2, 4, 4, 4), "vgg116": vgg(22, 22, 24, 24, 24),
            "vgg516": vgg(102, 102, 104, 104, 104)}
WAYS = ["plain", "checkpoint", "save_on_cpu"]


def forward(model, x, way):
    if way == "save_on_cpu":
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return model(x)
    if way == "checkpoint":
        # About the square root of the layers in each piece, as torch.utils.checkpoint_sequential cuts.
        layers = list(model)
        size = max(1, round(len(layers) ** 0.5))
        for start in range(0, len(layers), size):
            x = checkpoint(nn.Sequential(*layers[start:start + size]), x, use_reentrant=False)
        return x
    return model(x)


def measure(name, batch, way):
    global INPLACE
    INPLACE = way != "checkpoint"
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    model, size = NETWORKS[name]()
    model.cuda()
    descent = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4)
    x, labels = torch.randn(batch, 3, size, size, device="cuda"), torch.arange(batch, device="cuda") % 1000
    times = []
    while len(times) < (2 if len(times) == 2 and times[1] > 1000 else 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        descent.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(forward(model, x, way), labels).backward()
        descent.step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    times = sorted(times[1:])
    return {"case": f"{name}:{batch}", "way": way, "step_ms": times[len(times) // 2], "steps": len(times),
            "peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}


def main():
    results, case, ways = sys.argv[1], sys.argv[2], sys.argv[3:] or WAYS
    name, batch = case.split(":")
    setting = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
    for way in ways:
        try:
            line = measure(name, int(batch), way)
        except RuntimeError as error:
            # Device memory, or pinned host memory, which has no exception class. After anything else the context is lost.
            if "out of memory" not in str(error) and "pin" not in str(error):
                raise
            line = {"case": case, "way": way, "failed": str(error)[:200]}
        torch.cuda.empty_cache()
        with open(results, "a") as out:
            print(json.dumps(line | setting), file=out, flush=True)


main()
