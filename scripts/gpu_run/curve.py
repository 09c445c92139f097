#!/usr/bin/env python3
"""The loss over 200 steps of a task that a network can learn: one JSON line with every twentieth loss.

usage: [tightfit run .. --] python scripts/gpu_run/curve.py --label NAME [--steps 200] [--deterministic] [NETWORK:BATCH:PRECISION]
       [tightfit run .. --] torchrun --nproc-per-node 2 scripts/gpu_run/curve.py --label NAME CASE

The case is small:256:fp32 unless given. Under torchrun, ranks train together (DistributedDataParallel), each on different pictures; losses are
their mean. `bits` is a checksum of all losses and of the first rank's weights afterwards, `seconds` the time of all steps.
"""

import argparse
import hashlib
import os
import time

import torch
from measure import tell
from models import TYPES, build, loss_of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", default="plain")
    parser.add_argument("case", nargs="?", default="small:256:fp32")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's own switch")
    options = parser.parse_args()
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    network, batch, precision = options.case.split(":")
    model, x, _ = build(network, int(batch), precision)
    trained = torch.nn.parallel.DistributedDataParallel(model, device_ids=[x.device.index]) if ranks > 1 else model
    solver = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    pictures = torch.randn(10, *x.shape[1:], generator=torch.Generator().manual_seed(7)).cuda()
    generator = torch.Generator("cuda").manual_seed(8 + rank)
    losses, begin = [], time.perf_counter()
    for _ in range(options.steps):
        # Ten pictures under noise: the class is the picture.
        target = torch.randint(10, (len(x),), generator=generator, device="cuda")
        given = pictures[target] * 0.3 + torch.randn(x.shape, generator=generator, device="cuda")
        solver.zero_grad(set_to_none=True)
        loss = loss_of(trained, given.to(TYPES[precision]), target)
        loss.backward()
        solver.step()
        loss = loss.detach()
        if ranks > 1:
            torch.distributed.all_reduce(loss, torch.distributed.ReduceOp.AVG)
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    shown = [float(f"{loss:.4g}") for loss in losses[::20]]
    last = sum(losses[-20:]) / 20
    bits = hashlib.sha256(str(losses).encode())
    for weights in model.state_dict().values():
        bits.update(weights.cpu().numpy().tobytes())
    figures = {"mean_of_last_20": last, "every_20th": shown, "bits": bits.hexdigest()[:16], "seconds": seconds}
    if rank == 0:
        tell(label=options.label, case=options.case, deterministic=options.deterministic, ranks=ranks, **figures)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
