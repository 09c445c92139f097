"""Uses of a fitted model in programs: retained graphs, two graphs at once, in-place writes, exceptions."""

import contextlib
import copy
import gc

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Residual, Resnet, Vae, Vit, image, resnet
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
from tightfit._budget.record.rehearse import CannotRehearse, rehearse
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_a_retained_graph_runs_twice(link):
    model, x = resnet()
    fitted = fitted_copy(model, x)
    found = []
    for net in (model, fitted):
        loss = default_loss(net, x)
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(gradients(net))
    assert equal(*found)
    assert last_plan(fitted).counts.out_of_order == 0


def test_double_backward(link):
    model, x = Vae().train(), image(1, 16)
    fitted = fitted_copy(model, x)
    found = []
    for net in (model, fitted):
        inputs = x.clone().requires_grad_()
        loss = default_loss(net, inputs)
        (penalty,) = torch.autograd.grad(loss, inputs, create_graph=True)
        penalty.square().sum().backward()
        found.append(gradients(net))
    assert equal(*found)


def test_two_graphs_of_one_model_at_once(link):
    """As a discriminator sees real and generated samples before either backward pass."""
    model, x = resnet()
    fitted = fitted_copy(model, x, 0.7)
    found = []
    for net in (model, fitted):
        torch.manual_seed(5)
        first, second = net(x), net(x * 2)
        (first.square().mean() + second.square().mean()).backward()
        again = net(x)
        del first, second
        again.square().mean().backward()
        found.append(gradients(net))
    assert equal(*found)
    if link == FAST:
        fresh = sum(plan.counts.fresh_bytes for plan in session_of(fitted).plans.values())
        assert fresh > 0, "two graphs cannot share one arena"


def test_a_discriminator_and_a_generator(link):
    """Two models, two optimizers; each graph runs through both."""

    def run(make):
        torch.manual_seed(3)
        generator, discriminator = make(nn.Sequential(Vae(), nn.Tanh()), image(2, 16)), make(Resnet(blocks=2), image(2))
        generator_steps, discriminator_steps = sgd(generator), sgd(discriminator)
        found = []
        for _ in range(2):
            fake = generator(image(2, 16))
            discriminator_steps.zero_grad()
            loss = discriminator(fake.detach()).square().mean() + (discriminator(image(2)) - 1).square().mean()
            loss.backward()
            discriminator_steps.step()
            generator_steps.zero_grad()
            (discriminator(fake) - 1).square().mean().backward()
            generator_steps.step()
            found.append(gradients(generator))
        return [value for step in found for value in step]

    def fit(model, x):
        model.train()
        tt.fit(model, int(tight_budget(model, x, 0.6) * 1.1), optimizer=sgd(model))
        return model

    assert equal(run(lambda model, x: model.train()), run(fit))


class WritesAfterwards(nn.Module):
    """Changes a map in place after autograd saved it, where that is an error."""

    def __init__(self, which):
        super().__init__()
        self.which = which
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Sigmoid(), nn.Conv2d(16, 16, 3, padding=1), nn.Sigmoid())

    def forward(self, x):
        maps = [x]
        for layer in self.body:
            maps.append(layer(maps[-1]))
        if self.which is not None:
            self.changed = maps[self.which]
        return maps[-1]


@pytest.mark.parametrize("which", [1, 2, 3, 4])
def test_an_in_place_write_raises_as_in_plain_pytorch(which, link):
    torch.manual_seed(0)
    model, x = WritesAfterwards(which).train(), image(4)
    fitted = fitted_copy(model, x)
    outcomes = []
    for net in (model, fitted):
        loss = net(x).square().mean()
        with torch.no_grad():
            net.changed.add_(1)
        try:
            loss.backward()
            outcomes.append(None)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            outcomes.append("raised")
        net.changed = None
    if outcomes[0] is None:
        # Plain PyTorch does not save this map. A rerun that reads it may refuse, and must otherwise not use it.
        assert outcomes[1] in (None, "raised")
        if outcomes[1] is None:
            assert equal(gradients(model), gradients(fitted))
    else:
        assert outcomes[1] == "raised"


