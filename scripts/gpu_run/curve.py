#!/usr/bin/env python3
"""The loss of a small network over 200 steps of a task it can learn: one JSON line with every twentieth loss.

usage: [tightfit run .. --] python scripts/gpu_run/curve.py --label NAME [--precision fp32] [--steps 200] [--deterministic]

`bits` is a checksum of all losses and of the weights afterwards.
"""

import argparse
import hashlib
import os

import torch
from measure import tell
from models import TYPES, build, loss_of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", default="plain")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's own switch")
    options = parser.parse_args()
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    model, _, _ = build("small", 1, options.precision)
    solver = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    pictures = torch.randn(10, 3, 32, 32, generator=generator)
    losses = []
    for _ in range(options.steps):
        # Ten pictures under noise: the class is the picture.
        target = torch.randint(10, (256,), generator=generator)
        x = pictures[target] * 0.3 + torch.randn(256, 3, 32, 32, generator=generator)
        solver.zero_grad(set_to_none=True)
        loss = loss_of(model, x.to("cuda", TYPES[options.precision]), target.cuda())
        loss.backward()
        solver.step()
        losses.append(loss.item())
    shown = [float(f"{loss:.4g}") for loss in losses[::20]]
    last = sum(losses[-20:]) / 20
    bits = hashlib.sha256(str(losses).encode())
    for weights in model.state_dict().values():
        bits.update(weights.cpu().numpy().tobytes())
    figures = {"mean_of_last_20": last, "every_20th": shown, "bits": bits.hexdigest()[:16]}
    tell(label=options.label, precision=options.precision, deterministic=options.deterministic, **figures)


if __name__ == "__main__":
    main()
