"""Programs whose numbers, views or parameters change from step to step while their shapes do not: gradients are plain's to the bit."""

import copy

import pytest
import tightfit.torch as tt
import torch
from fit_support import SLOW, decided, equal, fitted_copy, gradients, last_plan, set_link
from tightfit._budget.api import session_of
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune


def blocks(count=4, channels=16, inputs=3):
    layers = []
    for block in range(count):
        layers += [nn.Conv2d(channels if block else inputs, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers)


def loss(outputs):
    return outputs.abs().square().mean()


def compared(model, batches, change=lambda model, step: None, share=0.6):
    """Whether a model and its copy under a budget have the same gradients in each step, before which both are changed."""
    fitted = fitted_copy(model, batches[0], share)
    same = []
    for step, inputs in enumerate(batches):
        for each in (model, fitted):
            change(each, step)
            each.zero_grad()
            loss(each(*inputs) if isinstance(inputs, tuple) else each(inputs)).backward()
        same.append(equal(gradients(model), gradients(fitted)))
    return same, fitted


class Numbered(nn.Module):
    """Calls a function with another number in each step, between convolutions."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.first, self.rest, self.other = nn.Conv2d(3, 16, 3, padding=1), blocks(3, 16, 16), nn.Conv2d(3, 16, 3, padding=1)
        self.function, self.layer, self.step = function, layer, 0

    def forward(self, x):
        self.step += 1
        return self.rest(self.function(self, x, self.step))


def kept(self, x):
    return torch.sigmoid(self.first(x))


def crop(self, x, step):
    return self.first(x[:, :, step : step + 32, step : step + 32])


def cut_out(self, x, step):
    made = kept(self, x).clone()
    made[:, :, step : step + 10, step : step + 10].zero_()
    return made


def by_layer(self, x, step):
    self.layer.negative_slope = 0.1 * step
    return self.layer(self.first(x))


def positions(self, x, step):
    return self.first(x) * torch.sin(torch.arange(step, step + 1024, dtype=torch.float32).view(1, 1, 32, 32))


def either(self, x, step):
    one, other = self.first(x), self.other(x)
    return torch.sigmoid(one if step % 2 else other) + 0 * one.mean() + 0 * other.mean()


def halves(self, x, step):
    made = self.first(x)
    return torch.sigmoid(torch.cat([made[:, step : step + 8], made[:, :8]], 1))


def chunks(self, x, step):
    parts = torch.sigmoid(self.first(x)).chunk(2, 1)
    return torch.cat([parts[step % 2], torch.tanh(parts[1 - step % 2])], 1)


def default_slope(self, x, step):
    return F.leaky_relu(self.first(x), 0.01 if step < 3 else 0.3)


def causal(self, x, step):
    made = self.first(x)
    return F.scaled_dot_product_attention(made, torch.sigmoid(made), made, is_causal=step >= 3)


def dropped(self, x, step):
    made = self.first(x)
    return F.scaled_dot_product_attention(made, torch.sigmoid(made), made, dropout_p=0.0 if step < 3 else 1.0)


@pytest.mark.parametrize(
    "function",
    [
        crop,
        lambda self, x, step: torch.roll(kept(self, x), step, 3),
        lambda self, x, step: F.pad(kept(self, x), (step, 8 - step)),
        lambda self, x, step: F.leaky_relu(self.first(x), 0.1 * step),
        lambda self, x, step: F.elu(self.first(x), 0.1 * step),
        lambda self, x, step: torch.tril(kept(self, x), step),
        lambda self, x, step: torch.sigmoid(self.first(x).transpose(2, 3) if step % 2 else self.first(x)),
        lambda self, x, step: torch.sigmoid(F.conv2d(x, (self.first if step % 2 else self.other).weight, padding=1)),
        lambda self, x, step: torch.softmax(self.first(x), 2 + step % 2),
        cut_out,
        default_slope,
        causal,
        dropped,
        by_layer,
        positions,
        either,
        halves,
        chunks,
    ],
    ids=["crop", "roll", "pad", "slope", "alpha", "diagonal", "transpose", "weight", "dim", "cut out", "default slope", "causal",
         "dropped", "layer", "arange", "either", "slice", "chunk"],
)  # fmt: skip
def test_other_numbers_of_the_same_shapes_are_noticed(function, link):
    torch.manual_seed(1)
    size = 40 if function is crop else 32
    same, _ = compared(Numbered(function, nn.LeakyReLU(0.1)), [torch.randn(4, 3, size, size) for _ in range(4)])
    assert same == [True] * 4


def either_of(one, other):
    """A function with one number in the first steps, and another later."""
    return lambda self, x, step: torch.sigmoid((one if step < 3 else other)(torch.tanh(self.first(x))))


def shuffled(groups):
    return lambda x: x.view(4, groups, -1, 32, 32).transpose(1, 2).reshape(4, 16, 32, 32)


def centered(groups):
    def center(x):
        grouped = x.view(4, groups, -1)
        return (grouped - grouped.mean(2, keepdim=True)).view(4, 16, 32, 32)

    return center


def enlarged(corners):
    return lambda x: F.interpolate(x[..., ::2], (32, 32), mode="bilinear", align_corners=corners)


def subtracted(self, x, step):
    return torch.sigmoid(torch.rsub(torch.tanh(self.first(x)), self.other(x), alpha=1 if step < 3 else 2))


def dilated(self, x, step):
    wide = 1 if step < 3 else 2
    return F.conv2d(torch.tanh(self.first(x)), self.rest[0].weight, padding=wide, dilation=wide)


@pytest.mark.parametrize(
    "function",
    [
        either_of(F.gelu, lambda x: F.gelu(x, approximate="tanh")),
        either_of(torch.square, lambda x: x**3),
        either_of(lambda x: x**2, lambda x: x**3),
        either_of(lambda x: torch.addcmul(x, x, x), lambda x: torch.addcmul(x, x, x, value=0.5)),
        either_of(lambda x: x * torch.div(x, x.exp(), rounding_mode="floor"), lambda x: x * torch.div(x, x.exp(), rounding_mode="trunc")),
        either_of(lambda x: F.group_norm(x, 4), lambda x: F.group_norm(x, 2)),
        either_of(lambda x: F.batch_norm(x, None, None, training=True), lambda x: F.batch_norm(x, None, None, training=True, eps=1.0)),
        either_of(lambda x: F.max_pool2d(x, 3, 1, 1), lambda x: F.max_pool2d(x, 5, 1, 2)),
        either_of(lambda x: F.avg_pool2d(x, 3, 1, 1), lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
        either_of(enlarged(False), enlarged(True)),
        either_of(lambda x: F.pad(x, (1, 1, 0, 0), mode="reflect")[..., :32], lambda x: F.pad(x, (2, 0, 0, 0), mode="reflect")[..., :32]),
        either_of(lambda x: x + x.sum(2).unsqueeze(3), lambda x: x + x.sum(3).unsqueeze(3)),
        either_of(lambda x: torch.stack(x.chunk(2, 1), 2).view_as(x), lambda x: torch.stack(x.chunk(2, 1), 1).view_as(x)),
        either_of(shuffled(4), shuffled(2)),
        either_of(centered(4), centered(2)),
        subtracted,
        dilated,
    ],
    ids=["gelu", "square", "exponent", "value", "rounding", "groups", "epsilon", "maximum", "average", "corners", "padding", "sum",
         "stack", "shuffle", "grouping", "alpha", "dilation"],
)  # fmt: skip
def test_other_numbers_of_reruns_are_noticed(function, monkeypatch):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    same, _ = compared(Numbered(function), [torch.randn(4, 3, 32, 32) for _ in range(4)])
    assert same == [True] * 4


def test_slices_of_one_tensor_are_read_where_they_begin(link):
    torch.manual_seed(1)
    data = torch.randn(16, 3, 32, 32)
    same, fitted = compared(blocks(), [data[4 * step : 4 * step + 4] for step in range(4)])
    assert same == [True] * 4 and last_plan(fitted).counts.unplanned == 0
    wide = torch.randn(4, 3, 64, 64)
    same, fitted = compared(blocks(), [wide[:, :, step % 2 :: 2, step % 2 :: 2] for step in range(4)])
    assert same == [True] * 4 and last_plan(fitted).counts.unplanned == 0


def test_two_inputs_may_share_a_storage(link):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = blocks(), blocks()

        def forward(self, x, y):
            return self.one(x) + self.other(y)

    torch.manual_seed(1)
    data = [torch.randn(8, 3, 32, 32) for _ in range(2)]
    same, _ = compared(Two(), [pair for x in data for pair in ((x[:4], x[4:]), (x[4:], x[:4]), (x[:4], x[:4]))])
    assert same == [True] * 6


def flatten(model):
    """Makes all parameters views of one tensor, as optimizers do."""
    flat, place = torch.cat([p.detach().reshape(-1) for p in model.parameters()]), 0
    for parameter in model.parameters():
        parameter.data = flat[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()


@pytest.mark.parametrize("when", [-1, 2])
def test_parameters_may_be_views_of_one_tensor(link, when):
    torch.manual_seed(1)
    model = blocks()
    if when < 0:
        flatten(model)
    images = [torch.randn(4, 3, 32, 32) for _ in range(4)]
    same, fitted = compared(model, images, lambda model, step: flatten(model) if step == when else None)
    assert same == [True] * 4 and last_plan(fitted).counts.unplanned == 0


@pytest.mark.parametrize("place", [6, 7, 12])
def test_parameters_may_get_other_bytes_between_the_passes(place, link):
    torch.manual_seed(1)
    model, x = blocks(5), torch.randn(4, 3, 32, 32)
    fitted, found = fitted_copy(model, x, 0.6), []
    for each in (model, fitted):
        outputs, weight = each(x), each[place].weight
        weight.data = 1.5 * weight.data
        loss(outputs).backward()
        found.append(gradients(each))
    assert equal(*found)


def test_normalizations_may_be_frozen_between_steps(link):
    def freeze(model, step):
        for layer in model.modules():
            if step == 2 and isinstance(layer, nn.BatchNorm2d):
                layer.eval()

    torch.manual_seed(1)
    same, _ = compared(blocks(), [torch.randn(4, 3, 32, 32) for _ in range(5)], freeze)
    assert same == [True] * 5


def test_complex_tensors_keep_their_conjugation(link):
    class Conjugated(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(0.1 * torch.randn(64, 64, dtype=torch.cfloat)) for _ in range(4)])
            self.end = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Sigmoid())])

        def forward(self, x):
            for weight in self.weights:
                x = (x @ weight).conj()
            return self.end(x.imag + x.real)

    torch.manual_seed(1)
    same, fitted = compared(Conjugated(), [torch.randn(256, 64, dtype=torch.cfloat) for _ in range(3)])
    assert same == [True] * 3 and sum(decided(last_plan(fitted)).values())


def drop_bias(model):
    model[3].bias = None


def replace_layer(model):
    model[5] = nn.Identity()


@pytest.mark.parametrize(
    "operate",
    [
        lambda model: prune.random_unstructured(model[3], "weight", 0.5),
        lambda model: torch.nn.utils.parametrizations.weight_norm(model[3]),
        drop_bias,
        replace_layer,
    ],
    ids=["prune", "weight norm", "bias", "identity"],
)
def test_models_may_be_rebuilt_between_steps(operate, link, monkeypatch, capfd):
    def change(model, step):
        if step == 2:
            torch.manual_seed(7)
            operate(model)

    torch.manual_seed(1)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    same, fitted = compared(blocks(), [torch.randn(4, 3, 32, 32) for _ in range(5)], change)
    assert same == [True] * 5
    assert "everything it saves is offloaded" not in capfd.readouterr().err and session_of(fitted).last is not None


def test_a_rerun_of_a_known_number_is_planned(monkeypatch):
    """Values that the graph shows are not given up for offloading: windows that are shifted by the same number in every step."""
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model = Numbered(lambda self, x, step: torch.roll(torch.nn.functional.pad(kept(self, x), (1, 0)), 3, 3))
    same, fitted = compared(model, [torch.randn(4, 3, 32, 32) for _ in range(3)])
    assert same == [True] * 3 and last_plan(fitted).counts.unplanned == 0
    assert torch.roll in last_plan(fitted).schedule.functions and last_plan(fitted).counts.calls > 0


class Calls(nn.Module):
    """Calls a function with itself and its inputs."""

    def __init__(self, function):
        super().__init__()
        self.layers, self.function = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), function

    def forward(self, *inputs):
        return self.function(self, *inputs)


class Data:
    """A mini-batch as an object of the program's."""

    def __init__(self):
        self.x = torch.full((2, 3, 16, 16), 255.0)


def test_a_rehearsal_writes_to_nothing_of_the_program():
    data = Data()
    model = Calls(lambda self, data: self.layers(data.x.div_(255)))
    tt.fit(model, "8MiB")
    model(data).sum().backward()
    assert float(data.x.max()) == 1

    def assign(self, data):
        data.x = data.x / 255
        return self.layers(data.x)

    data, model = Data(), Calls(assign)
    tt.fit(model, "8MiB")
    model(data).sum().backward()
    assert type(data.x) is torch.Tensor and float(data.x.max()) == 1

    head, seen, x = nn.Conv2d(8, 8, 1), [], torch.randn(2, 3, 16, 16)
    for model in (Calls(lambda self, x: head(self.layers(x))), Calls(lambda self, x: self.layers(x))):
        model.layers[2].register_full_backward_hook(lambda layer, inputs, outputs: seen.append(outputs[0]))
        tt.fit(model, "8MiB")
        model(x).sum().backward()
    assert type(head.weight.grad) is torch.Tensor and {type(one) for one in seen} == {torch.Tensor}

    counter = torch.zeros(1)
    model = Calls(lambda self, x: self.layers(x) + counter.add_(1))
    tt.fit(model, "8MiB")
    model(x).sum().backward()
    assert float(counter) == 1


def test_constants_and_targets_of_the_program_are_no_hindrance(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    mean, target = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1), torch.randint(0, 8, (2, 12, 12))
    model = Calls(lambda self, x: self.layers(x - mean))
    tt.fit(model, "8MiB", loss=lambda outputs: F.cross_entropy(outputs, target))
    F.cross_entropy(model(torch.randn(2, 3, 16, 16)), target).backward()
    said = capfd.readouterr().err
    assert "nothing is changed" in said and "recording its first step" not in said


def test_sparse_tensors_are_left_alone(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    linear = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    words = nn.Sequential(nn.Embedding(100, 16, sparse=True), nn.Linear(16, 4))
    graph = Calls(lambda self, x: self.layers(torch.sparse.mm(torch.eye(48).to_sparse(), x.view(48, -1)).view(2, 3, 16, -1)))
    for model, x in ((linear, torch.eye(16).to_sparse()), (words, torch.arange(8)), (graph, torch.randn(2, 3, 16, 16))):
        plain = copy.deepcopy(model)
        tt.fit(model, "8MiB")
        for _ in range(2):
            for each in (plain, model):
                each.zero_grad()
                each(x).square().mean().backward()
            assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(gradients(plain), gradients(model), strict=True))
    said = capfd.readouterr().err
    assert "is given sparse tensors" in said and "gives '0' sparse gradients" in said


def test_sparse_gradients_that_no_layer_announces_count_as_dense_ones(monkeypatch):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.end = nn.Parameter(torch.randn(100, 16)), nn.Linear(16, 4)

        def forward(self, x):
            return self.end(F.embedding(x, self.words, sparse=True))

    torch.manual_seed(1)
    plain = Words()
    for recorded in (False, True):
        model = copy.deepcopy(plain)
        if recorded:
            monkeypatch.setattr("tightfit._budget.eager.plans.unrehearsed", lambda module: "a test")
        tt.fit(model, "8MiB")
        plain.zero_grad()
        for _ in range(2):
            for each in (plain, model):
                each(torch.arange(8)).square().mean().backward()
        assert model.words.grad.is_sparse
        assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(gradients(plain), gradients(model), strict=True))


