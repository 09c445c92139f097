"""`torch.compile(model, backend="tightfit")`: gradients, what is saved, the peak, and what is refused."""

import copy
import re
import shutil

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tightfit
from fit_models import Dense, Efficient, Mobile, Resnet, Vae, Vit, image
from fit_support import LiveBytes, default_loss, sgd, train
from tightfit._fit import aot, backend
from tightfit._fit.partition import plan_joint

MODELS = {
    "resnet": lambda: (Resnet(blocks=3), image(4)),
    "dense": lambda: (Dense(), image(4)),
    "efficient": lambda: (Efficient(), image(4)),
    "mobile": lambda: (Mobile(), image(4)),
    "vae": lambda: (Vae(), image(2, 16)),
    "vit": lambda: (Vit(), image(4)),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def plans(monkeypatch):
    """Plans as they are made; ``of.share`` sets the share of what the step needs beside what is resident."""

    class Plans(list):
        """Those that were made, and what makes them."""

        of = None

    found = Plans()

    def plan(joint, budget, optimizer=None):
        if plan.share is not None:
            plain = plan_joint(joint, 1 << 40, optimizer)
            resident = resident_bytes(plain)
            budget = int(resident + (plain.decided.plain.peak - resident) * plan.share)
        found.append(plan_joint(joint, budget, optimizer))
        return found[-1]

    plan.share = None
    found.of = plan
    monkeypatch.setattr(backend, "plan_joint", plan)
    return found


def resident_bytes(plan):
    return sum(size for size, resident in zip(plan.lives.bytes, plan.lives.resident, strict=True) if resident)


def made(name):
    torch.manual_seed(1)
    model, x = MODELS[name]()
    return model.train(), x


def compiled(model, budget="1GiB", **options):
    return torch.compile(model, backend="tightfit", options={"budget": budget, "inner": "eager", **options})


def gradients_of(net, take):
    """Gradients of one step: ``take`` runs the passes of a network."""
    net.zero_grad()
    take(net)
    return [[p.grad.clone() for p in net.parameters()]]


def close(left, right):
    """Gradients of several steps, to the tolerance of another order of sums."""
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for step, other in zip(left, right, strict=True) for a, b in zip(step, other, strict=True)
    )


# The least that a ViT of this size can do with is more.
SHARES = [(name, share) for name in MODELS for share in (None, 0.75, 0.6) if (name, share) != ("vit", 0.6)]


@pytest.mark.parametrize(("name", "share"), SHARES)
def test_gradients_and_statistics_are_those_of_the_plain_model(name, share, plans):
    model, x = made(name)
    other = copy.deepcopy(model)
    plans.of.share = share
    expected, state, _ = train(model, 3, x)
    gradients, of_other, _ = train(compiled(other), 3, x)
    assert close(expected, gradients)
    assert close([state], [of_other])
    (plan,) = plans
    assert bool(plan.again) == (share is not None)
    assert plan.decided.outcome.peak <= plan.budget


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_the_step_saves_and_needs_what_was_planned(name, share, plans, monkeypatch):
    model, x = made(name)
    plans.of.share = share
    known = [x, *model.parameters(), *model.buffers()]
    counter = LiveBytes(known)
    boxed = aot._boxed

    def counted(graph, inputs):
        run = boxed(graph, inputs)

        def counting(arguments):
            with counter:
                return run(arguments)

        counting._boxed_call = True
        return counting

    monkeypatch.setattr(aot, "_boxed", counted)
    there = {tensor.untyped_storage()._cdata for tensor in known}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in there:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    net = compiled(model)
    default_loss(net, x).backward()
    model.zero_grad()
    counter.live = counter.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = net(x)
    outputs.float().square().mean().backward()
    (plan,) = plans
    assert 0 < sum(saved.values()) <= plan.saved_bytes
    predicted = plan.decided.outcome.peak - resident_bytes(plan)
    assert 0.97 * predicted <= counter.peak <= 1.002 * predicted, (counter.peak, predicted)


def test_dropout_is_not_drawn_again(plans):
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.5)) for _ in range(4)]
    model, x = nn.Sequential(*layers).train(), torch.randn(256, 64)
    other = copy.deepcopy(model)
    expected, _, _ = train(torch.compile(model, backend="aot_eager"), 3, x)
    torch._dynamo.reset()
    plans.of.share = 0.75
    gradients, _, _ = train(compiled(other), 3, x)
    assert close(expected, gradients)
    (plan,) = plans
    assert plan.again
    rerun = {
        plan.lives.operations[index]["name"] for entries in plan.again.values() for entry in entries for index in entry["operations"]
    }
    assert rerun and "aten.native_dropout" not in rerun


