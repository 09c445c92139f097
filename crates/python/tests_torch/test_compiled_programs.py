"""Programs that compile several models, scale their losses, or evaluate between steps, within a budget."""

import copy

import pytest
import torch
from fit_models import Resnet, Vae, Vit, image
from fit_support import default_loss, sgd
from tightfit._budget.compiled import held
from torch import nn


pytestmark = pytest.mark.usefixtures("fresh_graphs")


def planned():
    """The plans of all graphs, and how many of them compute anything again that PyTorch would not."""
    found = [plan for one in held.all_held() for plan in one.planned]
    return len(found), sum(not plan.is_plain for plan in found)


def compiled(model, budget="80%"):
    return torch.compile(model, backend="tightfit", options={"budget": budget, "inner": "eager", "optimizer": sgd(model)})


def same(left, right):
    """Whether two models hold the same, to the tolerance of another order of sums."""
    ours, theirs = left.state_dict(), right.state_dict()
    return all(torch.allclose(value, theirs[name], rtol=1e-4, atol=1e-6) for name, value in ours.items())


def adversarial(models, take):
    """Steps of a generator and a discriminator; ``take`` turns a model into the network that is called."""
    optimizers = [sgd(model) for model in models]
    make, judge = map(take, models)
    torch.manual_seed(0)
    for _ in range(3):
        made = make(torch.randn(64, 16, 1, 1))
        optimizers[1].zero_grad()
        (judge(torch.randn(64, 3, 8, 8)).mean() - judge(made.detach()).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judge(made).square().mean().backward()
        optimizers[0].step()


def test_a_generator_and_a_discriminator_share_a_budget():
    torch.manual_seed(1)
    generator = nn.Sequential(nn.ConvTranspose2d(16, 32, 4), nn.BatchNorm2d(32), nn.SiLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())
    discriminator = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(2048, 1))
    models, others = (generator, discriminator), copy.deepcopy((generator, discriminator))
    adversarial(models, lambda model: model)
    adversarial(others, compiled)
    assert all(map(same, models, others))
    count, ours = planned()
    assert count >= 2 and ours, "each model has a plan"


def test_models_that_are_called_in_a_row_share_a_budget():
    torch.manual_seed(1)
    models = Vae(), Vit()
    others, x = copy.deepcopy(models), image(16, 16)

    def steps(models, take):
        first, last = map(take, models)
        optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            default_loss(last, first(x)).backward()
            optimizer.step()

    steps(models, lambda model: model)
    steps(others, compiled)
    assert all(map(same, models, others))
    assert planned()[0] == 2 and planned()[1]


def test_a_scaler_skips_the_step_that_overflows():
    torch.manual_seed(1)
    model, x = Resnet(blocks=2), image(4)
    other = copy.deepcopy(model)
    scales = []

    def steps(model, net):
        optimizer = sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for _ in range(4):
            optimizer.zero_grad()
            loss = 1e3 * default_loss(net, x)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())

    steps(model, model)
    steps(other, compiled(other))
    assert same(model, other) and planned() == (1, 1)
    assert scales[0] == scales[1] < 2.0**127, "a step overflowed"


def test_evaluation_between_steps_is_not_planned_and_changes_nothing():
    torch.manual_seed(1)
    model, x = Resnet(blocks=2), image(4)
    other = copy.deepcopy(model)
    outputs = []

    def steps(model, net):
        optimizer = sgd(model)
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            default_loss(net, x).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                outputs.append(net(x))

    steps(model, model)
    steps(other, compiled(other))
    assert same(model, other) and planned() == (1, 1)
    assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in zip(outputs[:3], outputs[3:], strict=True))


def test_the_last_batch_of_an_epoch_is_smaller():
    torch.manual_seed(1)
    model, x = Resnet(blocks=2), image(8)
    other = copy.deepcopy(model)

    def steps(model, net):
        optimizer = sgd(model)
        for count in (8, 8, 3, 8, 5):
            optimizer.zero_grad()
            default_loss(net, x[:count]).backward()
            optimizer.step()

    steps(model, model)
    steps(other, compiled(other))
    assert same(model, other) and planned()[1]
