"""Fitted networks against plain ones: bits of gradients, statistics and random states, and the predicted peak."""

import copy

import pytest
import tightfit.torch as tt
import torch
from fit_models import NETWORKS
from fit_support import (
    FAST,
    SLOW,
    LiveBytes,
    decided,
    default_loss,
    fitted_copy,
    last_plan,
    measured_peak,
    resident_bytes,
    same_bits,
    set_link,
    squares,
    tight_budget,
    train,
)  # fmt: skip
from tightfit._budget.api import session_of
from tightfit._budget.eager.hooks import fitted_by
from tightfit._budget.plan.bind import bind


def made(name):
    torch.manual_seed(1)
    make, inputs = NETWORKS[name]
    return make().train(), inputs()


@pytest.mark.parametrize("name", NETWORKS)
def test_three_steps_have_the_bits_of_plain_ones(name, link):
    model, x = made(name)
    fitted = fitted_copy(model, x)
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
    plan = last_plan(fitted)
    assert decided(plan)["offload" if link == FAST else "recompute"] > 0, decided(plan)
    assert plan.counts.unplanned == plan.counts.out_of_order == plan.counts.late == 0, vars(plan.counts)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_is_the_predicted_one(name, link):
    """Live bytes counted from outside are within 1% of the prediction, at several budgets, and never above the budget."""
    model, x = made(name)
    for share in (1.5, 0.8, 0.6, 0.4):
        budget = tight_budget(model, x, share, loss=squares)
        tt.fit(model, budget, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), loss=squares)
        # The first step rehearses and makes the arena.
        measured_peak(model, x)
        measured = measured_peak(model, x)
        fitted = session_of(model).last
        outcome = fitted.schedule.outcome if fitted.schedule is not None else fitted.decided.outcome
        # The optimizer's memory is not measured here.
        resident, operations = resident_bytes(fitted), fitted.step.data["operations"]
        passes = [live for live, operation in zip(outcome.live, operations, strict=True) if operation["stage"] != "update"]
        predicted = max(passes) - resident
        assert abs(measured - predicted) <= 0.01 * predicted, (share, measured, predicted)
        assert measured <= budget - resident, share
        tt.unfit(model)


@pytest.mark.parametrize("name", ["turned", "vit", "vae"])
def test_a_step_leaves_nothing_behind(name, monkeypatch):
    """A rerun's own graph goes with the rerun."""
    set_link(monkeypatch, SLOW)
    model, x = made(name)
    tt.fit(model, tight_budget(model, x, 0.4), optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    measured_peak(model, x)
    model.zero_grad()
    with LiveBytes([x, *model.parameters(), *model.buffers()]) as counter:
        default_loss(model, x).backward()
        model.zero_grad()
    assert last_plan(model).counts.rebuilt > 0 and counter.peak > 0
    assert counter.live < 4096, counter.live


@pytest.mark.parametrize("name", ["resnet", "vit-dropout", "unet"])
def test_nothing_is_rebuilt_while_autograd_holds_it(name, monkeypatch):
    """A plan may drop a tensor between an unpack and the last reader of the unpacked tensor. The tensor stays, and is predicted to."""
    set_link(monkeypatch, SLOW)
    model, x = made(name)
    budget = tight_budget(model, x, 0.6)
    tt.fit(model, budget, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    default_loss(model, x).backward()
    fitted = last_plan(model)
    step, lives = fitted.step, fitted.lives
    decisions, twice = {}, {}
    for tensor, decision in fitted.decided.decisions.items():
        if decision["decision"] != "recompute":
            decisions[tensor] = twice[tensor] = decision
            continue
        (entry, *_), last = decision["rebuilt"], lives.last[tensor]
        decisions[tensor] = {**decision, "rebuilt": [entry]}
        twice[tensor] = {**decision, "rebuilt": [entry, {**entry, "before": last}]}
        unpacks = {operation for number, operation in step.unpacks if step.packs[number][0] == tensor}
        if last in unpacks:
            del twice[tensor], decisions[tensor]
    assert any(decision["rebuilt"] for decision in decisions.values())
    outcomes = [bind(step, lives, given, fitted.recorder).outcome for given in (twice, decisions)]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["resnet", "vit", "vae", "packed"])
def test_the_peak_under_autocast_is_the_predicted_one(name, monkeypatch):
    """The casts of the weights count for as long as autocast or the backward pass needs them."""
    set_link(monkeypatch, SLOW)
    model, x = made(name)
    model.requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        budget = tight_budget(model, x, 0.6, loss=squares)
    tt.fit(model, budget, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), loss=squares)
    for _ in range(2):
        measured = measured_peak(model, x, torch.bfloat16)
    fitted = session_of(model).last
    passes = [
        live
        for live, operation in zip(fitted.schedule.outcome.live, fitted.step.data["operations"], strict=True)
        if operation["stage"] != "update"
    ]
    predicted = max(passes) - resident_bytes(fitted)
    # On fake tensors, a CPU's layer norm has its statistics in the narrow type.
    assert abs(measured - predicted) <= 0.01 * predicted, (measured, predicted)


@pytest.mark.parametrize("name", ["resnet", "vit", "vae", "unet"])
def test_autocast_has_the_bits_of_plain_autocast(name, monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = made(name)
    fitted = copy.deepcopy(model)

    def loss(net, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return net(inputs).float().square().mean()

    plain = train(model, 2, x, loss)
    with torch.autocast("cpu", torch.bfloat16):
        budget = tight_budget(fitted, x, 0.6)
    tt.fit(fitted, budget)
    session_of(fitted).planner.optimizer = torch.optim.SGD(fitted.parameters(), lr=0.1, momentum=0.9)
    assert same_bits(plain, train(fitted, 2, x, loss))
    assert decided(last_plan(fitted))["recompute"] > 0


def test_backward_under_autocast_rebuilds_without_it(monkeypatch):
    """A rerun calls what autocast had chosen; autocast must not choose again."""
    set_link(monkeypatch, SLOW)
    model, x = made("vae")
    fitted = fitted_copy(model, x)
    first = train(model, 1, x)
    with torch.autocast("cpu", torch.bfloat16):
        optimizer_free = copy.deepcopy(fitted)
    assert fitted_by(optimizer_free) is None
    fitted.zero_grad()
    torch.manual_seed(0)
    loss = fitted(x).float().square().mean()
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first[0][0], fitted.parameters(), strict=True))
    assert last_plan(fitted).counts.rebuilt > 0


def test_channels_last_keeps_its_layout_and_bits(monkeypatch):
    for link in (FAST, SLOW):
        set_link(monkeypatch, link)
        model, x = made("resnet")
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        fitted = fitted_copy(model, x)
        assert same_bits(train(model, 2, x), train(fitted, 2, x))
        assert last_plan(fitted).counts.unplanned == 0


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121", "efficientnet_b0"])
def test_networks_of_torchvision(name, monkeypatch):
    models = pytest.importorskip("torchvision.models")
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = getattr(models, name)().train(), torch.randn(16, 3, 64, 64)
    fitted = fitted_copy(model, x, 0.6)
    assert same_bits(train(model, 2, x), train(fitted, 2, x))
    assert decided(last_plan(fitted))["recompute"] > 0
