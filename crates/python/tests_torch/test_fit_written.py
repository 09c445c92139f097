"""Programs that write in place to tensors that they have used, within a budget: equal to plain, to the bit."""

import contextlib
import weakref
from types import SimpleNamespace

import pytest
import torch
from fit_support import SLOW, equal, fitted_copy, set_link
from test_fit_proven import blocks, compared
from tightfit._budget.api import session_of
from tightfit._budget.eager.offload_all import SafePass
from tightfit._budget.eager.packs import Packs
from tightfit._budget.eager.slots import copy_of
from tightfit._budget.eager.state import State
from tightfit._budget.eager.unpacks import Unpacks
from tightfit._budget.plan.counts import Counts
from torch import nn
from torch.nn import functional as F


def late_buffer(net, x):
    y = torch.sigmoid(net.first(x) + net.shift)
    if net.step >= 3:
        with torch.no_grad():
            net.shift.add_(1.0)
    return y


def replaced_buffer(net, x):
    if net.step >= 3:
        net.shift = net.shift + 1
    return torch.sigmoid(net.first(x) + net.shift)


def late_bias(net, x):
    y = torch.sigmoid(net.first(x))
    if net.step >= 3:
        with torch.no_grad():
            net.first.bias.add_(1.0)
    return y


def noise(net, x):
    return net.middle(net.first(x))


class InGaps(nn.Module):
    """Writes in place to a part of a tensor, whose rows are not next to each other, and saves what it has written."""

    def __init__(self, write):
        super().__init__()
        self.first, self.rest = nn.Conv2d(3, 16, 3, padding=1), blocks(3, 8, 8)
        self.write = write

    def forward(self, x):
        y = torch.cat([self.first(x), self.first(x)], 1)[:, :8]
        y = self.write(y)
        return self.rest(torch.sigmoid(y) * y)


@pytest.mark.parametrize("write", [lambda y: y.add_(0.5), lambda y: F.relu(y, inplace=True), lambda y: F.silu(y, inplace=True)], ids=["add", "relu", "silu"])
def test_what_is_written_in_place_keeps_its_layout(write, link, monkeypatch):
    made, content = [], Unpacks.content

    def looked_at(active, slot):
        is_made = slot.tensor is None and slot.host is None
        tensor = content(active, slot)
        if is_made and slot.place >= 0:
            made.append((tensor.stride(), slot.view[1]))
        return tensor

    monkeypatch.setattr(Unpacks, "content", looked_at)
    torch.manual_seed(0)
    same, fitted = compared(InGaps(write), [torch.randn(8, 3, 20, 20) for _ in range(3)], share=0.5)
    assert all(same)
    if session_of(fitted).last.counts.calls:
        assert made and all(stride == wanted for stride, wanted in made)


class Written(nn.Module):
    """Writes a tensor that it has read, or is read by an operation that has saved it before it is written."""

    def __init__(self, middle):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.register_buffer("shift", torch.zeros(1, 16, 1, 1))
        self.run, self.step, self.middle = middle, 0, nn.Sequential(nn.BatchNorm2d(16, affine=False), nn.RReLU())

    def forward(self, x):
        self.step += 1
        return self.last(self.run(self, x))


@pytest.mark.parametrize("middle", [late_buffer, replaced_buffer, late_bias, noise], ids=lambda middle: middle.__name__)
def test_what_a_program_writes_after_its_use_is_not_read_again(middle, link):
    torch.manual_seed(1)

    def seeded(model, step):
        torch.manual_seed(step)

    same, _ = compared(Written(middle), [torch.randn(4, 3, 32, 32) for _ in range(6)], seeded)
    assert same == [True] * 6


class Evaluated(nn.Module):
    """Batch normalizations that a program evaluates or trains, and layers that save their outputs."""

    def __init__(self, count=4):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3 if at == 0 else 16, 16, 3, padding=1) for at in range(count))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(count))

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = torch.sigmoid(norm(torch.tanh(convolution(x))))
        return x


