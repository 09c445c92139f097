"""The budget where Inductor compiles: losses with dropout of unmodified programs, and PyTorch's caches."""

import shutil

import pytest

from fit_support import launched

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU")

NET = """
import torch
from torch import nn
torch.manual_seed(1)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.5), nn.Linear(256, 64), nn.LayerNorm(64)) for _ in range(2)]).train()
x = torch.randn(128, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model)
for step in range(3):
    torch.manual_seed(step)
    optimizer.zero_grad()
    loss = compiled(x).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(sum(p.double().abs().sum().item() for p in model.parameters()))
"""
COUNTS = """
from torch._dynamo.utils import counters
print("hits", counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_unmodified_programs_are_held_with_the_same_losses_and_start_warm_the_second_time(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache.db"))
    plain = launched(tmp_path, "", NET)
    first, second = (launched(tmp_path, "1050KiB", NET + COUNTS) for _ in range(2))
    refused = launched(tmp_path, "300KiB", NET)
    assert plain.returncode == first.returncode == second.returncode == 0, first.stderr[-2000:]
    assert first.stdout.startswith(plain.stdout) and second.stdout.startswith(plain.stdout)
    assert "hits 0" in first.stdout and "hits 1" in second.stdout
    assert first.stderr.count("compiled graph: predicted peak") == 1 and "nothing is changed" not in first.stderr, first.stderr
    assert refused.returncode == 3 and "least budget found" in refused.stderr
