"""Once the first passes of a plan have shown no other reader, what no backward pass reads is dropped without noting calls."""

import copy

import pytest
import tightfit.torch as tt
import torch
from fit_support import SLOW, equal, fitted_copy, measured_peak, set_link
from test_fit_masks import Perceives
from test_fit_unread import dropping, frozen, last, make, step
from tightfit._budget.plan import fitted as plans
from tightfit._budget.plan import unread
from torch import nn

NETWORKS = ["resnet", "decoder", "words", "perceptual"]


@pytest.fixture(autouse=True)
def filled(monkeypatch):
    monkeypatch.setattr(unread, "fills", True)
    monkeypatch.setattr(plans, "SURE_PASSES", 1)


def given(name):
    if name != "perceptual":
        return make(name)
    torch.manual_seed(0)
    return frozen(Perceives(True)), torch.randn(4, 3, 32, 32, requires_grad=True)


def sure(model, x, less=0, share=None):
    """A copy of a model under a budget, after enough steps that no calls are noted for dropped tensors."""
    other = copy.deepcopy(model)
    plan = tt.plan(model, x)
    tt.fit(other, int(plan.plain * share) if share else tt.plan(model, x, plan.plain - 1).peak - less)
    for _ in range(2):
        step(other, x)
    assert last(other).schedule.looks
    return other


@pytest.mark.parametrize("name", NETWORKS)
def test_no_call_is_noted(name):
    model, x = given(name)
    wanted, other = step(model, x), sure(model, x)
    fitted = last(other)
    before = fitted.counts.dropped
    for _ in range(3):
        assert equal(wanted, step(other, x))
    assert fitted.counts.dropped > before and fitted.counts.calls == fitted.counts.unplanned == 0
    if not fitted.schedule.dropped:
        assert not fitted.schedule.noted and not fitted.schedule.needs_hooks and not fitted.schedule.quiet
    # In `words`, functions are called between modules, whose ends do not show them.
    assert bool(fitted.schedule.dropped) <= (name in ("words", "decoder"))


@pytest.mark.parametrize("cast", [False, True])
def test_signs_are_kept(cast):
    model, x = given("perceptual")
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        wanted, other = step(model, x), sure(model, x, less=1)
        fitted = last(other)
        before = fitted.counts.masked
        assert fitted.step.masked and equal(wanted, step(other, x)) and fitted.counts.masked > before
        assert not fitted.schedule.needs_hooks


