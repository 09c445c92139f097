"""Models that run otherwise from step to step: other shapes, another way, another computation, other numbers; or that read values."""

import contextlib
import copy

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Residual, Resnet, image, resnet
from fit_support import (
    FAST,
    SLOW,
    decided,
    default_loss,
    equal,
    fitted_copy,
    gradients,
    last_plan,
    same_bits,
    set_link,
    sgd,
    tight_budget,
    train,
)  # fmt: skip
from tightfit._budget.api import session_of
from tightfit._budget.plan.pack_schedule import REBUILD
from torch import nn


def test_changing_shapes_get_plans_of_their_own(link):
    model, x = resnet()
    fitted = fitted_copy(model, x)
    for size in (4, 2, 3, 4, 2):
        inputs = image(size)
        model.zero_grad()
        fitted.zero_grad()
        default_loss(model, inputs).backward()
        default_loss(fitted, inputs).backward()
        assert equal(gradients(model), gradients(fitted)), size
    assert len(session_of(fitted).plans) == 3
    for size in range(5, 16):
        with contextlib.suppress(tightfit.DoesNotFit):
            default_loss(fitted, image(size)).backward()
    assert len(session_of(fitted).plans) <= 8


def test_more_forms_than_plans_are_never_planned_in_turn(monkeypatch, capfd):
    """A form no larger than one that fits costs nothing; others wait until a plan is out of use."""
    set_link(monkeypatch, FAST)
    model, _ = resnet()
    fitted = copy.deepcopy(model)
    tt.fit(fitted, tt.plan(model, image(12), optimizer=sgd(model)).plain, optimizer=sgd(fitted))
    session, made = session_of(fitted), []
    plan = session.plan
    session.plan = lambda rehearsal, *others: (made.append(others), plan(rehearsal, *others))
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")

    def step(size):
        x = image(size)
        found = []
        for net in (model, fitted):
            net.zero_grad()
            default_loss(net, x).backward()
            found.append(gradients(net))
        assert equal(*found), size
        return len(made)

    # Forms that fit share one plan, the plan of the largest form; larger forms get other plans.
    for count, size in enumerate(range(5, 20)):
        assert step(size) == count + 1
    assert step(7) == 15 and sum(plan.schedule is None for plan in session.plans.values()) == 1
    assert step(20) == step(21) == 15
    assert capfd.readouterr().err.count("more than 8 different forms of inputs") == 1
    monkeypatch.setattr("tightfit._budget.eager.plans.IDLE", 2)
    assert step(20) == 16 and len(session.plans) == 8


class ReadsItsTensors(nn.Module):
    """Cannot be rehearsed: what it does depends on values."""

    def __init__(self):
        super().__init__()
        self.body = Resnet(blocks=3)

    def forward(self, x):
        if x.mean().item() < 100:
            x = x + 1
        return self.body(x)


def test_a_model_that_reads_its_tensors_is_recorded_on_its_first_step(link, monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    torch.manual_seed(1)
    model, x = ReadsItsTensors().train(), image(4)
    with pytest.raises(tightfit.BadInput, match="cannot be planned without running it"):
        tt.plan(model, x)
    fitted = copy.deepcopy(model)
    tt.fit(fitted, int(tight_budget(model.body, x, 0.6) * 1.1), optimizer=sgd(fitted))
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
    assert "recording its first step" in capfd.readouterr().err
    assert sum(decided(last_plan(fitted)).values()) > 0
    assert last_plan(fitted).counts.packs > 0


class Turns(nn.Module):
    """Takes another way at every third call, without its inputs showing it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.ways = nn.ModuleList([Residual(16), nn.Sequential(Residual(16), nn.Conv2d(16, 16, 1), nn.SiLU())])
        self.end = Residual(16)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.end(self.ways[self.calls % 3 == 0](self.first(x)))


def test_another_way_through_the_model_is_noticed_and_right(link):
    torch.manual_seed(1)
    model, x = Turns().train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 7, x), train(fitted, 7, x))


class Chooses(nn.Module):
    """Computes something else at every third call, with the same shapes and the same modules."""

    def __init__(self, ways):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(3)]])
        self.ways, self.calls = ways, 0

    def forward(self, x):
        self.calls += 1
        for block in self.blocks:
            x = block(x)
            x = self.ways[self.calls % 3 == 0](x)
        return x


@pytest.mark.parametrize(
    "ways",
    [
        (torch.relu, torch.nn.functional.gelu),
        (torch.relu, torch.sigmoid),
        (lambda x: torch.sigmoid(x + x.mean()), lambda x: torch.sigmoid(x - x.mean())),
        (lambda x: torch.relu(x.flip(2)), lambda x: torch.relu(x.flip(2).neg())),
    ],
    ids=["relu-gelu", "relu-sigmoid", "add-sub", "neg"],
)
def test_another_computation_of_the_same_shapes_is_noticed(ways, link):
    torch.manual_seed(1)
    model, x = Chooses(ways).train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 4, x), train(fitted, 4, x))


class Wanders(Chooses):
    """Computes something else at every call."""

    def forward(self, x):
        self.ways = self.ways[::-1]
        return super().forward(x)


def test_what_is_only_offloaded_may_be_computed_by_anything(monkeypatch):
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Wanders((torch.relu, torch.sigmoid)).train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 4, x), train(fitted, 4, x))
    assert decided(last_plan(fitted))["offload"] > 0 and last_plan(fitted).counts.unplanned == 0


def test_a_model_that_never_repeats_itself_keeps_its_plan(monkeypatch, capfd):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Wanders((torch.relu, torch.sigmoid)).train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    assert same_bits(train(model, 24, x), train(fitted, 24, x))
    assert "runs differently" not in capfd.readouterr().err, "what a pass does otherwise is noted, and right"
    assert last_plan(fitted).counts.calls > 0


class Swaps(nn.Module):
    """Calls its layers in another order at every third call, with the same shapes and the same operations."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(6)])
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = torch.relu(self.first(x))
        for layer in reversed(self.layers) if self.calls % 3 == 0 else self.layers:
            x = torch.relu(layer(x))
        return x


def test_layers_in_another_order_run_again_in_that_order(monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Swaps().train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 2, x), train(fitted, 2, x))
    assert last_plan(fitted).counts.calls > 0
    assert not any(module._forward_pre_hooks for name, module in fitted.named_modules() if name), "they are there while it runs"
    assert same_bits(train(model, 4, x), train(fitted, 4, x))


