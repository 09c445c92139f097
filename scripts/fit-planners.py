#!/usr/bin/env python3
"""Compares the greedy search of `tightfit.torch.fit` with the joint planner: added time of a step, as the runtime's model predicts it.

usage: scripts/fit-planners.py [--networks resnet50 vitl ..] [--shares 80 60 50 40 30] [--save FOLDER]

Steps are rehearsed on a CPU with the rates of an H200, in bf16 by autocast with fused AdamW, at the sizes of docs/results.md. Nothing runs, and
libraries' workspaces are not counted. On a CPU, autocast pools in f32. A row has the budget as a share of plain's peak, and the added time in % of
the greedy search and of the planner after 0.4 and 5 s. `-` means that no plan was found. The last word names the faster one. --save writes each step,
for `tightfit plan --step`.
"""

import argparse
import os
from pathlib import Path

import torch
import torchvision
from torch import nn

os.environ.update(TIGHTFIT_MEASURE="0", TIGHTFIT_QUIET="1")

import tightfit.torch as tt  # noqa: E402
from tightfit._budget.plan import decide  # noqa: E402
from tightfit._budget.plan.simulate import simulate  # noqa: E402
from tightfit._budget.record import cost  # noqa: E402

models = torchvision.models
NETWORKS = {
    "resnet50": (models.resnet50, 256),
    "convnextb": (lambda: models.convnext_base(stochastic_depth_prob=0.0), 128),
    "vitl": (models.vit_l_16, 128),
    "densenet121": (models.densenet121, 64),
    "efficientnet": (models.efficientnet_b0, 64),
    "mobilenet": (models.mobilenet_v3_large, 64),
}


def rehearsed(name):
    """The plan of a network that keeps everything."""
    make, batch = NETWORKS[name]
    model: nn.Module = make().train()
    # One number stands for all pixels: no memory is needed.
    x = torch.empty(1).expand(batch, 3, 224, 224)
    with torch.autocast("cpu", torch.bfloat16):
        return tt.plan(model, x, optimizer=torch.optim.AdamW(model.parameters(), fused=True), host_budget="256GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--shares", type=int, nargs="+", default=[80, 60, 50, 40, 30])
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    cost._CPU = cost.card_of("h200").rates
    print("network share greedy planner_1s planner_5s faster")
    for name in options.networks:
        plan = rehearsed(name)
        if options.save is not None:
            options.save.mkdir(parents=True, exist_ok=True)
            plan.save_step(options.save / f"{name}.json")
        step, lives = plan._fitted.step.data, plan._fitted.lives
        plain = simulate(lives, {})
        for share in options.shares:
            budget = plain.peak * share // 100
            found = [decide.by_greedy(lives, budget), *(decide.by_planner(step, budget, lives, plain, seconds) for seconds in (0.4, 5.0))]
            times = [decided.outcome.time_us if decided is not None and decided.fits else float("inf") for decided in found]
            planned = min(times[1:])
            faster = "none" if times[0] == planned == float("inf") else "both"
            if times[0] != planned:
                faster = "greedy" if times[0] < planned else "planner"
            words = [f"{100 * (time / plain.time_us - 1):.2f}" if time < float("inf") else "-" for time in times]
            print(name, f"{share}%", *words, faster, flush=True)


if __name__ == "__main__":
    main()
