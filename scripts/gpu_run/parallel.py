#!/usr/bin/env python3
"""DataParallel: one thread a GPU calls cuDNN at once. One JSON line a case, with the error to the same step on one GPU.

usage: [tightfit run .. --] python scripts/gpu_run/parallel.py --label NAME NETWORK:BATCH:PRECISION ..

BatchNorm is left in evaluation: each GPU would take its own statistics, another function than one GPU computes.
"""

import argparse

import torch
from measure import milliseconds, tell
from models import build, loss_of
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--label", default="plain")
    options = parser.parse_args()
    count = torch.cuda.device_count()
    for case in options.cases:
        network, batch, precision = case.split(":")
        model, x, target = build(network, int(batch), precision)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

        def gradients(called):
            model.zero_grad(set_to_none=True)
            loss_of(called, x, target).backward()
            return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])

        spread = nn.DataParallel(model)
        alone, together = gradients(model), gradients(spread)
        error = ((alone - together).norm() / alone.norm()).item()
        step_ms = milliseconds(lambda: gradients(spread), 5)
        tell(label=options.label, case=case, gpus=count, error_to_one_gpu=error, step_ms=step_ms)


if __name__ == "__main__":
    main()
