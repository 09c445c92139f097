"""Stretches in which autograd saves tensors without hooks: they change no gradient, whatever happens there."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tightfit.torch as tt
from fit_models import image
from fit_support import FAST, default_loss, equal, fitted_copy, gradients, last_plan, same_bits, set_link, sgd, train
from tightfit._fit.doors import session_of
from tightfit._fit.passes import Pass


class Narrow(nn.Sequential):
    """A layer of a few small maps."""

    def __init__(self):
        super().__init__(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())


class Funnel(nn.Module):
    """A few large maps, which are offloaded, before many small ones, which are kept; between these, whatever `hook` does."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())])
        self.first = nn.Conv2d(3, 8, 1)
        self.pool = nn.AvgPool2d(8)
        self.narrow = nn.ModuleList(Narrow() for _ in range(8))
        self.layers = 8
        self.hook = None
        self.probes = False

    def forward(self, x):
        x = self.first(x)
        for layer in self.wide:
            if self.probes:
                self.probe(layer, x)
            x = layer(x)
        x = self.pool(x)
        for place, layer in enumerate(self.narrow[: self.layers]):
            x = layer(x) if self.hook is None or place != 3 else self.hook(layer, x)
        return x

    @torch.no_grad()
    def probe(self, layer, x):
        """Calls a layer, and the last ones, without gradients."""
        x = layer(x)
        for layer in self.narrow:
            x = layer(x)


@pytest.fixture
def both(monkeypatch):
    """A model, one like it in a budget, and inputs."""
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Funnel().train(), image(4, 32)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 2, x), train(fitted, 2, x))
    return model, fitted, x


def packs_of(fitted, x, monkeypatch):
    """How many tensors of a step are packed by hooks."""
    found = []
    pack = Pass.pack
    monkeypatch.setattr(Pass, "pack", lambda self, tensor: (found.append(self.k), pack(self, tensor))[1])
    default_loss(fitted, x).backward()
    return found


def test_tensors_that_are_just_kept_are_saved_without_hooks(both, monkeypatch):
    _, fitted, x = both
    bound = last_plan(fitted).bound
    without = {number for stretch in bound.unhooked.values() for number in range(stretch.first, stretch.end)}
    assert len(without) > 30
    assert packs_of(fitted, x, monkeypatch) == [number for number in range(len(bound.answers)) if number not in without]
    assert set(bound.unpacks).isdisjoint(without)
    assert not any(module._forward_hooks or module._forward_pre_hooks for name, module in fitted.named_modules() if name)
    counts = last_plan(fitted).counts
    assert not (counts.strangers or counts.late or counts.out_of_order)


def test_an_exception_that_a_program_catches_on_the_way(both):
    model, fitted, x = both

    def fails(layer, x):
        try:
            layer(x[:, :3])
        except RuntimeError:
            return layer(x)
        raise AssertionError("three channels are not eight")

    model.hook = fitted.hook = fails
    for _ in range(3):
        assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_an_exception_that_ends_the_pass(both):
    model, fitted, x = both

    def fails(layer, x):
        raise ValueError("on purpose")

    for one in (model, fitted):
        one.hook = fails
        with pytest.raises(ValueError, match="on purpose"):
            one(x)
        one.hook = None
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert same_bits(train(model, 2, x), train(fitted, 2, x))


def test_hooks_of_the_program_stay_its_own(both):
    model, fitted, x = both
    found = []

    def saves(layer, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: found.append(tensor.shape) or tensor, lambda tensor: tensor):
            return layer(x)

    model.hook = fitted.hook = saves
    for _ in range(4):
        assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert len(found) % 8 == 0 and len(set(map(len, found))) > 1, "the same ones in both models"


def test_a_shorter_path_does_no_harm(both):
    model, fitted, x = both
    for layers in (8, 6, 8):
        model.layers = fitted.layers = layers
        assert same_bits(train(model, 2, x), train(fitted, 2, x))
    # At six layers, nothing put the hooks back.
    assert not last_plan(fitted).bound.unhooked


def test_a_longer_path_is_noticed(both, monkeypatch, capfd):
    model, fitted, x = both
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")

    def twice(layer, x):
        return layer(layer(x))

    model.hook = fitted.hook = twice
    stretches = dict(last_plan(fitted).bound.unhooked)
    assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert len(last_plan(fitted).bound.unhooked) == len(stretches) - 1 and "another path" not in capfd.readouterr().err
    assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert "took another path than the recorded one (first at saved tensor" in capfd.readouterr().err
    assert same_bits(train(model, 3, x), train(fitted, 3, x))


def test_what_a_program_computes_now_and_then_and_does_not_save_costs_no_plan(both):
    model, fitted, x = both
    for step in range(6):
        model.hook = fitted.hook = (lambda layer, x: (x.mean(), layer(x))[1]) if step % 3 == 1 else None
        assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert session_of(fitted)._made == 1 and not last_plan(fitted).counts.strangers


def test_hooks_that_nothing_puts_back_are_not_taken_away_again(both):
    model, fitted, x = both
    (stretch,) = last_plan(fitted).bound.unhooked.values()
    for one in (model, fitted):
        parent, _, name = stretch.ends.rpartition(".")
        setattr(one.get_submodule(parent), name, copy.deepcopy(one.get_submodule(stretch.ends)))
    for _ in range(3):
        assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert not last_plan(fitted).bound.unhooked and torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_a_checkpoint_around_the_model_gets_all_that_it_saves(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    block = [layer for _ in range(8) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())]
    model, x = nn.Sequential(*block).train(), torch.randn(4, 8, 16, 16, requires_grad=True)
    fitted = fitted_copy(model, x, 0.7)
    default_loss(fitted, x).backward()
    assert last_plan(fitted).bound.unhooked

    def loss(model, x):
        return checkpoint(model, x, use_reentrant=False).square().mean()

    for _ in range(3):
        assert same_bits(train(model, 1, x, loss), train(fitted, 1, x, loss))


def test_calls_without_gradients_before_those_with_them_change_nothing(both):
    model, fitted, x = both
    (stretch,) = last_plan(fitted).bound.unhooked.values()
    assert stretch.begins.startswith("wide.")
    model.probes = fitted.probes = True
    for _ in range(6):
        assert same_bits(train(model, 1, x), train(fitted, 1, x))
    assert session_of(fitted)._made == 1 and not last_plan(fitted).counts.strangers and last_plan(fitted).bound.unhooked


def test_pytorch_itself_notices_writes_to_what_it_has_saved(both):
    _, fitted, x = both

    def writes(layer, x):
        y = layer(x)
        x.add_(1)
        return y

    fitted.hook = writes
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        default_loss(fitted, x).backward()


def test_passes_within_one_block_of_autocast(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Funnel().train(), image(4, 32)
    fitted = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        plan = tt.plan(model, x, optimizer=sgd(model))
    tt.fit(fitted, plan.least + (plan.plain - plan.least) // 2, optimizer=sgd(fitted))
    for one in (model, fitted):
        for _ in range(3):
            one.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                # The second one's weights are cast already.
                losses = default_loss(one, x) + default_loss(one, x)
            losses.backward()
    assert equal(gradients(model), gradients(fitted))
    assert last_plan(fitted).bound.unhooked and not last_plan(fitted).counts.strangers
    assert session_of(fitted)._made == 1
