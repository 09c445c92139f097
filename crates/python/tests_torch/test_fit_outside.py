"""A call that runs again has the settings of its first run, and the bytes that its tensors had then."""

import contextlib
import copy
import functools

import pytest
import tightfit.torch as tt
import torch
from changing_outside import SETTINGS, Scaled, ScaledInside
from fit_support import SLOW, equal, fitted_copy, set_link
from tightfit._budget.api import session_of
from torch import nn
from torch.nn.utils import parametrize


class Layers(nn.Module):
    """Layers that save their outputs; `change` is called between them."""

    def __init__(self, change=lambda net: None, settings=contextlib.nullcontext, width=64):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3 if at == 0 else width, width, 3, padding=1) for at in range(4))
        self.shift, self.other = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))
        self.change, self.settings = change, settings

    def forward(self, x):
        with self.settings():
            for convolution in self.convolutions:
                x = torch.tanh(convolution(x))
                x = torch.sigmoid(x.movedim(1, -1) + self.shift).movedim(-1, 1)
                x = torch.sigmoid(x.movedim(1, -1) + self.other).movedim(-1, 1)
                self.change(self)
            return x


def compared(model, inputs):
    """Whether each step of a model that recomputes has plain's bits."""
    fitted, same = fitted_copy(model, inputs[0], 0.5), []
    for x in inputs:
        sides = []
        for one in (model, fitted):
            one.zero_grad()
            one(x).square().mean().backward()
            sides.append([*(parameter.grad for parameter in one.parameters() if parameter.grad is not None), *one.parameters()])
        same.append(equal(*sides))
    assert session_of(fitted).last.counts.calls
    return same


