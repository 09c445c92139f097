"""Unlike graphs that a program calls one after another share a budget: each is compiled before the later ones are known."""

import gc

import pytest
import torch
from fit_support import DeviceBytes, run_graphs_under, sgd
from tightfit._budget.compiled import held
from tightfit._budget.compiled.kept import Together
from tightfit._budget.compiled.parts import Need
from tightfit._budget.compiled.sequence import Divided, leasts, together
from tightfit.errors import DoesNotFit
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_graphs")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(16, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU(), nn.Conv2d(width, 16, 3, padding=1), nn.GELU(), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(*(Block(16 + 4 * (place % 3)) for place in range(6)))


def steps(model, budget=None, offload=False, counter=None):
    """The losses of four steps, whose blocks are compiled one by one, and the peak of the last one in bytes, without the model and its input."""
    torch._dynamo.reset()
    held._held.clear()
    optimizer = sgd(model)
    for block in model if budget is not None else ():
        block.compile(backend="tightfit", dynamic=False, options={"budget": budget, "inner": "eager", "offload": offload, "optimizer": optimizer})
    torch.manual_seed(1)
    x = torch.randn(16, 16, 24, 24)
    if counter is not None:
        counter.known |= {value.untyped_storage()._cdata for value in (x, *model.parameters(), *model.buffers())}
    losses = []
    for _ in range(4):
        if counter is not None:
            counter.peak = counter.live
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        del loss
    return losses, 0 if counter is None else counter.peak


@pytest.mark.parametrize("offload", [False, True], ids=["recomputed", "offloaded"])
def test_unlike_blocks_that_are_compiled_one_by_one_share_a_budget(offload, monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    counter = DeviceBytes([])
    run_graphs_under(counter, monkeypatch)
    plain, _ = steps(blocks())
    _, whole = steps(blocks(), "1GiB", counter=counter)
    (ample,) = held.all_held()
    outside = min(graph.outside for graph in ample.graphs.values())
    capfd.readouterr()
    budget = outside + int(0.6 * whole)
    losses, peak = steps(blocks(), budget, offload, counter)
    assert losses == pytest.approx(plain, rel=1e-5)
    told = capfd.readouterr().err
    assert told.count("all are compiled once more, together") == 1
    assert peak <= 0.6 * whole, "each block alone would take what the later ones need"
    (tight,) = held.all_held()
    assert all(graph.predicted <= budget for graph in tight.graphs.values())
    # A later process knows it from the first step on.
    again, peak = steps(blocks(), budget, offload, counter)
    assert again == losses and peak <= 0.6 * whole
    assert "once more" not in capfd.readouterr().err
    # Another program with the same blocks does not take what this one has kept.
    fewer = blocks()[:3]
    alone, _ = steps(fewer, budget, offload, counter)
    assert all(plan.is_plain for plan in held.all_held()[0].planned), "three blocks fit as they are"
    assert alone == pytest.approx(steps(blocks()[:3])[0], rel=1e-5)


def test_a_budget_that_the_graphs_of_a_step_cannot_meet_together_is_refused_in_the_first_one(monkeypatch):
    steps(blocks(), "1GiB")
    outside = min(graph.outside for one in held.all_held() for graph in one.graphs.values())
    counter = DeviceBytes([])
    run_graphs_under(counter, monkeypatch)
    _, whole = steps(blocks(), "1GiB", counter=counter)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"3 compiled graphs do not fit together in .* they need at least") as raised:
        steps(blocks(), outside + int(0.4 * whole))
    assert isinstance(raised.value.inner_exception, DoesNotFit)
    needed = raised.value.inner_exception.needed_bytes
    # Its frames hold tensors.
    del raised
    gc.collect()
    # The least that it names is enough.
    losses, peak = steps(blocks(), int(needed * 1.03), counter=counter)
    assert losses == pytest.approx(steps(blocks())[0], rel=1e-5)
    assert peak <= needed * 1.03 - outside


def test_the_bytes_that_each_graph_may_keep():
    many, few = Need(40, 50), Need(10, 30)
    graphs = {"a": Divided(100, [many, few]), "b": Divided(120, [many, few])}
    # By hand: a, b, a and b keep 10 each at the least. The last call needs 120 + 30 + 30.
    assert leasts(["a", "b", "a", "b"], graphs) == 180
    assert together(["a", "b", "a", "b"], graphs, 179) is None
    ample = together(["a", "b", "a", "b"], graphs, 1000)
    assert ample == {"a": Together(40, 40), "b": Together(80, None)}
    tight = together(["a", "b", "a", "b"], graphs, 190)
    assert 10 <= tight["a"].kept < 40 and tight["b"].kept is None
    kept = tight["a"].kept
    assert 2 * kept + 120 + kept + 30 <= 190
