#!/usr/bin/env python3
"""Writes profiles/synthetic-mixed-cluster.jsonl: training steps of ResNet-18 on the devices of the paper's Figure 13.

usage: scripts/synthetic-mixed-cluster.py > profiles/synthetic-mixed-cluster.jsonl

The paper (Oyama et al. 2018, IV.C) prints few times. These are printed, or follow from printed ones:

    K20Xm at 16                          83.03 ms   printed
    750Ti at 16                         168.43 ms   printed
    best split of 32 over K20Xm, 750Ti  122.94 ms   168.43 / 1.37, printed as a slowdown
    best split over two K80 chips, K20Xm  T / 2.12  and it is {12, 12} + 8, both printed; T: one K80 chip at 32, not printed
    best split over all four              T / 2.20  printed

Everything else is INTERPOLATED by straight lines, the simplest times that give all of these:

    K80    14.76 + 2.52 n      T = 95.4 ms is a choice: T / 2.12 has to lie between K20Xm at 8 and at 9
    K20Xm  a line through 83.03 ms at 16 and T / 2.20 at 8; from 16 on a steeper one through 122.94 ms at 22
    750Ti  24.43 + 9 n         through 168.43 ms at 16; at 2 it has to be done before T / 2.20, at 11 not before 122.94 ms

So the profile tests that our split finds the paper's split. It is not evidence of the speed of those devices.
"""

import json

ALONE = 95.4
DEVICES = {
    "Tesla K80": lambda n: 14.76 + 2.52 * n,
    "Tesla K20Xm": lambda n: (
        83.03 + (83.03 - ALONE / 2.20) / 8 * (n - 16) if n <= 16 else 83.03 + (168.43 / 1.37 - 83.03) / 6 * (n - 16)
    ),
    "GTX 750Ti": lambda n: 24.43 + 9.0 * n,
}


def line(value):
    print(json.dumps(value, separators=(",", ":")))


line({"format": "tightfit-profile", "version": 1})
for name, time_ms in DEVICES.items():
    line({"device": {"backend": "synthetic", "name": name, "library": "paper figure 13", "threads": 0}})
    rows = [[n, round(time_ms(n) * 1e6), 0, 0.0, 1, None] for n in range(1, 33)]
    line({"problem": "step resnet18 f32", "algorithm": "synthetic", "notes": 0, "rows": rows})
