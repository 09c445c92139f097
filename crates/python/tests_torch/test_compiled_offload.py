"""Compiled graphs that offload saved values, with graphs that run as they are: gradients, the peak, the least budget, and inference."""

import copy
import re
from collections import Counter

import pytest
import tightfit
import torch
from fit_support import DeviceBytes, LiveBytes, default_loss, run_graphs_under, train
from tightfit._budget.compiled import held, operators
from tightfit._budget.compiled.backend import tightfit as backend
from torch import nn


pytestmark = pytest.mark.usefixtures("fresh_graphs")


class Layers(nn.Module):
    """Layers whose results feed a later layer too, as in a U-Net."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.up = nn.ModuleList(nn.Linear(64, 32) for _ in range(5))

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = nn.functional.silu(layer(x))
            kept.append(x)
        for layer in self.up:
            x = nn.functional.silu(layer(torch.cat([x, kept.pop()], 1)))
        return x


def made():
    torch.manual_seed(1)
    return Layers(), torch.randn(512, 32)


def compiled(model, budget, **options):
    torch._dynamo.reset()
    held._held.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.compile(model, backend=backend, options={"budget": budget, "inner": "eager", "optimizer": optimizer, **options})


def the_plan():
    (found,) = (graph.plan for one in held.all_held() for graph in one.graphs.values())
    return found


def needs(model, x, offloads=True):
    """The bytes outside of the graph, with PyTorch's division in addition, and with the smallest division found in addition."""
    net = compiled(copy.deepcopy(model), "8MiB")
    default_loss(net, x)
    made = the_plan()
    plain = made.planned.plain
    with pytest.raises(Exception, match="it needs at least") as raised:
        default_loss(compiled(copy.deepcopy(model), made.terms.outside + 1, offload=offloads), x)
    return made.terms.outside, plain, raised.value.inner_exception.needed_bytes


def close(left, right):
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for step, other in zip(left, right, strict=True) for a, b in zip(step, other, strict=True))


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of each operator."""
    found = Counter()

    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == operators.NAMESPACE:
                found[function._opname] += 1
            return function(*args, **(kwargs or {}))

    run_graphs_under(Counts(), monkeypatch)
    return found


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_gradients_are_those_of_the_plain_model_and_every_copy_is_waited_for(share, calls):
    model, x = made()
    outside, plain, _ = needs(model, x)
    other = copy.deepcopy(model)
    expected, state, _ = train(model, 3, x)
    calls.clear()
    gradients, of_other, _ = train(compiled(other, int(outside + share * (plain - outside))), 3, x)
    assert close(expected, gradients) and close([state], [of_other])
    planned = the_plan().planned
    assert planned.moved and planned.peak <= the_plan().terms.budget
    assert calls == dict.fromkeys(("offload", "release", "prefetch", "wait"), 3 * len(planned.moved))


def test_budgets_below_the_reach_of_recomputing_run():
    model, x = made()
    outside, plain, least_by_recomputing = needs(model, x, offloads=False)
    _, _, least = needs(model, x)
    assert least < 0.9 * least_by_recomputing
    other = copy.deepcopy(model)
    expected, _, _ = train(model, 2, x)
    gradients, _, _ = train(compiled(other, int(1.01 * least)), 2, x)
    assert close(expected, gradients)
    assert the_plan().planned.moved and the_plan().planned.peak <= int(1.01 * least) < least_by_recomputing


def test_a_budget_below_the_least_is_refused_with_the_operation():
    model, x = made()
    _, _, least = needs(model, x)
    with pytest.raises(Exception, match="it needs at least") as raised:
        default_loss(compiled(model, int(0.9 * least)), x)
    error = raised.value.inner_exception
    assert isinstance(error, tightfit.DoesNotFit)
    assert re.search(r"Memory peaks in the (forward|backward) pass, at \w+", str(error)), error


@pytest.mark.parametrize("share", [0.85, 0.65])
def test_the_step_needs_what_was_planned(share, monkeypatch):
    model, x = made()
    outside, plain, _ = needs(model, x)

    counter = DeviceBytes([x, *model.parameters()])
    run_graphs_under(counter, monkeypatch)
    default_loss(compiled(model, int(outside + share * (plain - outside))), x).backward()
    made_plan = the_plan()
    assert made_plan.planned.moved
    predicted = made_plan.chooser.peak(made_plan.choice.division)
    assert 0.7 * predicted <= counter.peak <= 1.02 * predicted, (counter.peak, predicted)


@pytest.mark.parametrize("way", ["two forward passes", "a retained graph"])
def test_passes_that_overlap_have_host_memory_of_their_own(way):
    model, x = made()
    outside, plain, _ = needs(model, x)
    other = copy.deepcopy(model)

    def take(net):
        net.zero_grad()
        if way == "two forward passes":
            first, second = net(x), net(2 * x)
            (first.square().mean() + second.square().mean()).backward()
        else:
            loss = default_loss(net, x)
            loss.backward(retain_graph=True)
            loss.backward()
        return [[p.grad.clone() for p in net.parameters()]]

    net = compiled(other, int(outside + 0.7 * (plain - outside)))
    assert close(take(model), take(net))
    assert the_plan().planned.moved


def test_the_layout_of_a_value_is_kept():
    """One copy moves values with gaps between their elements, and with dimensions in any order."""
    for x in (torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last), torch.randn(6, 8)[:, :5], torch.randn(4, 4).t(), torch.randn(0, 3)):
        host = operators.offload(x)
        back = operators.wait(operators.prefetch(operators.release(host, x), x.device))
        assert back.stride() == x.stride() and torch.equal(back, x) and back.data_ptr() != x.data_ptr() or not x.numel()
        assert torch.library.opcheck(operators.offload, (x,), test_utils=("test_schema", "test_faketensor"))


def test_inference_is_held_to_the_budget_and_refused_with_its_need():
    model, x = made()
    with torch.no_grad():
        expected = model(x)
        assert torch.allclose(compiled(model, "8MiB")(x), expected, atol=1e-6)
        with pytest.raises(Exception, match="without gradients does not fit") as raised:
            compiled(model, "64KiB")(x)
        needed = raised.value.inner_exception.needed_bytes
        assert torch.allclose(compiled(model, int(1.01 * needed))(x), expected, atol=1e-6)
        with pytest.raises(Exception, match="without gradients does not fit"):
            compiled(model, int(0.9 * needed))(x)
    counter = LiveBytes([x, *model.parameters()])
    with torch.no_grad(), counter:
        compiled(model, "8MiB")(x)
    weights = sum(p.nbytes for p in model.parameters()) + x.nbytes
    assert counter.peak == pytest.approx(needed - weights, rel=0.15)
