"""Reruns are the calls that a plan prices: one saved tensor after another, each from the one before, not each from the beginning."""

import collections

import pytest
import torch
from fit_support import SLOW, default_loss, fitted_copy, set_link
from tightfit._budget.api import session_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that compute the most, and do not occur in their own gradients.
COUNTED = ("aten.addmm", "aten.convolution", "aten.gelu", "aten.native_layer_norm", "aten.native_group_norm", "aten._softmax", "aten.tanh")


class Count(TorchDispatchMode):
    only_counts = True

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


class Chain(nn.Module):
    """Layers of which each saves something that only the layers before it make."""

    def __init__(self, layers=12, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Convolutions(nn.Sequential):
    def __init__(self, width=16):
        layers = [part for _ in range(8) for part in (nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.Tanh())]
        super().__init__(nn.Conv2d(3, width, 3, padding=1), *layers)


def in_backward(model, x, loss=default_loss):
    value = loss(model, x)
    with Count() as count:
        value.backward()
    return count.calls


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("make, shape", [(Chain, (64, 16, 64)), (Convolutions, (4, 3, 32, 32))], ids=["linear", "convolutions"])
def test_a_pass_runs_the_calls_again_that_the_plan_prices(make, shape, share, monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(0)
    model, x = make().train(), torch.randn(shape)
    plain = in_backward(model, x)
    fitted = fitted_copy(model, x, share)
    for _ in range(3):
        in_backward(fitted, x)
    found = in_backward(fitted, x) - plain
    last = session_of(fitted).last
    operations = [last.lives.operations[index]["name"] for one in last.schedule.decisions.values() for entry in one["rebuilt"] for index in entry["operations"]]
    planned = collections.Counter(operations)
    assert any(planned[name] for name in COUNTED), "the plan runs nothing again"
    assert {name: found[name] for name in COUNTED} == {name: planned[name] for name in COUNTED}
