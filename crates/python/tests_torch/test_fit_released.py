"""In a pass that does as recorded, nothing stays of the tensors that its plan gives up."""

import dataclasses

import pytest
import tightfit.torch as tt
import torch
from tightfit._budget.api import session_of
from tightfit._budget.plan import bind, decide, liveness, make, simulate
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(64), nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


def perceptron():
    return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


MODELS = {
    # The input of a linear layer is saved as a matrix: a view of its cast.
    "perceptron": lambda: nn.Sequential(perceptron(), perceptron(), perceptron()),
    "attention": lambda: nn.Sequential(Attention(), perceptron(), Attention(), perceptron()),
    "convolutions": lambda: nn.Sequential(*(nn.Sequential(nn.Conv1d(128, 128, 3, padding=1), nn.BatchNorm1d(128), nn.SiLU()) for _ in range(3))),
}


def decision(lives, tensor, kind):
    first, last = lives.first_backward[tensor], lives.last_forward[tensor]
    if kind == "offload":
        moved = {"offload_after": max(lives.first[tensor], 0), "prefetch_before": first, "rebuilt": []}
    else:
        moved = {"offload_after": None, "prefetch_before": None, "rebuilt": [{"before": first, "operations": liveness.closure(lives, tensor)}]}
    return {"tensor": tensor, "decision": kind, "release_after": last, **moved}


@pytest.mark.parametrize("moves", ["_to_copy", "native_layer_norm", "nothing", "everything"])
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_of_what_is_given_up(name, cast, moves, monkeypatch):
    """Results of operations named `moves` are offloaded, all others recomputed."""

    def within(budget, built, lives, recorder, *others):
        decisions = {}
        for tensor, movable in enumerate(lives.movable):
            if not movable or not lives.saved[tensor] or lives.first_backward[tensor] < 0:
                continue
            made_by = built.data["tensors"][tensor]["name"].split()[-1]
            for kind in ("offload",) if moves in (made_by, "everything") else ("recompute", "offload"):
                try:
                    tried = {**decisions, tensor: decision(lives, tensor, kind)}
                    simulate.simulate(lives, tried)
                    bind.bind(built, lives, tried, recorder)
                except liveness.Impossible:
                    continue
                decisions = tried
                break
        plain = simulate.simulate(lives, {})
        bound = bind.bind(built, lives, decisions, recorder)
        return decide.Decided(decisions, dataclasses.replace(bound.outcome, peak=1), plain, True), bound

    monkeypatch.setattr(make, "_within", within)
    torch.manual_seed(0)
    model, x = MODELS[name](), torch.randn(4, 128, 64)
    tt.fit(model, 1 << 40)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            y = model(x)
        passing = session_of(model).last
        decided = passing.schedule.decisions
        slots = [slot for slot in map(slots_of(y), decided) if slot is not None and slot.has_begun]
        assert len(slots) > 2 and not [slot.number for slot in slots if slot.tensor is not None]
        y.float().square().mean().backward()


def slots_of(y):
    """The slots of the pass that made an output, by number."""
    found = {}
    nodes, seen = [y.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
        for name in dir(node):
            packed = getattr(node, name) if name.startswith("_raw_saved_") else None
            data = getattr(packed, "data", None)
            slot = getattr(data, "slot", None)
            if slot is not None:
                found[slot.number] = slot
    return found.get