@pytest.fixture(autouse=True)
def recomputes(monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(0)


def test_settings_are_those_of_the_call():
    assert all(compared(Layers(settings=SETTINGS["without mkldnn"], width=16), [torch.randn(2, 3, 16, 16) for _ in range(3)]))


def test_settings_of_the_program_stay_as_they_are():
    """Reruns in a backward pass with other settings than the forward pass."""
    model, x = Layers(), torch.randn(2, 3, 16, 16)
    fitted = fitted_copy(model, x, 0.5)
    loss = fitted(x).square().mean()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        loss.backward()
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert session_of(fitted).last.counts.calls


@pytest.mark.parametrize("mode", [Scaled, ScaledInside])
@pytest.mark.parametrize("where", ["forward", "inside", "backward", "both"])
def test_modes_of_the_program_change_what_calls_give(mode, where):
    """A rerun runs without modes, so calls under modes are not run again. The first step is planned without them."""
    model, x = Layers(settings=mode if where == "inside" else contextlib.nullcontext), torch.randn(2, 3, 16, 16)
    fitted = fitted_copy(model, x, 0.5)
    for one in (model, fitted):
        one(x).square().mean().backward()
        one.zero_grad()
        with mode() if where in ("forward", "both") else contextlib.nullcontext():
            loss = one(x).square().mean()
        with mode() if where in ("backward", "both") else contextlib.nullcontext():
            loss.backward()
    assert equal(*([parameter.grad for parameter in one.parameters()] for one in (model, fitted)))


def test_precisions_may_be_set_by_the_newer_interface():
    matrices = torch.backends.cuda.matmul
    matrices.fp32_precision = "tf32"
    try:
        assert all(compared(Layers(), [torch.randn(2, 3, 16, 16)] * 2))
    finally:
        matrices.fp32_precision = "ieee"


def written(net):
    net.other.data.add_(0.1)


def written_without_gradients(net):
    with torch.no_grad():
        net.other.data.add_(0.1)


def assigned(net):
    net.other.data = net.other.data + 0.1


@pytest.mark.parametrize("change", [written, written_without_gradients, assigned], ids=lambda change: change.__name__)
def test_bytes_written_through_data_are_those_of_the_call(change):
    assert all(compared(Layers(change), [torch.randn(2, 3, 16, 16) for _ in range(3)]))


class Cropped(Layers):
    """Begins a slice at a position in a tensor, which moves on."""

    def forward(self, x):
        for convolution in self.convolutions:
            x = torch.sigmoid(torch.tanh(convolution(x))[:, :, self.place :])
        self.place += 1
        return x


def test_a_position_in_a_tensor_is_that_of_the_call():
    assert all(compared(Cropped(), [torch.randn(2, 3, 24, 16) for _ in range(3)]))


class Inferred(Layers):
    """Reads tensors of inference mode."""

    def forward(self, x):
        with torch.inference_mode():
            frozen = torch.tanh(x.detach()).mean(1, keepdim=True)
        for convolution in self.convolutions:
            x = torch.sigmoid(torch.tanh(convolution(x)) + frozen)
        return super().forward(x[:, :3])


def test_tensors_of_inference_mode_are_read():
    assert all(compared(Inferred(), [torch.randn(2, 3, 16, 16) for _ in range(3)]))


class Turned(nn.Module):
    """Transposed convolutions, whose weights autocast casts inside the call."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.ConvTranspose2d(3 if at == 0 else 16, 16, 3, padding=1) for at in range(4))

    def forward(self, x):
        for convolution in self.convolutions:
            x = torch.sigmoid(torch.tanh(convolution(x)))
        return x


def test_casts_of_autocast_stay_as_long_as_their_context():
    """Weights are updated in a context: PyTorch computes with the casts that it made before. Another plan is made inside."""
    model, x = Turned(), torch.randn(2, 3, 24, 24)
    fitted = fitted_copy(model, x, 0.5)
    found = []
    for one in (model, fitted):
        optimizer = torch.optim.SGD(one.parameters(), 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            for step in range(4):
                optimizer.zero_grad(set_to_none=step != 2)
                one(x).float().square().mean().backward()
                optimizer.step()
                with torch.no_grad():
                    found.append(one(x))
        found.append(torch.cat([parameter.flatten() for parameter in one.parameters()]))
    assert equal(found[:5], found[5:])


def test_a_form_that_is_planned_inside_autocast_leaves_its_casts():
    """Gradients of two calls add up in the one cast of a weight."""
    model, x = Turned(), torch.randn(2, 3, 24, 24)
    fitted = fitted_copy(model, x, 0.5)
    for _ in range(2):
        sides = []
        for one in (model, fitted):
            one.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = one(x).float().square().mean() + one(x[:, :, :16, :16]).float().square().mean()
            loss.backward()
            sides.append([parameter.grad for parameter in one.parameters()])
        assert equal(*sides)


@functools.lru_cache
def table(size):
    return torch.sin(torch.linspace(0.0, 1.0, size)) + torch.ones(size, size).tril_()


class Tabled(Layers):
    """Has a table that is computed once for all models."""

    def forward(self, x):
        return super().forward(x * table(x.shape[3]))


def test_tables_that_a_program_keeps_are_real():
    """A rehearsal is the first to compute one."""
    model, x = Tabled(), torch.randn(2, 3, 16, 16)
    table.cache_clear()
    tt.plan(model, x)
    kept = table(16)
    assert type(kept) is torch.Tensor and table.cache_info().hits
    table.cache_clear()
    assert torch.equal(kept, table(16))
    table.cache_clear()
    assert all(compared(model, [x] * 2))


class Squeezed(nn.Module):
    def forward(self, weight):
        return torch.tanh(weight) * 1.1


def test_parametrizations_may_be_cached():
    model, x = Layers(), torch.randn(2, 3, 16, 16)
    for convolution in model.convolutions:
        parametrize.register_parametrization(convolution, "weight", Squeezed())
    fitted = tt.fit(copy.deepcopy(model), "95%", optimizer=torch.optim.SGD(model.parameters()))
    sides = []
    for one in (model, fitted):
        with parametrize.cached():
            loss = one(x).square().mean() + one(x * 0.5).mean()
        loss.backward()
        sides.append([parameter.grad for parameter in one.parameters()])
    assert equal(*sides)


class Transformed(Layers):
    """Maps a function over its samples, and adds the gradients of another."""

    def forward(self, x):
        x = torch.vmap(lambda sample: torch.sigmoid(sample) * sample.mean())(super().forward(x))
        x = torch.sigmoid(x.movedim(1, -1) + self.shift).movedim(-1, 1)
        return x + torch.func.grad(lambda y: torch.sigmoid(y).square().sum())(x)


def test_transforms_run_inside():
    """They refuse hooks on saved tensors."""
    assert all(compared(Transformed(width=16), [torch.randn(2, 3, 16, 16) for _ in range(3)]))


def test_transforms_refuse_the_hooks_of_the_program():
    fitted = fitted_copy(Transformed(width=16), torch.randn(2, 3, 16, 16), 0.5)
    with torch.autograd.graph.save_on_cpu(), pytest.raises(RuntimeError, match="saved tensor hooks"):
        fitted(torch.randn(2, 3, 16, 16))
    fitted(torch.randn(2, 3, 16, 16)).square().mean().backward()
