"""Writes the recorded steps that `tests/test_fit_gaps.py` plans without torch.

usage: python crates/python/tests_torch/fit_recorded.py
"""

import gzip
import json
from pathlib import Path

import torch

import tightfit.torch as tt
from fit_models import NETWORKS, Resnet, image

FOLDER = Path(__file__).parents[1] / "tests/steps"
STEPS = {
    "resnet": (lambda: Resnet(blocks=3), lambda: image(4)),
    "unet": NETWORKS["unet"],
    "half": NETWORKS["half"],
    "densenet": NETWORKS["densenet"],
    "vit": NETWORKS["vit"],
}


def step_of(name):
    """The rehearsed step of a network, at the rates of a CPU, with SGD and momentum."""
    torch.manual_seed(0)
    make, inputs = STEPS[name]
    model = make().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = dict(tt.plan(model, inputs(), optimizer=optimizer, host_budget="1GiB")._fitted.step.data)
    step["name"] = name
    return step


def path_of(name):
    return FOLDER / f"{name}.json.gz"


if __name__ == "__main__":
    for step in STEPS:
        content = json.dumps(step_of(step), separators=(",", ":")).encode()
        path_of(step).write_bytes(gzip.compress(content, mtime=0))
