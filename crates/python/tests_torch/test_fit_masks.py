"""Signs of a tensor as bits, and networks whose ReLU results are kept so."""

import copy

import pytest
import test_fit_unread
import tightfit.torch as tt
import torch
from fit_support import equal, same_bits, train
from test_fit_unread import frozen, make, step
from tightfit._budget.api import Plan, session_of
from tightfit._budget.memory import masks
from tightfit._budget.plan import unread
from tightfit._budget.plan.fitted import Fitted
from tightfit._budget.record import marks
from torch import nn


@pytest.fixture(autouse=True)
def filled(monkeypatch):
    monkeypatch.setattr(unread, "fills", True)


def numbers(count, dtype):
    """Numbers of all kinds."""
    x = torch.randn(count).to(dtype)
    for begin, value in enumerate((0.0, -0.0, float("nan"), float("inf"), -float("inf"), torch.finfo(dtype).smallest_normal / 2)):
        x[begin :: 11 + begin] = value
    return x


@pytest.mark.parametrize("part", [64, masks.PART])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1001])
@pytest.mark.parametrize("dtype", masks.TYPES, ids=str)
def test_bits_are_the_signs(dtype, count, part, monkeypatch):
    monkeypatch.setattr(masks, "PART", part)
    x = numbers(count, dtype)
    mask = masks.mask_of(x)
    assert mask.bits.numel() == masks.bytes_of(count) and mask.bits.dtype is torch.uint8
    assert torch.equal(mask.tensor(), (~(x <= 0)).to(dtype))


def test_strides_are_those_of_the_tensor():
    for x in (torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last), torch.randn(5, 8).t(), torch.randn(4, 1, 6)):
        made = masks.mask_of(x).tensor()
        assert made.stride() == x.stride() and torch.equal(made, (x > 0).float())
    x = torch.randn(8, 8)
    assert [masks.mask_of(one) for one in (x[:, :4], x[:1].expand(8, 8), x.double(), x.flatten()[1:])] == [None] * 4


@pytest.mark.parametrize("dtype", masks.TYPES, ids=str)
def test_gradients_of_a_relu_are_those_of_its_result(dtype):
    x, grad = numbers(1001, dtype), torch.randn(1001).to(dtype)
    found = [torch.ops.aten.threshold_backward(grad, result, 0) for result in (x.relu(), masks.mask_of(x.relu()).tensor())]
    assert torch.equal(*(one.nan_to_num(3.0) for one in found))


def masking(model, x):
    """A copy of a model within the least budget that masks make possible without anything else."""
    other = copy.deepcopy(model)
    plain = tt.plan(model, x).plain
    tt.fit(other, tt.plan(model, x, plain - 1).peak - 1)
    return other


def last(model):
    found = session_of(model).last
    assert found.step.masked, found.line("model")
    return found


class Perceives(nn.Module):
    """A frozen network of convolutions, ReLUs and pools: as in perceptual losses."""

    def __init__(self, inplace):
        super().__init__()
        parts, c = [], 3
        for wide in (16, 32):
            for place in range(3):
                parts += [nn.Conv2d(c if place == 0 else wide, wide, 3, padding=1), nn.ReLU(inplace)]
            parts.append(nn.MaxPool2d(2))
            c = wide
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return self.parts(x)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("cast", [False, True])
def test_a_frozen_network_keeps_signs(inplace, cast, monkeypatch):
    # Weights are too large to be copied.
    monkeypatch.setattr(marks, "SMALL_BYTES", 0)
    torch.manual_seed(0)
    model, x = frozen(Perceives(inplace)), torch.randn(4, 3, 32, 32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        other = masking(model, x)
        for _ in range(3):
            assert equal(step(model, x), step(other, x))
    fitted = last(other)
    step_of = fitted.step
    packs = [tensor for number, (tensor, _) in enumerate(step_of.packs) if number in fitted.recorder.unread and tensor in step_of.dropped]
    assert fitted.counts.dropped == 3 * len(packs) and fitted.counts.masked == 3 * len(step_of.masked) > 0
    assert "kept as signs" in fitted.line("model")
    assert not fitted.schedule.decisions and fitted.peak <= fitted.budget < fitted.plain
    assert {decision["decision"] for decision in Plan(fitted, None).decisions} == {"drop", "mask"}


def test_a_network_that_trains_keeps_signs_before_pools():
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Conv2d(3 if place == 0 else 16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, 1)) for place in range(4)]
    model, x = nn.Sequential(*parts), torch.randn(8, 3, 32, 32)
    other = masking(model, x)
    assert same_bits(train(model, 3, x), train(other, 3, x))
    assert last(other).counts.masked > 0


def test_signs_without_room_are_not_chosen(monkeypatch):
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Conv2d(3 if place == 0 else 16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, 1)) for place in range(4)]
    model, x = nn.Sequential(*parts), torch.randn(8, 3, 32, 32)
    budget = tt.plan(model, x).plain * 84 // 100
    assert tt.plan(model, x, budget)._fitted.step.masked
    # As if no plan with signs had room for the gaps between blocks.
    monkeypatch.setattr(Fitted, "is_roomy", property(lambda self: not self.step.masked))
    found = tt.plan(model, x, budget)
    assert found.fits and not found._fitted.step.masked and found.peak <= budget


@pytest.mark.parametrize("name", ["test_gradients_of_gradients", "test_parts_of_a_graph"])
def test_masks_pass_the_tests_of_what_is_dropped(name, monkeypatch):
    monkeypatch.setattr(test_fit_unread, "dropping", masking)
    monkeypatch.setattr(test_fit_unread, "last", last)
    getattr(test_fit_unread, name)(*(["resnet"] if "gradients" in name else []))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("looks", [test_fit_unread.at_anomalies, test_fit_unread.from_outside, test_fit_unread.in_a_hook])
def test_a_program_that_looks_sees_numbers(looks, monkeypatch):
    monkeypatch.setattr(test_fit_unread, "dropping", masking)
    monkeypatch.setattr(test_fit_unread, "last", last)
    test_fit_unread.test_a_program_that_looks_sees_numbers(looks)


def test_what_trains_from_some_step_on_is_made_again(monkeypatch):
    monkeypatch.setattr(test_fit_unread, "dropping", masking)
    test_fit_unread.test_what_trains_from_some_step_on_is_not_dropped()


def test_wrong_bits_are_found(monkeypatch):
    """The tests above can fail."""
    tensor = masks.Mask.tensor
    monkeypatch.setattr(masks.Mask, "tensor", lambda mask: 1 - tensor(mask))
    model, x = make("resnet")
    other = masking(model, x)
    assert not equal(step(model, x), step(other, x))
    assert last(other).counts.masked > 0
