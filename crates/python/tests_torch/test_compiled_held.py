"""A step over its budget shows how many bytes exist outside of the graphs, and all is compiled once more; other steps change nothing."""

from types import SimpleNamespace

import pytest
import torch
from tightfit._budget.compiled import held, private


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Compares a step of a program with one graph with its budget of 1000 bytes. Returns the surplus that the next compilation assumes, and whether
    there is one."""
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache.db"))
    resets = []
    monkeypatch.setattr(private, "reset", lambda: resets.append(True))

    def looked(seen, predicted, surplus):
        monkeypatch.setattr(held, "_peaks", lambda: SimpleNamespace(of=lambda _: seen))
        of = held.Held(torch.device("cpu"), 1000)
        of.kept.surplus = {"k": surplus}
        of.graphs = {"k": SimpleNamespace(key="k", planned=SimpleNamespace(is_plain=False), predicted=predicted, at_once=1, outside=0)}
        of.steps = held._SEEN - 1
        resets.clear()
        of._look()
        return of.kept.surplus["k"], bool(resets)

    return looked


def test_a_step_over_its_budget_is_compiled_once_more_with_what_it_took(look):
    assert look(1100, 990, 0) == (110, True)
    assert look(1001, 990, 40) == (51, True)


def test_a_step_within_its_budget_changes_nothing(look):
    assert look(500, 990, 0) == (0, False)
    assert look(1000, 800, 40) == (40, False)