def test_a_parameter_changed_before_backward_raises_where_a_rerun_reads_it(monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    fitted = fitted_copy(model, x)
    loss = default_loss(fitted, x)
    with torch.no_grad():
        for parameter in fitted.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fails = Resnet(blocks=3), False

    def forward(self, x):
        for place, layer in enumerate(self.body):
            x = layer(x)
            if self.fails and place == 5:
                raise KeyError("in the middle")
        return x


def test_an_exception_in_a_step_leaves_nothing_behind(link):
    torch.manual_seed(1)
    model, x = Fails().train(), image(4)
    fitted = fitted_copy(model, x)
    train(fitted, 1, x)
    fitted.load_state_dict(model.state_dict())
    fitted.fails = True
    for _ in range(3):
        with pytest.raises(KeyError):
            fitted(x)
    fitted.fails = False
    # No hooks are left: what is saved outside the model is not packed.
    a = torch.randn(8, requires_grad=True)
    (a * a).sum().backward()
    assert session_of(fitted).here.stack == []
    model.load_state_dict(fitted.state_dict())
    assert same_bits(train(model, 2, x), train(fitted, 2, x))


def test_a_backward_pass_that_raises_can_be_followed_by_a_step(link):
    model, x = resnet()
    fitted = fitted_copy(model, x)

    def refuse(gradient):
        raise KeyError("in backward")

    loss = default_loss(fitted, x)
    handle = fitted[4].c1.weight.register_hook(refuse)
    with contextlib.suppress(KeyError):
        loss.backward()
    handle.remove()
    del loss
    fitted.load_state_dict(model.state_dict())
    assert same_bits(train(model, 1, x), train(fitted, 1, x))


def test_gradients_accumulate(link):
    model, x = resnet()
    fitted = copy.deepcopy(model)
    tt.fit(fitted, int(tight_budget(model, x, 0.7) * 1.1), optimizer=sgd(fitted))
    for net in (model, fitted):
        for scale in (1, 2, 3):
            (default_loss(net, x * scale) / 3).backward()
    assert equal(gradients(model), gradients(fitted))
    # The first pass has no gradients yet, the others do.
    assert len(session_of(fitted).plans) == 2


def test_evaluation_between_steps_is_left_alone(link):
    model, x = resnet()
    fitted = fitted_copy(model, x)
    for _ in range(2):
        for net in (model, fitted):
            net.train()
            net.zero_grad()
            default_loss(net, x).backward()
        packs = last_plan(fitted).counts.packs
        model.eval(), fitted.eval()
        with torch.no_grad():
            assert torch.equal(model(x), fitted(x))
        assert last_plan(fitted).counts.packs == packs
        assert equal(gradients(model), gradients(fitted))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.reentrant = nn.Conv2d(3, 16, 3, padding=1), reentrant
        self.blocks = nn.ModuleList(Residual(16) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for place, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=self.reentrant) if place % 2 else block(x)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_the_model(reentrant, link):
    torch.manual_seed(1)
    model, x = Checkpointed(reentrant).train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    assert same_bits(train(model, 2, x), train(fitted, 2, x))


class OwnHooks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(3)]])
        self.packed = 0

    def pack(self, tensor):
        self.packed += 1
        return tensor.detach().clone()

    def forward(self, x):
        for place, block in enumerate(self.blocks):
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t) if place == 2 else contextlib.nullcontext():
                x = block(x)
        return x


def test_the_programs_own_hooks_inside_come_first(link):
    torch.manual_seed(1)
    model, x = OwnHooks().train(), image(4)
    fitted = fitted_copy(model, x, 0.7)
    fitted.packed = model.packed = 0
    assert same_bits(train(model, 2, x), train(fitted, 2, x))
    assert fitted.packed == model.packed > 0


def test_hooks_of_the_program_see_each_step_once_and_no_fake_tensor(link, monkeypatch, capfd):
    model, x = resnet()
    fitted = fitted_copy(model, x)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    seen = {model: [], fitted: []}
    for net, maps in seen.items():
        net[4].register_forward_hook(lambda module, inputs, output, maps=maps: maps.append(output.detach().clone()))
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
    assert equal(seen[model], seen[fitted]) and all(type(found) is torch.Tensor for found in seen[fitted])
    assert "has a forward hook of your program on '4', so it is not rehearsed; recording its first step" in capfd.readouterr().err
    assert sum(decided(last_plan(fitted)).values()) > 0


