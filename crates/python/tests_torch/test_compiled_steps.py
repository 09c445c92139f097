"""`torch.compile(model, backend="tightfit")` with graphs that run as they are: gradients, the peak, refusals, and habits of programs."""

import copy
import gc
import re

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Dense, Efficient, Mobile, Resnet, Vae, Vit, image
from fit_support import DeviceBytes, default_loss, run_graphs_under, sgd, train
from tightfit._budget.compiled import held, plan, private
from torch import nn
from torch.utils.checkpoint import checkpoint

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
def plans(monkeypatch, fresh_graphs):
    """Plans as they are made; ``share`` sets the share of the bytes that the step adds."""

    class Plans(list):
        """The plans, each with its terms."""

        share = None
        only_first = False

    found = Plans()
    own = plan.Plan.divide

    def divide(self, module, inputs, **others):
        if found.share is not None and not (found.only_first and found):
            plain = plan.Plan(plan.Terms(1 << 40, self.terms.outside), self.inner, self.rates, self.kernels)
            own(plain, torch.fx.GraphModule(module, copy.deepcopy(module.graph)), inputs, **others)
            self.terms.budget = int(self.terms.outside + (plain.planned.peak - self.terms.outside) * found.share)
        graphs = own(self, module, inputs, **others)
        found.append(self)
        return graphs

    monkeypatch.setattr(plan.Plan, "divide", divide)
    return found


def again(made):
    """Whether anything is computed again that PyTorch would not."""
    return not made.planned.is_plain


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


SHARES = [(name, share) for name in MODELS for share in (None, 0.85, 0.7)]


@pytest.mark.parametrize(("name", "share"), SHARES)
def test_gradients_and_statistics_are_those_of_the_plain_model(name, share, plans):
    model, x = made(name)
    other = copy.deepcopy(model)
    plans.share = share
    expected, state, _ = train(model, 3, x)
    gradients, of_other, _ = train(compiled(other), 3, x)
    assert close(expected, gradients)
    assert close([state], [of_other])
    (one,) = plans
    assert again(one) == (share is not None)
    assert one.planned.peak <= one.terms.budget


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [None, 0.75])
def test_the_step_needs_what_was_planned(name, share, plans, monkeypatch):
    model, x = made(name)
    plans.share = share
    counter = DeviceBytes([x, *model.parameters(), *model.buffers()])
    run_graphs_under(counter, monkeypatch)
    net = compiled(model)
    default_loss(net, x).backward()
    model.zero_grad()
    counter.live = counter.peak = 0
    default_loss(net, x).backward()
    (one,) = plans
    # Outside of the graph there is a loss.
    predicted = one.chooser.peak(one.choice.division)
    assert counter.peak <= 1.02 * predicted, (counter.peak, predicted)
    assert counter.peak >= 0.7 * predicted, (counter.peak, predicted)


def dropout():
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.5)) for _ in range(4)]
    return nn.Sequential(*layers).train(), torch.randn(256, 64)


def test_dropout_is_not_drawn_again(plans):
    model, x = dropout()
    other = copy.deepcopy(model)
    expected, _, _ = train(torch.compile(model, backend="aot_eager"), 3, x)
    torch._dynamo.reset()
    plans.share = 0.75
    gradients, _, _ = train(compiled(other), 3, x)
    assert close(expected, gradients)
    assert again(plans[0])


def test_two_forward_passes_before_a_backward_pass(plans):
    """Statistics of batch norm change between them; reruns read none."""
    model, x = made("resnet")
    other = copy.deepcopy(model)
    plans.share = 0.7

    def take(net):
        first, second = net(x), net(x * 2)
        (first.square().mean() + second.square().mean()).backward()

    assert close(gradients_of(model, take), gradients_of(compiled(other), take))
    assert again(plans[0])


def test_a_retained_graph_runs_twice(plans):
    model, x = made("vae")
    other = copy.deepcopy(model)
    plans.share = 0.7

    def take(net):
        loss = default_loss(net, x)
        loss.backward(retain_graph=True)
        loss.backward()

    assert close(gradients_of(model, take), gradients_of(compiled(other), take))
    assert again(plans[0])


def test_autocast(plans):
    model, x = made("resnet")
    other = copy.deepcopy(model)
    plans.share = 0.7

    def take(net):
        with torch.autocast("cpu", torch.bfloat16):
            loss = default_loss(net, x)
        loss.backward()

    expected = gradients_of(torch.compile(model, backend="aot_eager"), take)
    torch._dynamo.reset()
    assert close(expected, gradients_of(compiled(other), take))
    assert again(plans[0])


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
    # The checkpoint is as small as it gets.
    plans.share, plans.only_first = 0.8, True
    expected, _, _ = train(model, 2, x)
    gradients, _, _ = train(compiled(other), 2, x)
    assert close(expected, gradients)
    assert len(plans) == 2 and again(plans[0])


