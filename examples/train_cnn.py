#!/usr/bin/env python3
"""A training program in PyTorch that knows nothing of tightfit: `program_to_split.py` runs it. Needs a GPU.

usage: python examples/train_cnn.py [--batch 32] [--steps 3]
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch", type=int, default=32, help="samples of a mini-batch")
parser.add_argument("--steps", type=int, default=3, help="training steps")
options = parser.parse_args()

model = nn.Sequential(
    nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(256, 10),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(options.steps):
    samples = torch.randn(options.batch, 3, 64, 64, device="cuda")
    labels = torch.randint(10, (options.batch,), device="cuda")
    loss = nn.functional.cross_entropy(model(samples), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1}: loss {loss.item():.3f}")
