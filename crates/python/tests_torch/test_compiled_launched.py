"""Eager models that ``tightfit run --budget --compile`` compiles: losses, what does not compile, what does not fit."""

import pytest

from fit_support import launched

NET = """
import torch
from torch import nn
torch.manual_seed(1)
torch.set_num_threads(1)

def layers():
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)) for _ in range(3)])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = layers(), layers()

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.last(x)

model = Net()
x = torch.randn(256, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    model.eval()(x)
model.train()
for step in range(4):
    optimizer.zero_grad()
    loss = nn.MSELoss()(model(x), x)
    loss.backward()
    optimizer.step()
    print(step, round(loss.item(), 5))
print("compiled" if torch._dynamo.utils.counters["stats"]["unique_graphs"] else "eager")
"""
FAILS = """
import torch
from tightfit._budget.compiled import backend
def fails(*args, **kwargs):
    raise RuntimeError("no compiler")
backend.compile_within = fails
"""


@pytest.fixture(autouse=True)
def compiles(monkeypatch, tmp_path):
    monkeypatch.setenv("TIGHTFIT_COMPILE", "true")
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache.db"))


def losses(ran):
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()[:4]


def test_the_model_of_an_eager_program_is_compiled_within_the_budget(tmp_path):
    plain, fitted = launched(tmp_path, "", NET), launched(tmp_path, "10MiB", NET)
    assert losses(plain) == losses(fitted)
    assert plain.stdout.endswith("eager\n") and fitted.stdout.endswith("compiled\n")
    assert fitted.stderr.count("Net is compiled") == 1
    assert "predicted peak 0 bytes" not in fitted.stderr, fitted.stderr
    # It breaks into two graphs, and its layers are no eager models.
    assert fitted.stderr.count("compiled graph: predicted peak") == 2 and "Sequential" not in fitted.stderr, fitted.stderr


def test_what_does_not_compile_runs_eagerly_with_a_line(tmp_path):
    plain, fitted = launched(tmp_path, "", NET), launched(tmp_path, "10MiB", FAILS + NET)
    assert losses(plain) == losses(fitted)
    assert "Net is not compiled, and runs eagerly" in fitted.stderr and "no compiler" in fitted.stderr, fitted.stderr
    # It is planned as an eager model.
    assert fitted.stderr.count("Net: predicted peak") == 1, fitted.stderr


def test_a_budget_that_cannot_be_met_ends_the_program(tmp_path):
    refused = launched(tmp_path, "1MiB", NET)
    assert refused.returncode == 3 and "it needs at least" in refused.stderr, refused.stderr
    assert not refused.stdout
