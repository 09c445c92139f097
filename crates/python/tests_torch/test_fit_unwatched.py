"""Modules that compute otherwise if they are watched have plain's bits within a budget."""

import copy

import pytest
import tightfit.torch as tt
import torch
from tightfit._budget.api import session_of
from tightfit._budget.eager import passes
from tightfit._budget.record import unwatched
from torch import nn

WIDTH = 32


class Asks(nn.Module):
    """A module whose numbers depend on hooks of its parts, and on function modes."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in self.modules())
        return self.part(x) * (1.0 + hooks + 8.0 * torch.overrides.has_torch_function((x,)))


def layer():
    return nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


KINDS = {"asks": Asks, "layer": layer, "attention": Attention, "encoder": lambda: nn.TransformerEncoder(layer(), 2)}


class Model(nn.Module):
    """A frozen encoder, with or without gradients, between parts that train."""

    def __init__(self, kind, grads):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.encoder = KINDS[kind]().eval().requires_grad_(False)
        self.last = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh())))
        self.grads = grads

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x):
        with torch.set_grad_enabled(self.grads):
            words = self.encoder(x)
        return self.last(self.first(x) + words)


def steps(model, count=5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for number in range(count):
        torch.manual_seed(number)
        optimizer.zero_grad()
        y = model(torch.randn(16, 64, WIDTH))
        y.square().mean().backward()
        optimizer.step()
        found.append([y.detach().clone(), *(weight.detach().clone() for weight in model.parameters())])
    with torch.no_grad():
        found.append([model(torch.ones(2, 4, WIDTH))])
    return found


def compared(kind, grads, rehearses, monkeypatch):
    torch.manual_seed(0)
    plain = Model(kind, grads)
    fitted = copy.deepcopy(plain)
    if not rehearses:
        fitted.first.register_forward_hook(lambda *_: torch.zeros(1).item())
        plain.first.register_forward_hook(lambda *_: torch.zeros(1).item())
    wanted = steps(plain)
    tt.fit(fitted, "70%", host_budget="1KiB")
    found = steps(fitted)
    last = session_of(fitted).last
    tt.unfit(fitted)
    same = all(torch.equal(one, other) for one_step, other_step in zip(wanted, found, strict=True) for one, other in zip(one_step, other_step, strict=True))
    return same, last.counts.calls


@pytest.mark.parametrize("rehearses", [True, False], ids=["rehearsed", "recorded"])
@pytest.mark.parametrize("grads", [False, True], ids=["without-gradients", "frozen"])
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_encoders_have_equal_bits(kind, grads, rehearses, monkeypatch):
    same, calls = compared(kind, grads, rehearses, monkeypatch)
    assert calls > 0, "something is computed again"
    assert same


@pytest.mark.parametrize("rehearses", [True, False], ids=["rehearsed", "recorded"])
def test_the_comparison_shows_watched_modules(rehearses, monkeypatch):
    monkeypatch.setattr(unwatched, "would_differ", lambda *_: False)
    monkeypatch.setattr(passes, "would_differ", lambda *_: False)
    assert not compared("asks", False, rehearses, monkeypatch)[0]


def test_hooks_of_the_program_stay_in_their_order():
    model = Model("layer", False)
    order = []
    for name in ("one", "two"):
        model.encoder.linear1.register_forward_hook(lambda *_, name=name: order.append(name))
    steps(model)
    plain, order[:] = list(order), []
    tt.fit(model, "70%", host_budget="1KiB")
    steps(model)
    assert order == plain
    tt.unfit(model)
    assert len(model.encoder.linear1._forward_hooks) == 2 and not model.encoder._forward_pre_hooks


@pytest.mark.parametrize("kind", ["layer", "encoder"])
def test_a_fitted_encoder_evaluates_as_plain(kind):
    torch.manual_seed(0)
    model = KINDS[kind]()
    x = torch.randn(16, 64, WIDTH)
    model.eval()
    with torch.no_grad():
        wanted = model(x)
    tt.fit(model, "80%")
    with torch.no_grad():
        found = [model(x) for _ in range(2)]
    assert all(torch.equal(wanted, one) for one in found)