def test_a_fitted_model_is_saved_and_read_as_a_plain_one(tmp_path, monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    fitted = fitted_copy(model, x)
    train(fitted, 1, x)
    train(model, 1, x)
    torch.save(fitted, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=False)
    assert same_bits(train(model, 1, x), train(read, 1, x))
    assert b"tightfit" not in (tmp_path / "model.pt").read_bytes(), "it may be read where tightfit is not"


def hooks_of(module):
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def test_a_copy_of_a_fitted_model_is_a_plain_one(monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    fitted = fitted_copy(model, x, 0.6)
    train(fitted, 1, x)
    assert last_plan(fitted).schedule.noted and sum(len(hooks_of(part)) for part in fitted.modules()) == 2
    passes, copies = session_of(fitted)._passes, [copy.deepcopy(fitted) for _ in range(3)]
    model.load_state_dict(fitted.state_dict())
    assert same_bits(train(model, 1, x), train(copies[0], 1, x)) and session_of(fitted)._passes == passes
    assert not hooks_of(copies[0])
    with pytest.raises(tightfit.BadInput, match="not fitted"):
        session_of(copies[1])
    tt.unfit(copies[1])
    assert not hooks_of(copies[1]) and not copies[1]._forward_hooks_always_called
    tt.fit(copies[2], session_of(fitted).budget, optimizer=sgd(copies[2]))
    assert len(hooks_of(copies[2])) == 2
    copies[2].load_state_dict(fitted.state_dict())
    model.load_state_dict(fitted.state_dict())
    assert same_bits(train(model, 2, x), train(copies[2], 2, x))
    assert session_of(fitted)._passes == passes and last_plan(copies[2]).counts.packs > 0
    tt.unfit(fitted)
    assert not hooks_of(fitted) and torch.jit.script(fitted.eval()) is not None


def test_names_and_state_and_names_are_unchanged():
    model, x = resnet()
    fitted = copy.deepcopy(model)
    assert tt.fit(fitted, "1GiB") is fitted
    assert list(fitted.state_dict()) == list(model.state_dict())
    with pytest.raises(tightfit.BadInput, match="fitted already"):
        tt.fit(fitted, "1GiB")
    twin = copy.deepcopy(fitted)
    assert tt.unfit(fitted) is fitted
    assert not fitted._forward_hooks and not fitted._forward_pre_hooks
    default_loss(twin, x).backward()


def test_random_states_and_buffers_are_as_before_the_rehearsal():
    torch.manual_seed(7)
    model = Vit(dropout=0.2).train()
    x = image(2, 64)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    tt.plan(model, x, budget="1GiB")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_no_memory_grows_over_steps(link):
    model, x = resnet()
    fitted = fitted_copy(model, x)
    train(fitted, 2, x)

    def tensors():
        gc.collect()
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    before, hosts = tensors(), [arena for arena, _ in session_of(fitted).arenas]
    train(fitted, 10, x)
    assert tensors() <= before
    # A plan that only recomputes has none.
    assert all(arena is host for (arena, _), host in zip(session_of(fitted).arenas, hosts, strict=True)) and len(hosts) <= 1
    assert last_plan(fitted).counts.fresh_bytes == 0


class Generates(nn.Module):
    """Yields the map of each layer when it is asked for; with `inside`, by a generator that its forward pass returns."""

    def __init__(self, inside):
        super().__init__()
        self.body, self.inside = Resnet(blocks=2), inside
        if inside:
            self.forward = self.maps

    def layers(self, x):
        for layer in self.body:
            x = layer(x)
            yield x

    def maps(self, x):
        return self.layers(x)

    def forward(self, x):
        yield from self.layers(x)


@pytest.mark.parametrize("inside", [False, True])
def test_a_forward_pass_that_is_a_generator_is_left_alone_with_one_line(inside, monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    torch.manual_seed(1)
    models, x = [Generates(inside).train() for _ in range(2)], image(4)
    model, fitted = models
    fitted.load_state_dict(model.state_dict())
    tt.fit(fitted, "16MiB")
    assert same_bits(*(train(net, 6, x, loss=lambda net, x: list(net(x))[-1].square().mean()) for net in models))
    said = capfd.readouterr().err
    assert said.count("as a generator, which is not planned; its memory is left alone") == 1 and "differently" not in said
    assert torch.autograd._engine_run_backward.__module__.startswith("torch")


class Averaged(nn.Module):
    """Averages outputs of another type: fake tensors refuse that."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        self.average.lerp_(y.detach().mean(0).to(torch.bfloat16), 0.1)
        return y


def test_a_rehearsal_that_fails_logs_no_traceback(caplog):
    with pytest.raises(CannotRehearse, match="dtype"):
        rehearse(Averaged().train(), (torch.randn(4, 8),), {})
    assert not caplog.records


class Forces(nn.Module):
    """Computes gradients inside of its forward pass, as models of molecules do, and goes on with them."""

    def __init__(self):
        super().__init__()
        self.energy, self.rest = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(16), nn.Tanh()), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        x = x.clone().requires_grad_()
        (forces,) = torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)
        for _ in range(4):
            forces = torch.sigmoid(self.rest(forces))
        return forces


@pytest.mark.parametrize("hooked", [False, True], ids=["rehearsed", "recorded"])
def test_gradients_inside_of_the_forward_pass(hooked, link):
    torch.manual_seed(1)
    model, x = Forces().train(), image(4)
    fitted = fitted_copy(model, x, 0.9)
    if hooked:
        for one in (model, fitted):
            one.rest.register_forward_hook(lambda module, args, output: output * 0.5)
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