class Branches(nn.Module):
    """Adds another branch, of the same shape, when it is flipped."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)) for _ in range(4))
        self.flipped = False

    def forward(self, x):
        x = self.stem(x)
        for one, two, three, last in self.blocks:
            a, t, g = torch.tanh(one(x)), torch.tanh(two(x)), torch.sigmoid(three(x))
            x = last(a + (g if self.flipped else t)) + t + g
        return x


@pytest.mark.parametrize("share", [0.8, 0.7])
def test_each_tensor_that_a_rerun_reads_is_told_from_others(monkeypatch, share):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Branches().train(), image(4)
    fitted = fitted_copy(model, x, share)
    assert same_bits(train(model, 2, x), train(fitted, 2, x))
    assert REBUILD in last_plan(fitted).schedule.kinds.values()
    model.flipped = fitted.flipped = True
    assert same_bits(train(model, 2, x), train(fitted, 2, x))


class Scaled(nn.Module):
    """Scales its maps by another number in every step."""

    def __init__(self):
        super().__init__()
        self.blocks, self.scale = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(16), Residual(16), Residual(16)), 1.0

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x) * self.scale) + self.scale
        self.scale *= 0.9
        return x


def test_numbers_that_change_from_step_to_step_are_not_those_recorded(link):
    torch.manual_seed(1)
    model, x = Scaled().train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 4, x), train(fitted, 4, x))
    assert last_plan(fitted).counts.unplanned == 0


def adaptive(net, x, often):
    """Two parts of the backward pass first, for the weight of a loss, as VQGAN does; in some of the steps."""
    y = net(x)
    one, two = y.square().mean(), y.abs().mean()
    weight = 1.0
    if net.steps % often == 0:
        last = net.body[-2].c2.weight
        first, second = (torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (one, two))
        weight = float(first / (second + 1e-4))
    net.steps += 1
    return one + weight * two


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.steps = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(4)], nn.Sigmoid()), 0

    def forward(self, x):
        return self.body(x)


def steps_of(model, x, often):
    model.steps = 0
    for _ in range(14):
        model.zero_grad()
        adaptive(model, x, often).backward()
    return gradients(model)


def fitted_for_parts(monkeypatch, often):
    """A fitted model after steps that equal plain's. Some of them have several backward passes."""
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Counts().train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    assert equal(steps_of(model, x, often), steps_of(fitted, x, often))
    return fitted


def test_a_step_of_several_backward_passes_is_recorded_as_a_whole(monkeypatch, capfd):
    fitted = fitted_for_parts(monkeypatch, 1)
    said = capfd.readouterr().err
    assert said.count("reads what it saved in another order than the recorded one") == 1 and "another path" not in said
    plan = last_plan(fitted)
    assert plan.counts.out_of_order == 0 and plan.counts.packs > 0 and not session_of(fitted)._offloaded
    unpacks = [number for number, _ in plan.step.unpacks]
    assert len(unpacks) > len(set(unpacks)), "what the parts read is read again"
    assert torch.autograd._engine_run_backward.__module__.startswith("torch")


