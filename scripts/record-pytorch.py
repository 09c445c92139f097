"""Records three training steps of a small network by PyTorch in 64 bits: losses, gradients, running statistics.

    python scripts/record-pytorch.py > crates/train/tests/recorded/pytorch.json

Weights and samples are a formula, so the file holds results alone; `crates/train/tests/pytorch.rs` builds the same
network. It has every kind of layer but dropout, whose random numbers are no two libraries' alike.
"""

import json

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
BATCH, CLASSES, STEPS = 4, 5, 3


def numbers(shape, seed):
    """Numbers from -1 to 1 in steps of 1/50, by a formula of their place."""
    count = torch.Size(shape).numel()
    i = torch.arange(count)
    return (((i * 37 + i // 7 * 11 + seed * 29) % 101 - 50) / 50).reshape(shape)


def parameter(shape, seed, around=0.0):
    return (around + 0.4 * numbers(shape, seed)).requires_grad_()


P = {
    "conv1.weight": parameter((6, 3, 3, 3), 0),
    "conv1.bias": parameter((6,), 1),
    "a.weight": parameter((4, 6, 1, 1), 2),
    "a.bn.scale": parameter((4,), 3, around=1.0),
    "a.bn.shift": parameter((4,), 4),
    "b.weight": parameter((6, 3, 3, 3), 5),
    "b.bias": parameter((6,), 6),
    "c.weight": parameter((10, 10, 3, 3), 7),
    "c.bias": parameter((10,), 8),
    "fc.weight": parameter((CLASSES, 90), 9),
    "fc.bias": parameter((CLASSES,), 10),
}
mean, variance = torch.zeros(4), torch.ones(4)


def loss_of(samples, labels):
    x = F.relu(F.conv2d(samples, P["conv1.weight"], P["conv1.bias"], padding=1))
    x = F.local_response_norm(x, 3, alpha=0.5, beta=0.75, k=1.0)
    x = F.max_pool2d(x, 3, 2, ceil_mode=True)
    a = F.conv2d(x, P["a.weight"])
    a = F.relu(F.batch_norm(a, mean, variance, P["a.bn.scale"], P["a.bn.shift"], training=True))
    b = F.relu(F.conv2d(x, P["b.weight"], P["b.bias"], padding=1, groups=2))
    join = torch.cat([a, b], 1)
    x = F.relu(F.conv2d(join, P["c.weight"], P["c.bias"], padding=1) + join)
    x = F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)
    return F.cross_entropy(F.linear(x.flatten(1), P["fc.weight"], P["fc.bias"]), labels)


solver = torch.optim.SGD(P.values(), lr=0.1, momentum=0.9, weight_decay=0.01)
record = {"torch": torch.__version__.split("+")[0], "losses": [], "gradients": []}
for step in range(STEPS):
    labels = torch.tensor([(3 * n + step) % CLASSES for n in range(BATCH)])
    solver.zero_grad()
    loss = loss_of(numbers((BATCH, 3, 10, 10), 50 + step), labels)
    loss.backward()
    record["losses"].append(loss.item())
    record["gradients"].append({name: [float(f"{g:.8g}") for g in p.grad.flatten().tolist()] for name, p in P.items()})
    solver.step()
record["statistics"] = mean.tolist() + variance.tolist()
# The step between adds nothing that the last one's gradients do not depend on.
record["gradients"] = [record["gradients"][0], record["gradients"][-1]]
print(json.dumps(record))