def test_what_autocast_casts_anew_is_dropped():
    """Rehearsals, too, note the cast of a tensor of 32 bits as a separate call."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Conv2d(8 if place else 3, 8, 3, padding=1) for place in range(3)])

        def forward(self, x):
            for part in self.parts:
                x = torch.nn.functional.silu(part(x).float())
            return x

    torch.manual_seed(0)
    model, x = frozen(Wide()), torch.randn(2, 3, 64, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        wanted, other = step(model, x), sure(model, x)
        assert len(last(other).step.dropped) >= 2 and equal(wanted, step(other, x))


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
@pytest.mark.parametrize("name", NETWORKS)
def test_other_decisions_stay(name, share):
    """Some tensors are moved or recomputed, and unread ones are dropped."""
    model, x = given(name)
    plan = tt.plan(model, x)
    if int(plan.plain * share) < plan.least:
        pytest.skip("it does not fit")
    other = sure(model, x, share=share)
    wanted = step(model, x)
    for _ in range(2):
        assert equal(wanted, step(other, x))


def test_the_peak_is_the_predicted_one(monkeypatch):
    monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
    model, x = given("resnet")
    other = sure(model, x)
    fitted = last(other)
    resident = sum(size for size, stays in zip(fitted.lives.bytes, fitted.lives.resident, strict=True) if stays)
    assert fitted.peak - resident - fitted.peak // 10 < measured_peak(other, x) <= fitted.peak - resident + fitted.peak // 100


def slope(model, x):
    """The gradient of a gradient."""
    given = x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(model(given).sin().sum(), given, create_graph=True)
    return [first.detach(), *torch.autograd.grad(first.square().sum(), [given, *(p for p in model.parameters() if p.requires_grad)], allow_unused=True)]


def test_a_late_reader_gets_an_error_that_names_the_tensor_and_then_the_tensor():
    model, x = given("resnet")
    other = sure(model, x)
    with pytest.raises(RuntimeError, match=r"layer4.1.bn2 has saved a tensor of shape \[4, 512, 3, 3\].*create_graph"):
        slope(other, x)
    found = [[one for one in slope(either, x) if one is not None] for either in (model, other)]
    assert equal(*found) and last(other).schedule.dropped
    for _ in range(3):
        assert equal(step(model, x), step(other, x))
    assert last(other).schedule.dropped


def test_an_early_reader_is_remembered():
    model, x = given("resnet")
    other = dropping(model, x)
    slope(other, x)
    for _ in range(4):
        step(other, x)
    assert not last(other).schedule.looks
    slope(other, x)


def test_what_trains_from_some_step_on_is_not_dropped():
    model, x = given("resnet")
    other = sure(model, x)
    for part in ("layer2", "layer4.0.bn1", "layer3.0.conv1", "conv1"):
        for one in (model, other):
            for name, parameter in one.named_parameters():
                parameter.requires_grad_(part in name)
        assert equal(step(model, x), step(other, x)), part
        assert not last(other).schedule.looks
        for one in (model, other):
            one.get_submodule(part).train()
        assert equal(step(model, x), step(other, x)), part


def test_what_trains_within_a_step_is_kept():
    """Nothing shows that before the pass; its nodes do."""
    model, x = given("resnet")
    other = sure(model, x)
    for one in (model, other):
        one.layer2.register_forward_pre_hook(lambda module, inputs: module.requires_grad_() and None)
    before = last(other).counts.unplanned
    # The parameters are frozen again between steps.
    for _ in range(2):
        found = []
        for one in (model, other):
            y = one(x)
            found.append(torch.autograd.grad(y.square().mean(), [x, *one.layer2.parameters()]))
            one.layer2.requires_grad_(False)
        assert equal(*found)
    assert last(other).counts.unplanned > before


def test_parts_of_a_graph():
    model, x = given("resnet")
    other = sure(model, x)
    found = []
    for one in (model, other):
        given_ = x.detach().clone().requires_grad_()
        y = one(given_)
        rows = [torch.autograd.grad(y[:, place].sum(), given_, retain_graph=True)[0] for place in range(2)]
        found.append(rows + list(torch.autograd.grad(y.exp().sum(), [given_, one.fc.bias])))
    assert equal(*found)


class Looks(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.native_batch_norm_backward.default:
            self.seen.append(args[1].clone())
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("context", [Looks, lambda: torch.autograd.detect_anomaly(check_nan=True), lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x)])
def test_a_program_that_looks_from_the_beginning_sees_numbers(context):
    model, x = given("resnet")
    other = sure(model, x)
    found = []
    for one in (model, other):
        with context() as mode:
            found.append(step(one, x))
        found[-1] += getattr(mode, "seen", [])
    assert equal(*found)


def test_what_was_written_to_is_found():
    class Writes(nn.Module):
        write = False

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)

        def forward(self, x):
            w = torch.tanh(torch.sigmoid(self.first(x))) * 2
            out = self.second(w)
            if self.write:
                # A tensor that the program has let go of shows no writes.
                self.kept = w
                with torch.no_grad():
                    w.add_(1)
            return out

    torch.manual_seed(0)
    model, x = Writes(), torch.randn(4, 3, 64, 64)
    other = sure(model, x)
    assert equal(step(model, x), step(other, x))
    other.write = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step(other, x)


def test_hooks_are_there_only_in_passes():
    model, x = given("resnet")
    other = sure(model, x)
    names = {name for name, module in other.named_modules() if module._forward_hooks}
    assert names <= {""}
    tt.unfit(other)
    assert not any(module._forward_hooks for module in other.modules()) and equal(step(model, x), step(other, x))


class Bottleneck(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(before, after // 2, 1, bias=False), nn.BatchNorm2d(after // 2)
        self.c2, self.n2 = nn.Conv2d(after // 2, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after)) if before != after else nn.Identity()

    def forward(self, x):
        y = self.n2(self.c2(self.relu(self.n1(self.c1(x)))))
        y += self.skip(x)
        return self.relu(y)


@pytest.mark.parametrize("share", [0.36, 0.38])
def test_noted_calls_drop_what_the_ends_of_their_modules_would(share, monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    model, x = nn.Sequential(*stem, Bottleneck(16, 32), *(Bottleneck(32, 32) for _ in range(3))), torch.randn(8, 3, 32, 32)
    wanted, other = step(copy.deepcopy(model), x), fitted_copy(model, x, share)
    for _ in range(3):
        assert equal(wanted, step(other, x))
    assert last(other).counts.rebuilt and last(other).counts.unplanned == 0
