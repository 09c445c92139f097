"""Steps that end early, overlap, or find the model changed: nothing of them may stay behind."""

import contextlib
import copy
import gc
import weakref

import pytest
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import FAST, SLOW, default_loss, equal, fitted_copy, gradients, last_plan, set_link, sgd
from tightfit._budget import launch
from tightfit._budget.api import session_of
from tightfit._budget.memory.copies import CpuCopies
from tightfit._budget.record.optimizer import optimizer_bytes, optimizers_of
from torch import nn


def top_hooks():
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class Break(nn.Module):
    """The identity, or what Ctrl-C does."""

    now = None

    def forward(self, x):
        if Break.now is not None:
            raise Break.now
        return x


def interrupted(call):
    for kind in (KeyboardInterrupt, SystemExit):
        Break.now = kind()
        with pytest.raises(kind):
            call()
        Break.now = None


def with_break():
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    fitted = fitted_copy(model, x)
    model.insert(6, Break())
    fitted.insert(6, Break())
    return model, fitted, x


def step(model, x):
    model.zero_grad()
    default_loss(model, x).backward()
    return gradients(model)


def test_an_interrupt_leaves_no_hooks_behind(link):
    model, fitted, x = with_break()
    assert equal(step(model, x), step(fitted, x))
    interrupted(lambda: fitted(x))
    assert equal(step(model, x), step(fitted, x))
    assert session_of(fitted).here.stack == [] and top_hooks() is None
    packs, unplanned = last_plan(fitted).counts.packs, last_plan(fitted).counts.unplanned
    assert packs > 0 and unplanned == 0
    torch.ones(1000, requires_grad=True).sin().sum().backward()
    assert last_plan(fitted).counts.unplanned == 0
    interrupted(lambda: fitted(x))
    tt.unfit(fitted)
    assert top_hooks() is None


def test_hooks_of_others_stay_when_ours_are_cleared(monkeypatch):
    set_link(monkeypatch, FAST)
    model, fitted, x = with_break()
    step(fitted, x)
    interrupted(lambda: fitted(x))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        others = top_hooks()
        tt.unfit(fitted)
        assert top_hooks() == others
    assert top_hooks() is None


def test_an_interrupt_ends_a_recording_too(monkeypatch):
    set_link(monkeypatch, FAST)
    model, fitted, x = with_break()
    fitted[0].register_forward_hook(lambda module, inputs, output: None)
    interrupted(lambda: fitted(x))
    assert equal(step(model, x), step(fitted, x))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None and top_hooks() is None


@contextlib.contextmanager
def launched():
    """The hooks of `tightfit run --budget 1GiB`, which stay in a program until it ends. Here, nothing of them stays."""
    found = launch._Launched("1GiB")
    make, engine = torch.optim.Optimizer.__init__, torch.autograd._engine_run_backward
    handles = [
        nn.modules.module.register_module_forward_pre_hook(found.before),
        nn.modules.module.register_module_forward_hook(found.after, always_call=True),
    ]
    try:
        yield found
    finally:
        torch.optim.Optimizer.__init__, torch.autograd._engine_run_backward = make, engine
        for handle in (*handles, found.together._updates):
            if handle is not None:
                handle.remove()


def test_an_interrupt_under_run_is_forgotten(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    model.insert(6, Break())
    with launched() as found:
        step(model, x)
        interrupted(lambda: model(x))
        other = nn.Linear(3, 3)
        step(other, torch.ones(2, 3))
        assert found.state.outermost is None and len(found.sessions) == 2


def test_models_without_an_optimizer_are_not_searched_for_one_in_every_pass(monkeypatch):
    searches, find = [], launch.optimizers_of
    monkeypatch.setattr(launch, "optimizers_of", lambda *given: searches.append(True) or find(*given))
    with launched() as found:
        found.note_optimizers()
        model, other = nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = sgd(other)
        for _ in range(5):
            step(model, torch.ones(2, 3))
        assert len(searches) == 1 and found.sessions[model].planner.optimizer is None
        mine = sgd(model)
        step(model, torch.ones(2, 3))
        planner = found.sessions[model].planner
        assert len(searches) == 2 and planner.optimizer.each == [mine]
        # One that was replaced is let go of, with its state.
        gone = weakref.ref(mine)
        mine = torch.optim.AdamW(model.parameters())
        gc.collect()
        assert gone() is None
        step(model, torch.ones(2, 3))
        assert len(searches) == 3 and planner.optimizer.each == [mine]
        del mine
        gc.collect()
        step(model, torch.ones(2, 3))
        assert len(searches) == 4 and planner.optimizer is None
        step(model, torch.ones(2, 3))
        assert len(searches) == 4
        del optimizer


def test_a_models_optimizers_are_those_with_most_of_its_parameters():
    model, cpu = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)), torch.device("cpu")
    some, others = torch.optim.SGD(model[0].parameters()), torch.optim.AdamW(model[1:].parameters())
    alien, first, last = sgd(nn.Linear(2, 2)), torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters())
    assert optimizers_of(model, [some, others]).each == optimizers_of(model, [alien, others, some]).each == [others, some]
    # The later of two equal optimizers takes the place of the other.
    assert optimizers_of(model, [some, first, others, last]).each == [last] and optimizers_of(model, [last, first]).each == [first]
    assert optimizers_of(model, [alien]) is None
    both = optimizers_of(model, [some, others])
    # Two states of AdamW for two layers; none of plain gradient descent.
    assert optimizer_bytes(both, model, cpu)[0] == 2 * 2 * 4 * 20
    assert optimizer_bytes(both, model, cpu)[1] == max(optimizer_bytes(one, model, cpu)[1] for one in (some, others))
    del some, others
    gc.collect()
    assert both.each == [] and not both.is_whole and optimizer_bytes(both, model, cpu) == optimizer_bytes(None, model, cpu)