def test_lazy_modules_are_fitted_once_they_have_shapes():
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.LazyConv2d(8, 3)), torch.randn(2, 3, 16, 16)
    tt.fit(model, "8MiB")
    model(x).sum().backward()
    model(x).sum().backward()
    assert len(session_of(model).plans) == 1


def test_numbers_that_change_in_each_step_take_one_plan():
    model = Calls(lambda self, x, factor: self.layers(x) * factor)
    tt.fit(model, "8MiB")
    for step in range(12):
        model.zero_grad()
        model(torch.randn(2, 3, 16, 16), 0.1 * step).sum().backward()
    assert len(session_of(model).plans) == 1


def test_attention_that_drops_nothing_is_rebuilt(monkeypatch):
    class Attention(nn.Module):
        def __init__(self, dropped):
            super().__init__()
            self.given, self.out, self.dropped = nn.Linear(32, 96), nn.Linear(32, 32), dropped

        def forward(self, x):
            q, k, v = self.given(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
            found = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropped, is_causal=True)
            return x + self.out(found.transpose(1, 2).reshape(x.shape))

    def rerun_in_plan(dropped, share):
        torch.manual_seed(1)
        model = nn.Sequential(*[Attention(dropped) for _ in range(6)])
        same, fitted = compared(model, [torch.randn(64, 64, 32) for _ in range(3)], share=share)
        plan = last_plan(fitted)
        operations = plan.step.data["operations"]
        names = [operations[index]["name"] for one in plan.decisions.values() for again in one["rebuilt"] for index in again["operations"]]
        return same, plan.counts.unplanned, any("attention" in name for name in names)

    set_link(monkeypatch, SLOW)
    assert rerun_in_plan(0.0, 0.4) == ([True] * 3, 0, True)
    _, unplanned, rebuilt = rerun_in_plan(0.5, 0.7)
    assert unplanned == 0 and not rebuilt


def test_indices_of_a_pooling_are_rebuilt_with_the_window_of_their_pass(monkeypatch):
    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.step = nn.ModuleList([nn.Conv2d(16 if place else 3, 16, 3, padding=1) for place in range(5)]), 0

        def forward(self, x):
            self.step += 1
            for layer in self.layers:
                wide = 3 if self.step < 4 else 5
                x = F.max_pool2d(torch.tanh(layer(x)), wide, 1, wide // 2)
            return x

    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    same, fitted = compared(Pools(), [torch.randn(4, 3, 32, 32) for _ in range(6)], share=0.5)
    assert same == [True] * 6 and last_plan(fitted).counts.unplanned == 0 and last_plan(fitted).counts.calls > 0
