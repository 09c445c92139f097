"""What tests of models within a budget have in common: no lines on standard error, and one thread, beside which others run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def quiet(request, monkeypatch):
    if request.module.__name__.startswith("test_fit_"):
        monkeypatch.setenv("TIGHTFIT_QUIET", "1")
        torch.set_num_threads(1)