class Gate(nn.Module):
    """Saves tensors whose strides are 0 or overlap."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.a(x)
        gate = torch.sigmoid(h.mean(1, keepdim=True)).expand(-1, 64)
        windows = h.unfold(1, 8, 4)
        return self.b(h) * gate, windows * windows.sin()


def test_expanded_tensors_are_recorded_on_a_real_step(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Gate(), torch.randn(1024, 64)
    fitted = copy.deepcopy(model)
    fitted.a.register_forward_hook(lambda module, inputs, output: None)
    tt.fit(fitted, "64MiB", optimizer=sgd(fitted))
    found = []
    for net in (model, fitted):
        for one, two in (net(x), net(x)):
            (one.square().mean() + two.mean()).backward()
        found.append(gradients(net))
    assert equal(*found)


def test_a_discriminator_step_before_the_generators_does_not_end_its_recording(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    judge = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    fitted, other = copy.deepcopy(made), copy.deepcopy(judge)
    fitted[1].register_forward_hook(lambda module, inputs, output: None)
    tt.fit(fitted, "64MiB", optimizer=sgd(fitted))
    z, engine = torch.randn(128, 16), torch.autograd._engine_run_backward
    for _ in range(3):
        found = []
        for generator, discriminator in ((made, judge), (fitted, other)):
            fake = generator(z)
            discriminator.zero_grad()
            discriminator(fake.detach()).mean().backward()
            generator.zero_grad()
            discriminator(fake).mean().backward()
            found.append(gradients(generator))
        assert equal(*found)
    planned = session_of(fitted)
    assert planned.plans and not planned._offloaded and planned._recorded and max(planned._recorded.values()) == 1
    assert torch.autograd._engine_run_backward is engine


def test_a_module_that_is_replaced_is_planned_anew(monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    fitted = fitted_copy(model, x, 0.6)
    assert equal(step(model, x), step(fitted, x))
    for net in (model, fitted):
        torch.manual_seed(2)
        net[3] = nn.Sequential(net[3], nn.BatchNorm2d(16))
    for _ in range(8):
        assert equal(step(model, x), step(fitted, x))
    found = session_of(fitted)
    assert not found._offloaded and last_plan(fitted).counts.unplanned == 0
    assert last_plan(fitted).counts.packs > 0


def test_two_passes_a_step_take_two_arenas_once(monkeypatch, capfd):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    fitted = fitted_copy(model, x)
    found = session_of(fitted)
    taken, copies = [], CpuCopies()
    arena = copies.arena
    copies.arena = lambda size: taken.append(size) or arena(size)
    found.planner.copies = copies

    def twice(net):
        net.zero_grad()
        first, second = default_loss(net, x), default_loss(net, x)
        (first + second).backward()
        return gradients(net)

    for _ in range(4):
        assert equal(twice(model), twice(fitted))
    assert len(taken) == 2 and len(found.arenas) == 2
    # Where the budget has room for one only, the second is given back.
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    found.arenas.clear()
    found.planner.host.budget = int(1.5 * taken[0])
    for _ in range(3):
        assert equal(twice(model), twice(fitted))
    assert len(found.arenas) == 1
    assert capfd.readouterr().err.count("2 forward passes before their backward passes") == 1


def test_blocks_keep_no_model_alive(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    places = []
    for _ in range(2):
        model, x = Resnet(blocks=3).train(), image(4)
        optimizer = sgd(model)
        for _ in range(3):
            with tt.budget("64MiB", model, optimizer=optimizer):
                loss = default_loss(model, x)
            loss.backward()
        places.append(weakref.ref(model))
        copied = copy.deepcopy(model)
        assert vars(copied).keys() == vars(Resnet(blocks=3)).keys()
        del model, optimizer, loss, copied
    gc.collect()
    assert [place() for place in places] == [None, None]


class Chain(nn.Module):
    """A model whose parts may be used for the loss one by one, so that the backward pass ends early or begins in the middle."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 64)) for _ in range(4)])

    def forward(self, x):
        found = []
        for part in self.parts:
            x = part(x)
            found.append(x)
        return found


def test_parts_of_the_graph_run_early_late_or_never(link):
    """Backward passes in another order than recorded, of parts only, twice, and given up: fetched tensors are the saved ones."""
    torch.manual_seed(1)
    model, x = Chain().train(), torch.randn(256, 64)

    def loss(net, given):
        return sum(out.square().mean() for out in net(given))

    fitted = copy.deepcopy(model)
    plan = tt.plan(fitted, x, optimizer=sgd(fitted), loss=lambda outs: sum(out.square().mean() for out in outs))
    tt.fit(fitted, max(int(plan.plain * 0.8), plan.least), optimizer=sgd(fitted), loss=lambda outs: sum(o.square().mean() for o in outs))
    for net in (model, fitted):
        loss(net, x).backward()
    assert equal(gradients(model), gradients(fitted))

    def backwards(net, order):
        net.zero_grad()
        outs = net(x)
        for place in order:
            outs[place].square().mean().backward(retain_graph=True)
        return gradients(net)

    for order in ((0,), (3,), (0, 3), (3, 0), (1, 2, 1), (), (2, 3, 0, 1)):
        assert equal(backwards(model, order), backwards(fitted, order)), order
    gc.collect()
    assert all(owner() is None for _, owner in session_of(fitted).arenas), "no pass is left"
