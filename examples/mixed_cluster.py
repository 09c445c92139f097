#!/usr/bin/env python3
"""The paper's Figure 13: ResNet-18, mini-batch 32, on two chips of a K80, a K20Xm and a 750Ti.

usage: python examples/mixed_cluster.py [FIGURE.svg]

The times are interpolated between the few that the paper prints (scripts/synthetic-mixed-cluster.py says which), so the
profile can only show that the split found from them is the paper's.
"""

import sys
from pathlib import Path

import tightfit

PROFILE = Path(__file__).resolve().parent.parent / "profiles" / "synthetic-mixed-cluster.jsonl"


def split(*devices: str) -> tightfit.MixedSplit:
    return tightfit.split(32, devices, network="resnet18", profile=PROFILE)


clusters = [
    (("K80", "K80", "K20Xm"), "one K80 chip", "speedup_over_alone", 2.12),
    (("K80", "K80", "K20Xm", "750Ti"), "one K80 chip", "speedup_over_alone", 2.20),
    (("K20Xm", "750Ti"), "the even split", "speedup_over_even", 1.37),
]
print(f"{'devices':<24}{'batches':<18}{'step':>9}   gain")
for devices, baseline, gain, printed in clusters:
    found = split(*devices)
    batches = " + ".join(map(str, found.batches))
    print(
        f"{', '.join(devices):<24}{batches:<18}{found.time_us / 1e3:>6.2f} ms   "
        f"{getattr(found, gain):.2f}x over {baseline}; the paper: {printed:.2f}x"
    )

if len(sys.argv) > 1:
    from tightfit import plots

    plots.plot_split(split(*clusters[1][0])).figure.savefig(sys.argv[1])
