"""The limit on workspaces of convolutions, as a part of the budget under `tightfit run`, whose library is played here."""

import threading

import pytest
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import last_plan, sgd
from tightfit import DoesNotFit, NotPreloaded
from tightfit._budget.eager import planner
from tightfit._budget.plan import workspaces
from tightfit._budget.record import measure, times

pytestmark = pytest.mark.usefixtures("measured")

# Of a convolution's own choice; a step of the model below takes about 2 MiB.
LARGE = 1 << 20


class Library:
    """The library that limits workspaces: convolutions take `slower` times longer in less than their usual workspace."""

    def __init__(self, monkeypatch, slower):
        self.set = []
        self.threads = set()
        self.others = 0
        for name, value in (("BUDGET", "1GiB"), ("CUDNN", "libcudnn.so.9"), ("WORKSPACE", "auto"), ("TUNE", "cached")):
            monkeypatch.setenv(f"TIGHTFIT_{name}", value)
        monkeypatch.setattr(times, "chosen_limit", chosen := times._Chosen())
        monkeypatch.setattr(workspaces, "chosen_limit", chosen)
        monkeypatch.setattr(workspaces, "set_limits", lambda workspace: self.set.append(workspace) or 0)

        def timed(operation, *_):
            self.threads.add(threading.get_ident())
            if operation.name not in workspaces._WITH_WORKSPACES:
                self.others += 1
                return 100.0, 0
            limit = self.set[-1] if self.set and self.set[-1] != "default" else LARGE
            return (100.0, LARGE) if limit >= LARGE else (100.0 * slower, limit)

        monkeypatch.setattr(measure, "_time", timed)
        # So slow that everything is computed again.
        monkeypatch.setattr(planner, "measure_copies", lambda copies, times, free: times.rates.update(dict.fromkeys(("out", "in", "both"), 1e6)))


def trained(budget):
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    tt.fit(model, budget, optimizer=sgd(model))
    model(x).square().mean().backward()
    return last_plan(model)


def workspaces_of(plan):
    return {o["workspace_bytes"] for o in plan.step.data["operations"] if o["name"] == "aten.convolution"}


def test_a_limit_under_which_a_step_takes_less_time_is_chosen(monkeypatch, capfd):
    library = Library(monkeypatch, slower=1.01)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    plan = trained(2_100_000)
    assert library.set[:2] == [LARGE // 4, LARGE // 16], "each is measured"
    assert library.set[-1] in library.set[:2]
    assert times.chosen_limit.settled and times.chosen_limit.size == library.set[-1]
    assert workspaces_of(plan) == {library.set[-1]}
    known = times.times_of(torch.device("cpu")).known
    assert library.others == sum("convolution" not in key for key in known), "only convolutions are measured again"
    assert threading.get_ident() not in library.threads, "PyTorch keeps what cuDNN planned for this thread"
    assert "get at most 256.00 KiB of workspace each: a plan takes 9% less time, and a step that keeps everything takes" in capfd.readouterr().err
    assert f"workspace {library.set[-1]}" in times.times_of(torch.device("cpu")).device
    # The running program has its plans of cuDNN now.
    trained(2_000_000)
    assert len(library.set) == 3


def test_a_limit_that_costs_more_than_it_gains_is_not(monkeypatch):
    library = Library(monkeypatch, slower=50)
    plan = trained(2_100_000)
    assert library.set == [LARGE // 4, LARGE // 16, "default"] and times.chosen_limit.size is None
    assert workspaces_of(plan) == {LARGE}


def test_a_budget_that_no_plan_meets_otherwise_is_met_within_a_limit(monkeypatch):
    with monkeypatch.context() as context:
        Library(context, slower=50)
        context.setenv("TIGHTFIT_WORKSPACE", "unlimited")
        with pytest.raises(DoesNotFit):
            trained(1_500_000)
    times._open.clear()
    library = Library(monkeypatch, slower=50)
    assert trained(1_500_000).peak <= 1_500_000 and library.set[-1] < LARGE


@pytest.mark.parametrize("without", ["BUDGET", "CUDNN", "WORKSPACE", "library", "workspaces", "benchmark"])
def test_a_limit_that_is_not_ours_to_choose_stays(monkeypatch, without):
    library = Library(monkeypatch, slower=1.01)
    if without == "library":

        def refuse(workspace):
            library.set.append(workspace)
            raise NotPreloaded("nothing is preloaded")

        monkeypatch.setattr(workspaces, "set_limits", refuse)
    elif without == "benchmark":
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    elif without == "workspaces":
        monkeypatch.setattr(measure, "_time", lambda *_: (100.0, 0))
    else:
        monkeypatch.delenv(f"TIGHTFIT_{without}")
    trained(1_900_000 if without == "workspaces" else 2_100_000)
    assert times.chosen_limit.size is None
    assert not library.set if without != "library" else LARGE // 16 not in library.set


def test_a_limit_is_put_back_where_measuring_under_it_ends_with_ctrl_c(monkeypatch):
    library = Library(monkeypatch, slower=1.01)
    known = measure._time

    def interrupted(operation, *arguments):
        if library.set:
            raise KeyboardInterrupt
        return known(operation, *arguments)

    monkeypatch.setattr(measure, "_time", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(2_100_000)
    assert library.set == [LARGE // 4, "default"] and times.chosen_limit.size is None


def test_no_limit_is_chosen_for_a_model_that_has_run(monkeypatch):
    """Its first step is recorded for real, and PyTorch keeps what cuDNN planned in it."""
    library = Library(monkeypatch, slower=1.01)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    model.register_forward_hook(lambda *_: None)
    tt.fit(model, 2_100_000, optimizer=sgd(model))
    for _ in range(2):
        model(x).square().mean().backward()
    assert library.others and times.chosen_limit.settled and not library.set