def evaluated_step(model, x):
    """A backward pass of a graph that was evaluated; since then, a training pass has written its statistics, without new versions."""
    model.norms.eval()
    y = model(x).square().mean()
    model.norms.train()
    model(x * 2)
    model.zero_grad()
    y.backward()
    return [y.detach(), *(parameter.grad for parameter in model.parameters())]


def test_an_evaluated_normalization_runs_again_with_the_statistics_of_its_call(monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(0)
    model, x = Evaluated().train(), torch.randn(4, 3, 24, 24)
    fitted = fitted_copy(model, x, 0.5)
    for _ in range(4):
        assert equal(evaluated_step(model, x), evaluated_step(fitted, x))
    assert session_of(fitted).last.counts.calls


VIEWS = {
    "whole": lambda x: x, "expanded": lambda x: x[:1, :1].expand(4, 6), "transposed": lambda x: x.t(), "with gaps": lambda x: x[:, 1::2],
    "shifted": lambda x: x.flatten()[3:], "overlapping": lambda x: x.flatten().unfold(0, 4, 2), "empty": lambda x: x[:0],
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_copy_has_the_strides_and_the_alignment_of_its_tensor(view):
    tensor = view(torch.randn(4, 6))
    copy = copy_of(tensor)
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride() and not (copy.data_ptr() - tensor.data_ptr()) % 64
    assert not tensor.numel() or copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("offset, copied", [(0, 2), (1, 0)])
def test_tensors_are_copied_together_if_they_begin_their_storage(offset, copied):
    """The copies have the allocator's alignment."""
    tensors = [torch.randn(65)[offset : offset + 64] for _ in range(2)]
    found = SimpleNamespace(schedule=SimpleNamespace(small={id(tensor): weakref.ref(tensor) for tensor in tensors}), copied={})
    Packs._copy_small(found)
    assert len(found.copied) == copied and all(torch.equal(tensor, copy) for tensor, _, copy in found.copied.values())


class Expanded(nn.Module):
    """Layers that read an expanded buffer."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3 if at == 0 else 16, 16, 3, padding=1) for at in range(4))
        self.register_buffer("scale", torch.full((1, 1, 1, 1), 0.5).expand(1, 16, 1, 1))

    def forward(self, x):
        for convolution in self.convolutions:
            x = torch.sigmoid(torch.tanh(convolution(x)) * self.scale)
        return x


def test_a_call_that_reads_an_expanded_buffer_runs_again(monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(0)
    model, x = Expanded().train(), torch.randn(4, 3, 24, 24)
    fitted = fitted_copy(model, x, 0.5)
    for _ in range(3):
        assert equal(gradients(model, x), gradients(fitted, x))
    assert session_of(fitted).last.counts.calls


def gradients(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_what_the_model_holds_is_not_moved_and_writes_without_versions_are_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Linear(256, 256, bias=False))
    model.register_buffer("table", torch.randn(256, 256))
    model[2].weight.requires_grad_(False)
    x = torch.randn(512, 256)

    def run(active):
        saved = set_saved(active) if active is not None else contextlib.nullcontext()
        with saved:
            # In two dimensions, autograd saves the transposed weight.
            y = torch.addmm(x, model(x), model.table.t())
        if active is not None:
            active.seal()
        held = [model[2].weight, model.table]
        for one in held:
            one.data.mul_(2)
        found = torch.autograd.grad(y.square().sum(), [model[0].weight])[0]
        for one in held:
            one.data.div_(2)
        return found

    plain, active = run(None), SafePass(None, Counts())
    active.state = State(model)
    assert torch.equal(run(active), plain)
    # The input, and the output of the activation.
    assert active.counts.fetched == 2
    without = SafePass(None, Counts())
    assert not torch.equal(run(without), plain)
    assert without.counts.fetched == 4


def set_saved(active):
    return torch.autograd.graph.saved_tensors_hooks(active.pack, active.unpack)
