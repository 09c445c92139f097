"""Copies that are late, and memory that is reused at once: what would show a missing wait."""

import ctypes

import pytest
import torch
from fit_models import NETWORKS, Resnet, image
from fit_support import FAST, default_loss, fitted_copy, last_plan, same_bits, set_link, train
from tightfit._budget.api import session_of
from tightfit._budget.memory import copies as copying
from tightfit._budget.memory.copies import CpuCopies, CudaCopies, _bytes_of
from torch import nn


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    set_link(monkeypatch, FAST)


class Late(CpuCopies):
    """Side streams as slow as can be: a copy is done when it is waited for, and its target holds poison until then."""

    def __init__(self):
        self.waited = self.started = 0
        self.skip = None

    def arena(self, size):
        return torch.full((size,), 0xA5, dtype=torch.uint8)

    def begin(self):
        pass

    def _later(self, source, target):
        self.started += 1
        target.fill_(0xA5)
        done = []

        def copy():
            if not done:
                done.append(True)
                target.copy_(source)

        return copy

    def out(self, tensor, host):
        return self._later(_bytes_of(tensor), host)

    def into(self, host, device):
        return self._later(host, device)

    def wait(self, ticket):
        self.waited += 1
        if self.waited != self.skip:
            ticket()


@pytest.mark.parametrize("name", ["resnet", "densenet", "vit", "unet"])
def test_late_copies_change_no_bit(name):
    torch.manual_seed(1)
    make, inputs = NETWORKS[name]
    model, x = make().train(), inputs()
    copies = Late()
    fitted = fitted_copy(model, x, 0.6, copies)
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
    assert copies.started > 0
    assert last_plan(fitted).counts.fetched > 0


def test_a_missing_wait_is_seen():
    """The test above can fail: leave one wait out."""
    torch.manual_seed(1)
    make, inputs = NETWORKS["resnet"]
    model, x = make().train(), inputs()
    copies = Late()
    fitted = fitted_copy(model, x, 0.4, copies)
    default_loss(fitted, x).backward()
    expected = [p.grad.clone() for p in fitted.parameters()]
    # The last wait of a step is for a copy into the device.
    copies.skip = 2 * copies.waited
    fitted.zero_grad()
    default_loss(fitted, x).backward()
    assert not all(torch.equal(p.grad, e) for p, e in zip(fitted.parameters(), expected, strict=True))


class Stops(torch.autograd.Function):
    """The identity, whose backward pass may raise."""

    on = False

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        if Stops.on:
            raise KeyError
        return dy


class Stop(nn.Module):
    def forward(self, x):
        return Stops.apply(x)


def test_every_copy_in_is_waited_for_even_if_the_backward_pass_raises():
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    model.insert(6, Stop())
    copies = Late()
    fitted = fitted_copy(model, x, 0.4, copies)
    loss = default_loss(fitted, x)
    Stops.on = True
    stopped = False
    try:
        loss.backward()
    except KeyError:
        stopped = True
    finally:
        Stops.on = False
    del loss
    assert stopped
    assert session_of(fitted).arenas[0][1]() is None, "the pass is gone"
    assert copies.waited == copies.started > 0
    fitted.load_state_dict(model.state_dict())
    fitted.zero_grad()
    assert same_bits(train(model, 1, x), train(fitted, 1, x))


class Queue:
    """A stream that only notes its calls."""

    cuda_stream = 7

    def __init__(self, *_, **__):
        self.told = []

    def wait_stream(self, stream):
        self.told.append(("wait", stream, len(stream.told)))


class Mark:
    """An event: the place in a stream at which it was recorded last."""

    made = 0

    def __init__(self):
        Mark.made += 1
        self.at = None

    def record(self, stream):
        self.at = stream, len(stream.told)

    def wait(self, stream):
        stream.told.append(("wait", self, self.at))


def test_events_are_used_again_once_nobody_waits_for_them(monkeypatch):
    """The copies of a GPU, on streams that only take notes."""
    moved = []

    def move(target, source, size, stream):
        moved.append(stream)
        ctypes.memmove(target, source, size)
        return 0

    monkeypatch.setattr(torch.cuda, "Stream", Queue)
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda index: (0, index, 1), raising=False)
    monkeypatch.setattr(copying, "_driver", lambda: move)
    Mark.made = 0
    copies = CudaCopies(torch.device("cuda"))
    source, target = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    first, second = copies.out(source, target), copies.into(target, source)
    compute = copies.computes[1]
    assert torch.equal(source, target) and moved == [7, 7] and copies.computes[0] == (0, 0, 1)
    # Each side stream waits for the compute stream, and two copies on their way have an event each.
    assert copies.stream_out.told[0][2][0] is copies.stream_in.told[0][2][0] is compute
    held = first.done
    assert held is not second.done and {held, second.done}.isdisjoint(copies.spare)
    copies.wait(first)
    assert compute.told[-1] == ("wait", held, (copies.stream_out, 1))
    # The second wait does nothing: the event may belong to another copy by then.
    waits = len(compute.told)
    copies.wait(first)
    assert len(compute.told) == waits and copies.spare.count(held) == 1
    copies.wait(second)
    for _ in range(100):
        copies.wait(copies.into(target, source))
    assert Mark.made == 2
