#!/usr/bin/env python3
"""Gradients of a whole network against 64-bit arithmetic, one JSON line a case; and their bits.

usage: [tightfit run .. --] python scripts/gpu_run/gradients.py --label NAME NETWORK:BATCH:PRECISION ..

`error` is the norm of the difference over the norm of the reference, over all parameters together; `worst` is that of the
worst parameter that has a gradient worth the name. Two runs whose `digest` is equal computed the same bits.
"""

import argparse
import hashlib

import torch
from measure import tell
from models import TYPES, build, loss_of


def gradients(model, x, target):
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, x, target)
    loss.backward()
    return loss.item(), [parameter.grad.double() for parameter in model.parameters()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--label", default="plain")
    options = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    for case in options.cases:
        network, batch, precision = case.split(":")
        model, x, target = build(network, int(batch), precision)
        loss, got = gradients(model, x, target)
        digest = hashlib.sha256(b"".join(g.to(TYPES[precision]).float().cpu().numpy().tobytes() for g in got))
        # The reference starts from the rounded weights and data, so that only the arithmetic differs.
        _, reference = gradients(model.double(), x.double(), target)
        total = torch.cat([r.flatten() for r in reference]).norm()
        difference = torch.cat([(g - r).flatten() for g, r in zip(got, reference, strict=True)]).norm()
        telling = [(g, r) for g, r in zip(got, reference, strict=True) if r.norm() > 1e-4 * total]
        worst = max(((g - r).norm() / r.norm()).item() for g, r in telling)
        error = (difference / total).item()
        tell(label=options.label, case=case, loss=loss, error=error, worst=worst, digest=digest.hexdigest()[:16])
        del model, got, reference
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
