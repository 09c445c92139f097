"""Models with compiled parts: what these save is kept or offloaded, and the rest is planned as usual."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import FAST, SLOW, decided, default_loss, last_plan, resident_bytes, set_link, sgd, train
from tightfit._budget.api import session_of
from torch import nn

PACKAGE = Path(tightfit.__file__).parent.parent


@pytest.fixture(autouse=True)
def reset():
    yield
    torch._dynamo.reset()


def told(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("tightfit:")]


def by_call(module):
    return torch.compile(module, backend="aot_eager")


def in_place(module):
    module.compile(backend="aot_eager")
    return module


def with_compiled(how, blocks=(4, 6)):
    """A network with some of its blocks compiled."""
    torch.manual_seed(1)
    model = Resnet(blocks=4).train()
    for block in blocks:
        model[block] = how(model[block])
    return model, image(4)


def fitted(make, share):
    """A model under a budget that leaves this share of its step's need in addition to the resident bytes."""
    model, x = make()
    train(tt.fit(model, "1GiB", optimizer=sgd(model)), 1, x)
    (plain,) = session_of(model).plans.values()
    resident = resident_bytes(plain)
    model, x = make()
    return tt.fit(model, int(resident + (plain.plain - resident) * share), optimizer=sgd(model)), x


@pytest.mark.parametrize("how", [by_call, in_place])
def test_a_model_with_compiled_blocks_is_planned_with_the_same_gradients(how, link):
    model, x = with_compiled(how)
    other, _ = fitted(lambda: with_compiled(how), 0.7)
    expected, _, _ = train(model, 4, x)
    gradients, _, _ = train(other, 4, x)
    for left, right in zip(expected, gradients, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    plan = last_plan(other)
    assert decided(plan)["offload" if link == FAST else "recompute"] > 0
    counts = plan.counts
    assert counts.packs > 0 and not (counts.unplanned or counts.out_of_order or counts.late)
    names = {operation["name"] for operation in plan.step.data["operations"]}
    assert "aten.compiled" in names
    rerun = {
        plan.step.data["operations"][index]["name"]
        for decision in plan.schedule.decisions.values()
        for entry in decision["rebuilt"]
        for index in entry["operations"]
    }
    assert "aten.compiled" not in rerun
    assert plan.peak <= plan.budget < plan.plain


def test_compiled_parts_run_compiled_while_they_are_recorded():
    compiled = []

    def backend(graph, inputs):
        compiled.append(len(inputs))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    model, x = with_compiled(lambda module: torch.compile(module, backend=backend), blocks=(4,))
    train(tt.fit(model, "1GiB", optimizer=sgd(model)), 1, x)
    assert len(compiled) == 1
    train(model, 2, x)
    assert len(compiled) == 1


def test_one_line_says_that_the_first_step_is_recorded(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    model, x = with_compiled(by_call)
    train(tt.fit(model, "1GiB", optimizer=sgd(model)), 3, x)
    lines = told(capfd)
    assert len(lines) == 2 and "compiled modules" in lines[0] and "nothing is changed" in lines[1], lines


def test_what_a_compiled_part_changes_in_place_is_not_read_again(monkeypatch):
    """The input of the part is the source of earlier results."""

    class Changes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.part = torch.compile(Changes(), backend="aot_eager")
            self.last = nn.Linear(64, 64)

        def forward(self, x):
            y = torch.nn.functional.gelu(self.first(torch.sigmoid(x)))
            return self.last(y) + self.part(x)

    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    def make():
        torch.manual_seed(1)
        return Net(), torch.randn(512, 64)

    found = []
    planned = fitted(make, 0.9)[0]
    for net in (make()[0], planned):
        for step in range(3):
            torch.manual_seed(step)
            net.zero_grad()
            default_loss(net, torch.randn(512, 64)).backward()
        found.append([p.grad.clone() for p in net.parameters()])
    assert all(map(torch.equal, *found)) and last_plan(planned).decisions


def test_a_model_compiled_as_a_whole_is_left_alone_with_one_line(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    torch.manual_seed(1)
    model, x = Resnet(blocks=2).train(), image(2)
    compiled = tt.fit(torch.compile(model, backend="aot_eager"), "1MiB")
    train(compiled, 2, x)
    lines = told(capfd)
    assert len(lines) == 1 and "compiled as a whole" in lines[0], lines
    # The model is fitted first, so its hooks are compiled.
    torch._dynamo.reset()
    monkeypatch.setattr("tightfit._budget.record.unsupported._said", set())
    train(torch.compile(tt.fit(model, "1MiB"), backend="aot_eager", fullgraph=True), 2, x)
    lines = told(capfd)
    assert len(lines) == 1 and "compiled as a whole" in lines[0], lines


def test_plan_says_what_it_assumes_of_compiled_parts():
    model, x = with_compiled(by_call)
    plan = tt.plan(model, x)
    assert any("compiled" in assumed for assumed in plan.assumed)
    assert plan.peak == tt.plan(with_compiled(lambda module: module)[0], x).peak


def test_a_budget_that_compiled_parts_exceed_is_refused():
    model, x = with_compiled(by_call)
    tt.fit(model, 300_000, optimizer=sgd(model))
    with pytest.raises(tightfit.DoesNotFit, match="Resnet does not fit in 292.97 KiB: it needs at least"):
        train(model, 1, x)


LAUNCHED = """
import sys
import torch
from fit_models import Resnet, image
from fit_support import default_loss
from tightfit._budget.launch import install

torch.manual_seed(1)
torch.set_num_threads(1)
model, x = Resnet(blocks=4).train(), image(4)
model[4].compile(backend="aot_eager", fullgraph=True)
if sys.argv[1] == "fitted":
    install()
for _ in range(3):
    model.zero_grad()
    default_loss(model, x).backward()
print(*(p.grad.double().sum().item() for p in model.parameters()))
"""


def test_compiled_blocks_stay_whole_graphs_under_run(tmp_path):
    (tmp_path / "launched.py").write_text(LAUNCHED)
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{Path(__file__).parent}", "TIGHTFIT_BUDGET": "1450000", "TIGHTFIT_QUIET": "0"}
    ran = [
        subprocess.run(
            [sys.executable, str(tmp_path / "launched.py"), how], env=environment, capture_output=True, text=True, check=False
        )
        for how in ("plain", "fitted")
    ]
    assert ran[0].returncode == ran[1].returncode == 0, ran[1].stderr[-2000:]
    assert ran[0].stdout == ran[1].stdout
    assert "moves " in ran[1].stderr, ran[1].stderr[-2000:]


WHOLE = LAUNCHED.replace('model[4].compile(backend="aot_eager", fullgraph=True)', 'compiled = torch.compile(model, backend="aot_eager")').replace(
    "for _ in", "with torch.no_grad():\n    compiled.eval()(x)\ncompiled.train()\nfor _ in"
).replace("default_loss(model, x)", "default_loss(compiled, x)")


def test_a_model_compiled_as_a_whole_trains_under_run(tmp_path):
    """As in programs that evaluate first: what is traced then is traced again with gradients, hooks and all."""
    (tmp_path / "whole.py").write_text(WHOLE)
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{Path(__file__).parent}", "TIGHTFIT_BUDGET": "1450000", "TIGHTFIT_QUIET": "0"}
    ran = [
        subprocess.run([sys.executable, str(tmp_path / "whole.py"), how], env=environment, capture_output=True, text=True, check=False)
        for how in ("plain", "fitted")
    ]
    assert ran[0].returncode == ran[1].returncode == 0, ran[1].stderr[-2000:]
    assert ran[0].stdout == ran[1].stdout
    assert ran[1].stderr.count("is compiled as a whole") == 1, ran[1].stderr[-2000:]