def test_other_sizes_are_compiled_again_or_with_symbolic_sizes(plans):
    model, _ = made("resnet")
    other = copy.deepcopy(model)
    plans.share = 0.75
    net = compiled(other)
    for batch in (4, 6, 8):
        x = image(batch)

        def take(net, x=x):
            default_loss(net, x).backward()

        assert close(gradients_of(model, take), gradients_of(net, take))
    assert len(plans) >= 2 and all(map(again, plans))


def test_without_gradients_nothing_is_planned(plans):
    model, x = made("vae")
    with torch.no_grad():
        assert torch.allclose(compiled(model)(x), model(x), atol=1e-6)
    assert not plans


def test_a_budget_that_cannot_be_met_is_refused_with_the_least_one(plans):
    model, x = made("resnet")
    with pytest.raises(Exception, match="it needs at least") as raised:
        default_loss(compiled(model, "1MiB"), x)
    error = raised.value.inner_exception
    assert isinstance(error, tightfit.DoesNotFit) and error.limit_bytes == 1 << 20
    assert re.search(r"Memory peaks in the (forward|backward) pass, at \w+", str(error)), error
    torch._dynamo.reset()
    # Rounded up, like the memory outside of the graph.
    needed = int(error.needed_bytes * 1.01)
    default_loss(compiled(model, needed), x).backward()
    assert plans[-1].planned.peak <= needed


def test_the_optimizer_counts(plans):
    model, x = made("vae")
    for make in (lambda: None, lambda: sgd(model), lambda: torch.optim.SGD(model.parameters(), lr=0.1)):
        torch._dynamo.reset()
        default_loss(compiled(model, "4MiB", optimizer=make()), x)
        gc.collect()
    first, second, third = (one.planned.peak for one in plans)
    assert first > second > third


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bugdet": "1GiB"}, "did you mean 'budget' by 'bugdet'"), ({"budget": "8 parsecs"}, "parsecs"), ({"budget": "1GiB", "inner": "gcc"}, "gcc"),
        ({"budget": "1GiB", "memory_budget": 1}, "memory_budget"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options, message):
    with pytest.raises(Exception, match=message) as raised:
        torch.compile(nn.Linear(2, 2), backend="tightfit", options=options)(torch.ones(1, 2))
    assert isinstance(raised.value.inner_exception, tightfit.BadInput)


def test_modes_and_options_of_inductor_are_taken():
    assert private.options_of("max-autotune-no-cudagraphs", {"shape_padding": True})["max_autotune"]
    assert private.options_of(None, {"shape_padding": True}) == {"shape_padding": True}


