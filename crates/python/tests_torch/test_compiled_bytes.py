"""Computed bytes of divisions are compared with the bytes of Inductor's own lowering, and divisions are replaced when the latter do not fit."""

import copy
import shutil

import pytest
import torch
import torch._functorch.aot_autograd as aot_autograd
from fit_models import Dense, Efficient, Mobile, Resnet, Vae, Vit, image
from fit_support import default_loss, train
from tightfit._budget.compiled import plan
from tightfit._budget.compiled.backend import tightfit
from torch import nn

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU")

MODELS = {
    "resnet": lambda: (Resnet(blocks=2), image(4)),
    "dense": lambda: (Dense(layers=4), image(4)),
    "efficient": lambda: (Efficient(blocks=2), image(4)),
    "mobile": lambda: (Mobile(), image(4)),
    "vae": lambda: (Vae(), image(2, 16)),
    "vit": lambda: (Vit(), image(4)),
}


@pytest.fixture(autouse=True)
def fresh(fresh_graphs, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))


@pytest.fixture
def seen(monkeypatch):
    """Of each graph of each division: computed bytes, bytes of Inductor's buffers, and whether the division was kept. ``scale`` makes the latter larger."""

    class Seen(list):
        """The graphs, and how they are changed."""

        scale = 1.0

    found = Seen()
    own = plan.Plan.keeps

    def keeps(self, is_backward, peak):
        division = self.choice.division
        computed = division.backward - division.rest if is_backward else division.forward
        kept = own(self, is_backward, int(peak * found.scale))
        found.append((is_backward, computed, peak, kept))
        return kept

    monkeypatch.setattr(plan.Plan, "keeps", keeps)
    return found


def compiled(model, budget):
    return torch.compile(model, backend=tightfit, options={"budget": budget, "inner": "inductor", "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_computed_bytes_are_close_to_those_of_inductor(name, seen):
    torch.manual_seed(1)
    model, x = MODELS[name]()
    default_loss(compiled(model, "1GiB"), x).backward()
    (_, forward, real_forward, _), (_, backward, real_backward, _) = seen
    assert forward == pytest.approx(real_forward, rel=0.1)
    # In small networks, the order of the gradients of weights matters, which Inductor moves to the end.
    assert 0.9 * real_backward <= backward <= 1.4 * real_backward


def test_a_division_that_inductor_needs_more_bytes_for_is_replaced(seen, monkeypatch):
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)) for _ in range(2)])
    x = torch.randn(128, 64)
    expected, _, _ = train(copy.deepcopy(model), 2, x)
    # All that PyTorch's own division needs by computation, and Inductor needs more.
    monkeypatch.setattr(plan, "_SPARE", 0.0)
    seen.scale = 1.3
    traced = []
    own = aot_autograd.aot_stage1_graph_capture
    monkeypatch.setattr(aot_autograd, "aot_stage1_graph_capture", lambda *args: traced.append(args) or own(*args))
    net = compiled(model, "100%")
    gradients, _, _ = train(net, 2, x)
    assert all(torch.allclose(*pair, atol=1e-4) for step in zip(expected, gradients, strict=True) for pair in zip(*step, strict=True))
    assert [one[3] for one in seen[-2:]] == [True, True] and any(not kept for *_, kept in seen), seen
    assert len(traced) == 1


def test_pytorchs_division_is_tried_before_a_budget_is_refused(seen, monkeypatch):
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)) for _ in range(4)])
    x = torch.randn(128, 64)
    own, of = plan.Plan.keeps, []

    def keeps(self, is_backward, peak):
        # Only PyTorch's divisions need what was computed.
        of.append(self.choice.of)
        return own(self, is_backward, peak if "PyTorch" in self.choice.of else 2 * peak)

    monkeypatch.setattr(plan.Plan, "keeps", keeps)
    net = torch.compile(model, backend=tightfit, options={"budget": "80%", "inner": "inductor", "offload": False, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    default_loss(net, x).backward()
    assert "our cut" in of and of[-1].startswith("PyTorch's at"), of
