"""What a measured step changes: the program's loss where its bytes were assumed, more bytes beside the graphs where it was over its budget."""

from types import SimpleNamespace

import pytest
import torch
from tightfit._budget.compiled import held, private


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Compares a step of a program with one graph with its budget of 1000 bytes. Returns the loss and the surplus that the next compilation assumes,
    and whether there is one."""
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache.db"))
    resets = []
    monkeypatch.setattr(private, "reset", lambda: resets.append(True))

    def looked(seen, predicted, loss, assumed, is_peak, is_plain=False):
        monkeypatch.setattr(held, "_peaks", lambda: SimpleNamespace(of=lambda _: seen))
        of = held.Held(torch.device("cpu"), 1000)
        of.kept.losses, of.kept.surplus = {}, {}
        plan = SimpleNamespace(loss_of=lambda above: (above, assumed, is_peak))
        graph = SimpleNamespace(key="k", plan=plan, planned=SimpleNamespace(is_plain=is_plain), predicted=predicted, at_once=1)
        of.graphs, of.steps, of.of_loss = {"k": graph}, held._SEEN - 1, loss
        resets.clear()
        of._look()
        return of.kept.losses.get("k"), of.kept.surplus.get("k"), bool(resets)

    return looked


def test_a_loss_that_is_smaller_than_assumed_gives_its_bytes_to_the_division(look):
    assert look(800, 990, 100, 300, is_peak=True) == (100, None, True)


def test_a_step_within_its_budget_changes_nothing_else(look):
    """Its error is of this division: the next one, in fewer bytes, might be over the budget."""
    assert look(800, 990, 100, 300, is_peak=False) == (None, None, False)
    assert look(800, 990, 290, 300, is_peak=True) == (None, None, False)
    assert look(800, 990, 100, 300, is_peak=True, is_plain=True) == (None, None, False)


def test_a_step_over_its_budget_says_what_took_more(look):
    assert look(1100, 990, 400, 300, is_peak=True) == (400, None, True)
    assert look(1100, 990, 200, 300, is_peak=True) == (None, 110, True)
    assert look(1100, 990, 400, 300, is_peak=False) == (None, 110, True)