def test_another_order_now_and_then_leaves_the_plan(monkeypatch, capfd):
    fitted = fitted_for_parts(monkeypatch, 3)
    assert "recorded again" not in capfd.readouterr().err and last_plan(fitted).counts.out_of_order > 0


class Heads(nn.Module):
    """Reads its tensors, so that it is recorded; of its outputs, programs use some."""

    def __init__(self):
        super().__init__()
        self.body, self.other = Resnet(blocks=3), Resnet(blocks=1)

    def forward(self, x):
        x = x * (1.0 if x.mean().item() < 100 else 2.0)
        return self.body(x), self.other(x)


@pytest.mark.parametrize("ends", ["update", "pass", "unfit"])
def test_a_recording_ends_though_a_part_of_the_graph_stays(ends, monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Heads().train(), image(4)
    fitted = copy.deepcopy(model)
    tt.fit(fitted, "64MiB", optimizer=sgd(fitted))
    optimizer = sgd(fitted)
    outputs = fitted(x)
    outputs[0].square().mean().backward()
    session = session_of(fitted)
    assert session._recording.began and not session.plans
    if ends == "unfit":
        tt.unfit(fitted)
        assert session._recording is None and torch.autograd._engine_run_backward.__module__.startswith("torch")
        outputs[1].square().mean().backward()
        return
    if ends == "update":
        optimizer.step()
    else:
        fitted.zero_grad()
        assert fitted(x) is not None
    assert session.plans and session._recording is None
    assert torch.autograd._engine_run_backward.__module__.startswith("torch")


class Late(nn.Module):
    """Another path, which needs much more, once `late` is set."""

    late = False

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return torch.tanh(torch.cat([x] * 40, 1)).mean(1, keepdim=True) if self.late else x


@pytest.mark.parametrize("way", ["another path", "a larger batch"])
def test_training_that_has_begun_goes_on_where_no_plan_fits(way, link, monkeypatch, capfd):
    torch.manual_seed(1)
    model, x = Late(), torch.randn(4, 8, 64, 64)
    fitted = copy.deepcopy(model)
    least = tt.plan(model, x, budget="100GiB", optimizer=sgd(model)).least
    tt.fit(fitted, int(1.3 * least), optimizer=sgd(fitted))
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    for step in range(6):
        model.late = fitted.late = step >= 2 and way == "another path"
        given = torch.randn(16, 8, 64, 64) if step >= 2 and way == "a larger batch" else x
        for net in (model, fitted):
            net.zero_grad()
            default_loss(net, given).backward()
        assert equal(gradients(model), gradients(fitted)), step
    said = capfd.readouterr().err
    assert "training goes on" in said or "everything it saves is offloaded" in said, said


def test_a_first_step_is_refused_again_if_it_is_tried_again():
    model, x = resnet()
    least = tt.plan(model, x, budget="100GiB", optimizer=sgd(model)).least
    tt.fit(model, least // 2, optimizer=sgd(model))
    for _ in range(3):
        with pytest.raises(tightfit.DoesNotFit):
            model(x)


def test_a_budget_that_is_met_to_the_byte_is_not_planned_anew_for_a_few_numbers(monkeypatch, capfd):
    """AdamW counts its steps in numbers that nobody assumes."""
    model, x = resnet()
    optimizer = torch.optim.AdamW(model.parameters())
    tt.fit(model, tt.plan(model, x, budget="100GiB", optimizer=optimizer).plain, optimizer=optimizer)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    for _ in range(3):
        optimizer.zero_grad()
        default_loss(model, x).backward()
        optimizer.step()
    said = capfd.readouterr().err
    assert "anew" not in said and "needs more" not in said, said


class Detector(nn.Module):
    """Takes images, and boxes of which there is another number in each step."""

    def __init__(self):
        super().__init__()
        self.body = Resnet(blocks=4)

    def forward(self, images, boxes):
        return self.body(images).square().mean() + sum(box.mean() for box in boxes)


def test_another_number_of_boxes_is_no_new_form(link):
    torch.manual_seed(1)
    model, images = Detector().train(), image(4)
    fitted = copy.deepcopy(model)
    boxes = [torch.rand(3, 4)]
    tt.fit(fitted, int(0.8 * tt.plan(model, (images, boxes), optimizer=sgd(model)).plain), optimizer=sgd(fitted))
    for counts in ((3,), (5,), (1, 2), (7, 1, 1)):
        given = [torch.rand(count, 4) for count in counts]
        for net in (model, fitted):
            net.zero_grad()
            net(images, given).backward()
        assert equal(gradients(model), gradients(fitted))
    assert len(session_of(fitted).plans) == 1 and session_of(fitted).last.schedule is not None
