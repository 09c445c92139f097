#!/usr/bin/env python3
"""The paper's Figure 7: a mini-batch for unequal GPUs in one call, from recorded profiles. Needs no GPU, and no torch.

usage: python examples/best_batch_size.py

Sample code of Oyama et al. 2018, III.E; its `framework` is the one of your choice, here none:

    gpus = ["K80", "K80", "K20Xm"]
    f.CNN(gpus=gpus, minibatch=ucudnn.best_batch_size(mb, gpus)).run()
"""

from pathlib import Path

import tightfit

PROFILES = Path(__file__).resolve().parent.parent / "profiles"

# Training steps that were recorded whole; what of them is interpolated says scripts/synthetic-mixed-cluster.py.
gpus = ["K80", "K80", "K20Xm"]
print(gpus, tightfit.best_batch_size(32, gpus, network="resnet18", profile=PROFILES / "synthetic-mixed-cluster.jsonl"))

# Convolutions that were recorded at every size: WR divides them at every batch under the workspace limit. Two GPUs of one
# kind, of which the second has less memory; the other layers are taken to need 6 us a sample.
found = tightfit.split(
    256,
    ["H200", "H200"],
    network="alexnet-1col",
    profile=PROFILES / "recorded" / "h200-legacy-alexnet-1col-all.jsonl.gz",
    workspace="64MiB",
    memory=["8GiB", "1GiB"],
    multiple_of=8,
    rest_us=6.0,
)
for device in found.devices:
    print(f"{device.device}: {device.batch} samples in {device.time_us / 1e3:.2f} ms")
