#!/usr/bin/env python3
"""One convolution layer's forward and backward with less and less memory beside its tensors: one JSON line a case.

usage: [tightfit run .. --] python scripts/gpu_run/cliff.py --label NAME [--extra 4096,1024,512,256] PRECISION:DIMENSIONS:N:C:K:SIZE:R ..

A framework that can't have the workspace of its fast algorithm falls back to one that needs none, or fails. `tensors_gib` is
what input, output and their gradients take; the caps (torch.cuda.set_per_process_memory_fraction) are that and so many MiB
more. Each is tried twice; the line has the milliseconds of the second try, or what the error said. `same` says whether the
gradients under the least memory are those under the most, to 1 % of the largest.
"""

import argparse
import time

import torch
from measure import GIB, tell
from models import TYPES
from torch import nn


def attempt(layer, x):
    """Milliseconds of the second of two steps and the filters' gradient, or what went wrong."""
    try:
        for _ in range(2):
            x.grad = layer.weight.grad = None
            torch.cuda.synchronize()
            begin = time.perf_counter()
            y = layer(x)
            y.backward(y.detach())
            del y
            torch.cuda.synchronize()
            spent = time.perf_counter() - begin
        return round(1e3 * spent, 1), layer.weight.grad.float()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return str(error).split(". GPU")[0][:120], None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--label", default="plain")
    parser.add_argument("--extra", default="4096,1024,512,256")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    whole = torch.cuda.get_device_properties(0).total_memory
    for case in options.cases:
        precision, *numbers = case.split(":")
        dimensions, n, c, k, size, r = map(int, numbers)
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.manual_seed(0)
        x = torch.randn(n, c, *[size] * dimensions, device="cuda", dtype=TYPES[precision])
        convolution = {2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
        layer = convolution(c, k, r, padding=r // 2, bias=False).to("cuda", TYPES[precision])
        x.requires_grad_(True)
        tensors = 2 * (c + k) * n * size**dimensions * x.element_size()
        given, gradients = {}, []
        for extra in options.extra.split(","):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(min(1.0, (tensors + float(extra) * 2**20) / whole))
            given[extra], gradient = attempt(layer, x)
            gradients += [gradient] if gradient is not None else []
            x.grad = layer.weight.grad = None
        same = bool(gradients) and bool((gradients[0] - gradients[-1]).abs().max() <= 0.01 * gradients[0].abs().max())
        tell(label=options.label, case=case, tensors_gib=tensors / GIB, step_ms_by_extra_mib=given, same=same)
        del x, layer


if __name__ == "__main__":
    main()