def test_where_planning_fails_the_graph_is_compiled_as_without_a_budget(plans, monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")

    def fails(*args, **kwargs):
        raise private.Lacking("solve_min_cut")

    monkeypatch.setattr(private, "read", fails)
    model, x = made("vae")
    other = copy.deepcopy(model)
    expected, _, _ = train(model, 2, x)
    gradients, _, _ = train(compiled(other), 2, x)
    assert close(expected, gradients)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tightfit:")]
    assert len(lines) == 1 and torch.__version__ in lines[0] and "without a budget" in lines[0], lines


def test_fit_compiles_a_model_in_place(plans):
    model, x = made("vae")
    other = copy.deepcopy(model)
    expected, _, _ = train(model, 2, x)
    assert tt.fit(other, "1GiB", compile=True) is other
    gradients, _, _ = train(other, 2, x)
    assert close(expected, gradients) and len(plans) == 1


class Swish(torch.autograd.Function):
    """A function of the program."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * s * (1 + x * (1 - s))


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.tanh(Swish.apply((x - x.mean(0)) / (x.std(0) + 0.1))))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)

    def part(self, x):
        return torch.sigmoid(self.norm(x))

    def forward(self, x):
        return torch.tanh(self.last(checkpoint(self.part, self.first(x), use_reentrant=False)))


class Moving(nn.Module):
    """Changes a buffer that its backward pass reads, as vector quantizers with moving averages do."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(16, 32), nn.Linear(32, 32)
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x):
        x = torch.tanh(self.body(x))
        y = torch.sigmoid((x - self.mean) * 2)
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return self.last(torch.tanh(y * x))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 64).requires_grad_(False), nn.Sequential(nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


PROGRAMS = {
    "custom function": (Custom, lambda: torch.randn(64, 16)),
    "checkpoint around batch norm": (Checkpointed, lambda: torch.randn(8, 3, 24, 24)),
    "buffer that changes": (Moving, lambda: torch.randn(64, 16)),
    "frozen part": (Frozen, lambda: torch.randn(64, 16)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("share", [None, 0.85, 0.7, 0.6])
def test_programs_train_as_without_a_budget_or_are_refused(program, share, plans):
    torch.manual_seed(1)
    kind, inputs = PROGRAMS[program]
    model, x = kind(), inputs()
    other = copy.deepcopy(model)
    expected, state, _ = train(torch.compile(model, backend="aot_eager"), 3, x)
    torch._dynamo.reset()
    plans.share = share
    try:
        gradients, of_other, _ = train(compiled(other), 3, x)
    except Exception as error:
        assert share is not None and isinstance(getattr(error, "inner_exception", error), tightfit.DoesNotFit), error
        return
    assert close(expected, gradients) and close([state], [of_other])


def test_gradients_add_up_over_several_passes(plans):
    model, x = made("vae")
    other = copy.deepcopy(model)
    plans.share = 0.75

    def take(net):
        for part in (x, x * 2, x * 3):
            default_loss(net, part).backward()

    assert close(gradients_of(model, take), gradients_of(compiled(other), take))
    assert again(plans[0])


def test_a_float_that_changes_from_call_to_call(plans):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(3 if number == 0 else 16, 16, 3, padding=1) for number in range(4))

        def forward(self, x, scale):
            for conv in self.convs:
                x = nn.functional.silu(conv(x)) * scale
            return x.mean()

    torch.manual_seed(1)
    model = Scaled()
    other, x = copy.deepcopy(model), image(8)
    plans.share = 0.8

    def take(net):
        for number in range(3):
            net(x, 1 + 0.1 * number).backward()

    assert close(gradients_of(model, take), gradients_of(compiled(other), take))
    assert len(plans) == 2


@pytest.mark.parametrize(("beside", "lines"), [(1 << 18, 1), (0, 0)])
def test_a_step_over_its_budget_is_compiled_once_more_with_what_was_seen(beside, lines, plans, monkeypatch, capfd):
    """The program holds more outside of the graph than was known when it was compiled."""
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    monkeypatch.setattr(held.Held, "on_gpu", True)
    # Bytes that exist from the first step on, such as the optimizer's state, are counted once.
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 << 18 if plans else 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: plans[-1].planned.peak + (beside if len(plans) == 1 else 0))
    monkeypatch.setattr(held, "_LIBRARIES", 0)
    model, x = made("vae")
    other = copy.deepcopy(model)
    whole = compiled(copy.deepcopy(model), "4MiB", optimizer=sgd(model))
    default_loss(whole, x).backward()
    budget = plans[-1].planned.peak
    plans.clear()
    torch._dynamo.reset()
    capfd.readouterr()
    expected, _, _ = train(model, 6, x)
    gradients, _, _ = train(compiled(other, budget + (1 << 17), optimizer=sgd(other)), 6, x)
    assert close(expected, gradients)
    told = capfd.readouterr().err
    assert told.count("compiled once more") == lines and len(plans) == 1 + lines, told
    # Rounded up, as the keys of caches have it.
    assert plans[-1].terms.outside == pytest.approx(plans[0].terms.outside + (beside if lines else 0), abs=(budget >> 8))
    # A second process asks PyTorch's caches for the graphs of the last plan.
    last = plans[-1].identity
    plans.clear()
    monkeypatch.setattr(held, "_held", {})
    torch._dynamo.reset()
    compiled(other, budget + (1 << 17), optimizer=sgd(other))(x)
    assert plans[-1].identity == last


def test_a_program_may_reset_the_statistics_within_a_step(plans, monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    now = [0]
    for name, value in {"is_initialized": True, "device_count": 1, "memory_allocated": 0, "mem_get_info": (1 << 30, 1 << 30)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: now[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: now.__setitem__(0, 0))
    monkeypatch.setattr(held, "_LIBRARIES", 0)
    monkeypatch.setattr(held.Held, "on_gpu", True)
    held._peaks.cache_clear()
    model, x = made("vae")
    net = compiled(model, "80%", optimizer=sgd(model))
    for _ in range(5):
        default_loss(net, x).backward()
        now[0] = plans[-1].planned.peak
        torch.cuda.reset_peak_memory_stats()
    assert again(plans[0])
    held._peaks.cache_clear()
    assert len(plans) == 1, capfd.readouterr().err