def test_two_forward_passes_before_a_backward_pass(plans):
    """Statistics of batch norm change between them; reruns read none."""
    model, x = made("resnet")
    other = copy.deepcopy(model)
    plans.of.share = 0.7

    def take(net):
        first, second = net(x), net(x * 2)
        (first.square().mean() + second.square().mean()).backward()

    assert close(gradients_of(model, take), gradients_of(compiled(other), take))
    assert plans[0].again


def test_a_retained_graph_runs_twice(plans):
    model, x = made("vae")
    other = copy.deepcopy(model)
    plans.of.share = 0.7

    def take(net):
        loss = default_loss(net, x)
        loss.backward(retain_graph=True)
        loss.backward()

    assert close(gradients_of(model, take), gradients_of(compiled(other), take))
    assert plans[0].again


def test_autocast(plans):
    model, x = made("resnet")
    other = copy.deepcopy(model)
    plans.of.share = 0.7

    def take(net):
        with torch.autocast("cpu", torch.bfloat16):
            loss = default_loss(net, x)
        loss.backward()

    expected = gradients_of(torch.compile(model, backend="aot_eager"), take)
    torch._dynamo.reset()
    assert close(expected, gradients_of(compiled(other), take))
    assert plans[0].again


def test_graph_breaks_and_checkpoints(plans):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Vae(), Vae()

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return checkpoint(self.second, x, use_reentrant=False)

    torch.manual_seed(1)
    model, x = Broken(), image(2, 16)
    other = copy.deepcopy(model)
    plans.of.share = 0.8
    expected, _, _ = train(model, 2, x)
    gradients, _, _ = train(compiled(other), 2, x)
    assert close(expected, gradients)
    assert len(plans) == 2 and plans[0].again


def test_other_sizes_are_compiled_again_or_with_symbolic_sizes(plans):
    model, _ = made("resnet")
    other = copy.deepcopy(model)
    plans.of.share = 0.75
    net = compiled(other)
    for batch in (4, 6, 8):
        x = image(batch)

        def take(net, x=x):
            default_loss(net, x).backward()

        assert close(gradients_of(model, take), gradients_of(net, take))
    assert len(plans) >= 2 and all(plan.again for plan in plans)


def test_without_gradients_nothing_is_planned(plans):
    model, x = made("vae")
    with torch.no_grad():
        assert torch.allclose(compiled(model)(x), model(x), atol=1e-6)
    assert not plans


def test_a_budget_that_cannot_be_met_is_refused_with_the_least_one(plans):
    model, x = made("resnet")
    with pytest.raises(Exception, match="least budget found") as raised:
        default_loss(compiled(model, "1MiB"), x)
    error = raised.value.inner_exception
    assert isinstance(error, tightfit.DoesNotFit) and error.limit_bytes == 1 << 20
    assert re.search(r"Memory peaks in the (forward|backward) pass, at \w+ in \d", str(error)), error
    torch._dynamo.reset()
    default_loss(compiled(model, error.needed_bytes, optimizer=None), x).backward()
    assert plans[-1].decided.outcome.peak <= error.needed_bytes


def test_the_optimizer_counts(plans):
    model, x = made("vae")
    for optimizer in (None, sgd(model), torch.optim.SGD(model.parameters(), lr=0.1)):
        torch._dynamo.reset()
        default_loss(compiled(model, optimizer=optimizer), x)
    first, second, third = (plan.decided.plain.peak for plan in plans)
    assert first > second > third


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU")
def test_inductor_saves_no_more_maps_than_planned(plans):
    model, x = made("vae")
    other = copy.deepcopy(model)
    default_loss(model, x).backward()
    plans.of.share = 0.75
    there = {tensor.untyped_storage()._cdata for tensor in (x, *other.parameters())}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in there:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = compiled(other, inner="inductor")(x)
    outputs.square().mean().backward()
    (plan,) = plans
    # It also saves weights and inputs in layouts of its own.
    copies = sum(tensor.untyped_storage().nbytes() for tensor in (x, *other.parameters()))
    assert plan.again and sum(saved.values()) <= plan.saved_bytes + copies
    assert close([[p.grad for p in model.parameters()]], [[p.grad for p in other.parameters()]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "budget"), ({"budget": "8 parsecs"}, "parsecs"), ({"budget": "1GiB", "inner": "gcc"}, "gcc"),
        ({"budget": "1GiB", "memory_budget": 1}, "memory_budget"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options, message):
    with pytest.raises(Exception, match=message) as raised:
        torch.compile(nn.Linear(2, 2), backend="tightfit", options=options)(torch.ones(1, 2))
    assert isinstance(raised.value.inner_exception, tightfit.BadInput)


def test_a_version_that_lacks_what_is_needed_is_named(monkeypatch):
    from torch._functorch import partitioners

    monkeypatch.delattr(partitioners, "_extract_fwd_bwd_modules")
    with pytest.raises(aot.Lacking, match=re.escape(torch.__version__)):
        aot.split(torch.fx.symbolic_trace(nn.Identity()), 1, [])
