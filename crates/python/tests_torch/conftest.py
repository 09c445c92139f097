"""Shared settings of tests of models within a budget: no lines on standard error, and one thread."""

import pytest
import torch
from fit_support import FAST, SLOW, set_link
from tightfit._budget.compiled import held
from tightfit._budget.record import measure, times
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# Calls under a program's dispatch mode are not run again. Modes of tests that only count are no modes of a program.
_modes = torch._C._len_torch_dispatch_stack
torch._C._len_torch_dispatch_stack = lambda: _modes() and sum(not getattr(mode, "only_counts", False) for mode in _get_current_dispatch_mode_stack())


@pytest.fixture(autouse=True)
def quiet(request, monkeypatch):
    if request.module.__name__.startswith(("test_fit_", "test_compiled_")):
        monkeypatch.setenv("TIGHTFIT_QUIET", "1")
        torch.set_num_threads(1)


@pytest.fixture(params=[FAST, SLOW], ids=["offloaded", "recomputed"])
def link(request, monkeypatch):
    """A link on which a plan offloads, and one on which it recomputes."""
    set_link(monkeypatch, request.param)
    return request.param


@pytest.fixture
def fresh_graphs(monkeypatch, tmp_path):
    """No compiled graphs of other tests, and a separate cache."""
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache.db"))
    monkeypatch.setattr(held, "_held", {})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measures on the CPU as on a GPU, into a separate cache."""
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache.db"))
    monkeypatch.setattr(measure, "SECONDS", 60.0)
    monkeypatch.setattr(measure, "MEASURED", measure.MEASURED)
    measure.MEASURED.add("cpu")
    times._open.clear()
    yield tmp_path / "step-times.json"
    measure.MEASURED.discard("cpu")
    times._open.clear()
