"""The doors of fitting: plans that run nothing, budgets that cannot be met, and blocks."""

import copy
import json
import re
from types import SimpleNamespace

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Resnet, Vae, image, resnet
from fit_support import (
    FAST,
    SLOW,
    decided,
    default_loss,
    fitted_copy,
    last_plan,
    same_bits,
    set_link,
    sgd,
    tight_budget,
    train,
)  # fmt: skip
from tightfit._budget import messages as lines
from tightfit._budget import question
from tightfit._budget.api import session_of
from tightfit._budget.eager import plans
from tightfit._budget.memory.allocator import beside
from tightfit._budget.largest import largest, largest_fitting
from tightfit._budget.memory.sizes import budget_bytes, text
from tightfit._budget.plan.buckets import bucket_bytes
from torch import distributed, nn


def test_a_plan_answers_without_running_anything(tmp_path):
    model, x = resnet()
    ran = []
    model[0].register_forward_hook(lambda module, inputs, output: ran.append(type(output)))
    plain = tt.plan(model, x)
    assert ran == [torch._subclasses.FakeTensor], "only a copy ran, on a fake tensor"
    assert plain.fits and plain.peak == plain.plain and plain.decisions == [] and plain.host == 0
    assert plain.least < plain.peak
    plan = tt.plan(model, (x,), budget=plain.least, optimizer=sgd(model))
    assert plan.fits and plan.peak <= plain.least and plan.overhead >= 0 and len(plan.decisions) > 0
    near = tt.plan(model, x, budget=(plain.peak + plain.least) // 2)
    assert plain.gap is None and near.gap is not None and near.gap >= 0
    assert plan.assumed == ["the loss is a cross entropy of the outputs, in 32 bits"]
    assert "the optimizer is AdamW" in plain.assumed
    with pytest.raises(tightfit.BudgetTooSmall, match=r"Resnet does not fit in 1\.00 KiB: it needs at least .*; give a larger budget or a smaller batch") as refused:
        tt.plan(model, x, budget="1KiB")
    assert refused.value.limit_bytes == 1024 < refused.value.needed_bytes == refused.value.least_bytes
    assert tt.plan(model, x, budget=refused.value.needed_bytes).peak <= refused.value.needed_bytes
    assert refused.value.layer in str(refused.value)
    assert re.fullmatch(r"<Plan: Resnet needs \d\.\d\d MiB>", repr(plain))
    assert re.fullmatch(r"<Plan: training Resnet in .* \(plain needs .*\): .*, about .*% slower, predicted for this CPU>", repr(plan))
    plan.html(tmp_path / "plan.html")
    assert "<svg" in (tmp_path / "plan.html").read_text()
    plan.save(tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    assert saved["peak_bytes"] == plan.peak and saved["gap"] == plan.gap and len(saved["decisions"]) == len(plan.decisions)
    with pytest.raises(tightfit.FileError, match="no-such-folder"):
        plan.save(tmp_path / "no-such-folder/plan.json")


def test_a_model_without_memory_is_planned_as_one_with(tmp_path):
    model, x = resnet()
    plain = tt.plan(model, x).plain
    assert tt.plan(model.to("meta"), x.to("meta")).plain == plain


def test_the_least_budget_has_room_for_gaps(monkeypatch):
    """A plan without a limit was made as if there were none."""
    model, x = resnet()
    monkeypatch.setattr(question, "may_grow", lambda device: True)
    least = question.least_of
    monkeypatch.setattr(question, "least_of", lambda fitted: SimpleNamespace(needed=least(fitted).needed // 2))
    plan = tt.plan(model, x)
    assert tt.plan(model, x, budget=plan.least).fits
    assert plan.sweep((1.0, 0.9)).plans[-1][1].fits


def test_a_step_file_has_what_the_format_asks_for(tmp_path):
    model, x = resnet()
    tt.plan(model, x).save_step(tmp_path / "step.json")
    step = json.loads((tmp_path / "step.json").read_text())
    assert step["tightfit_step"] == 1 and step["batch"] == 4 and step["mode"] == "training"
    stages = [operation["stage"] for operation in step["operations"]]
    assert stages == sorted(stages, key=["forward", "backward", "update"].index)
    kinds = {"weight", "weight-gradient", "optimizer-state", "feature-map", "gradient-map", "input", "other"}
    written = set()
    for index, tensor in enumerate(step["tensors"]):
        assert tensor["bytes"] > 0 and tensor["kind"] in kinds, tensor
        if tensor["residence"] == "resident":
            written.add(index)
    for operation in step["operations"]:
        # Everything is made before it is read.
        assert set(operation["reads"]) <= written, operation
        written.update(operation["writes"])
        assert set(operation["adds"]) <= written, operation
    weights = sum(p.untyped_storage().nbytes() for p in model.parameters())
    of_kind = lambda kind: sum(t["bytes"] for t in step["tensors"] if t["kind"] == kind)  # noqa: E731
    assert of_kind("weight-gradient") == weights and of_kind("optimizer-state") == 2 * weights


def test_the_least_budget_is_refused_below_and_runs_at(monkeypatch):
    for link in (FAST, SLOW):
        set_link(monkeypatch, link)
        model, x = resnet()
        least = tt.plan(model, x, optimizer=sgd(model)).least
        tt.fit(model, least, optimizer=sgd(model))
        default_loss(model, x).backward()
        tt.unfit(model)
        model.zero_grad()
        tt.fit(model, least - 1, optimizer=sgd(model))
        with pytest.raises(tightfit.DoesNotFit, match="backward pass") as refused:
            model(x)
        assert refused.value.limit_bytes == least - 1 and refused.value.needed_bytes == least
        tt.unfit(model)


def test_a_larger_budget_is_never_slower_and_one_that_fits_costs_nothing(monkeypatch):
    set_link(monkeypatch, 1e9)
    model, x = resnet()
    plain = tt.plan(model, x)
    for share in (1.0, 0.9, 0.8, 0.7, 0.6):
        plan = tt.plan(model, x, budget=max(int(plain.peak * share), plain.least))
        assert plan.peak <= max(int(plain.peak * share), plain.least)
    tt.fit(model, plain.peak)
    default_loss(model, x).backward()
    fitted = session_of(model).last
    assert fitted.schedule is None and fitted.counts.packs == 0, "no hooks where everything fits"


def refusal(model, x, budget, optimizer):
    """The message about a budget that cannot be met."""
    tt.fit(model, budget, optimizer=optimizer)
    with pytest.raises(tightfit.DoesNotFit) as refused:
        model(x)
    assert refused.value.needed_bytes > budget
    return str(refused.value)


def test_a_budget_that_cannot_be_met_says_where_memory_peaks_and_what_helps():
    model, x = resnet()
    said = refusal(model, x, 200_000, sgd(model))
    assert re.search(r"Resnet does not fit in 195.31 KiB: it needs at least \d+\.\d\d KiB\. Memory peaks in the ", said), said
    assert re.search(r"pass, (at \w+ )?(in [\w.]+|outside the model's submodules).*; give a larger budget or a smaller batch$", said), said
    # A smaller batch leaves weights, gradients and state as they are.
    model = nn.Linear(512, 512)
    said = refusal(model, torch.randn(1, 512), 1 << 20, torch.optim.AdamW(model.parameters()))
    assert said.endswith("Memory peaks in the optimizer's update; give a larger budget, or use an optimizer that keeps less state"), said


def test_a_budget_may_be_a_share_of_what_plain_needs():
    model, x = resnet()
    plain = tt.plan(model, x).plain
    for budget in ("80%", 0.8, "80.0 %"):
        plan = tt.plan(model, x, budget=budget)
        assert plan.budget_bytes == int(0.8 * plain) and plan.fits and plan.peak <= plan.budget_bytes
    fitted = copy.deepcopy(model)
    tt.fit(fitted, "80%")
    default_loss(fitted, x).backward()
    assert session_of(fitted).budget == int(0.8 * plain) == tt.stats(fitted)["budget_bytes"]
    given = rf"Resnet does not fit in 30% \({text(int(0.3 * plain))}\) of plain's {text(plain)}: it needs at least (\d+)% \(.*\)\. Memory"
    tight = tt.fit(copy.deepcopy(model), "30%")
    for refused in (lambda: tt.plan(model, x, budget="30%"), lambda: tight(x)):
        with pytest.raises(tightfit.BudgetTooSmall, match=given) as error:
            refused()
    enough = re.search(given, str(error.value))[1]
    assert tt.plan(model, x, budget=f"{enough}%").budget_bytes >= error.value.needed_bytes
    for budget in ("0%", "-1%", "much%", -0.5, 1.5):
        with pytest.raises(tightfit.BadInput, match="budget="):
            tt.plan(model, x, budget=budget)


def test_less_memory_costs_time_down_to_the_least_budget(tmp_path):
    model, x = resnet()
    plan = tt.plan(model, x)
    sweep = plan.sweep((1.0, 0.8, 0.01))
    assert [share for share, _ in sweep.plans] == [1.0, 0.8, sweep.least / sweep.plain]
    assert sweep.refused == 0.01 and sweep._shown()[3]["added time"] == "does not fit"
    assert sweep._rows()[0]["overhead"] == 0 and all(one.peak <= one.budget_bytes for _, one in sweep.plans)
    assert sweep.least == plan.least <= min(one.peak for _, one in sweep.plans)
    assert f"least budget: {text(plan.least, enough=True)}" in sweep.svg() and f"plain: {text(plan.plain)}" in sweep.svg()
    assert "data:image/svg+xml" in sweep._repr_html_()
    added = dict(sweep.checkpoints)
    assert added[1.0] >= 0 and "checkpoints" in sweep.svg()
    assert [row["checkpoints"] for row in sweep._rows()] == [added.get(share) for share, _ in sweep.plans]
    with pytest.raises(tightfit.BadInput):
        plan.sweep(())


def test_errors_have_no_frames_of_what_found_them(monkeypatch):
    model, x = resnet()
    with pytest.raises(tightfit.BadInput, match="not its class") as short:
        tt.plan(model, x, optimizer=torch.optim.SGD)
    assert len(short.traceback) == 2
    monkeypatch.setenv("TIGHTFIT_VERBOSE", "1")
    with pytest.raises(tightfit.BadInput, match="not its class") as whole:
        tt.plan(model, x, optimizer=torch.optim.SGD)
    assert len(whole.traceback) > 2
    with pytest.raises(tightfit.BadInput, match="give SGD"):
        tt.fit(model, "1GiB", optimizer=torch.optim.SGD)


def test_the_largest_batch_fits_and_the_next_does_not():
    model, x = resnet()
    budget = tt.plan(model, torch.cat([x, x])).plain
    make = lambda batch: torch.randn(batch, *x.shape[1:])  # noqa: E731
    found = tt.largest_batch(model, make, budget)
    assert tt.plan(model, make(found.plain_batch)).plain <= budget < tt.plan(model, make(found.plain_batch + 1)).plain
    assert found.batch >= found.plain_batch >= 2 * len(x) and found.plan.fits
    with pytest.raises(tightfit.BudgetTooSmall):
        tt.plan(model, make(found.batch + max(1, found.batch // 32)), budget=budget)
    with pytest.raises(tightfit.BudgetTooSmall, match="Resnet with one sample does not fit"):
        tt.largest_batch(model, make, "1KiB")
    with pytest.raises(tightfit.BadInput, match="give a size"):
        tt.largest_batch(model, make, "60%")


def test_a_card_has_rates_and_memory_and_one_plain_step():
    model, x = resnet()
    here, card = tt.plan(model, x), tt.plan(model, x, costs="4090")
    # All but the CUDA context of the memory that it reports.
    assert card.budget_bytes == (24564 - 1024) << 20 and card.fits and card.device == "4090, by its data sheet"
    # The memory of libraries on a GPU counts.
    assert card.plain > here.plain and here.device == "this CPU"
    sweep = card.sweep((1.0, 0.8))
    assert {plan.plain for _, plan in sweep.plans} == {card.plain} == {sweep.plain}
    assert sweep.plans[0][1].overhead == 0 and sweep.plans[0][1].budget_bytes == card.plain
    slower = tt.plan(model, x, budget="80%", costs="l4")
    assert slower.plain == card.plain and slower._fitted.decided.plain.time_us > card._fitted.decided.plain.time_us
    with pytest.raises(tightfit.BadInput, match="4091.*4090"):
        tt.plan(model, x, costs="4091")


@pytest.mark.parametrize("most", [0, 1, 2, 7, 64, 1000])
def test_the_largest_number_is_found_for_any_growth(most):
    for needs in (lambda n: n, lambda n: n * n, lambda n: int(n**0.5 * 1000)):
        assert largest(needs, needs(most)) == most
    found = largest_fitting(lambda n: n <= most, most // 3)
    assert found <= most <= found + found // 64


@pytest.mark.parametrize("budget", [0, -5, "0", "much", "8 parsecs", None, 1.5, True])
def test_a_wrong_budget_is_named(budget):
    with pytest.raises(tightfit.BadInput, match="^budget(=|: ).* or 'auto'$|must be positive$"):
        tt.fit(nn.Linear(2, 2), budget)
    with pytest.raises(tightfit.BadInput, match="^host_budget(=|: )") as refused:
        tt.fit(nn.Linear(2, 2), "1GiB", host_budget=0 if budget is None else budget)
    assert "auto" not in str(refused.value)


def test_auto_needs_a_gpu():
    with pytest.raises(tightfit.BadInput, match="not on a GPU"):
        tt.fit(nn.Linear(2, 2), "auto")


def test_a_plan_that_takes_long_is_announced(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    monkeypatch.setenv("TIGHTFIT_VERBOSE", "1")
    model, x = resnet()
    fitted = fitted_copy(model, x)
    default_loss(fitted, x).backward()
    assert "still" not in capfd.readouterr().err
    monkeypatch.setattr(lines, "_SLOW", 0.0)
    fitted = fitted_copy(model, x)
    default_loss(fitted, x).backward()
    said = capfd.readouterr().err
    assert "Resnet: still recording a step and planning its memory, once for each form of inputs\n" in said
    assert said.index("still recording") < said.index("predicted peak")


def test_auto_says_what_it_leaves(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    monkeypatch.setenv("TIGHTFIT_VERBOSE", "1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 18 << 30)
    assert budget_bytes("auto", torch.device("cuda")) == int(0.97 * (78 << 30))
    said = capfd.readouterr().err
    assert said.startswith("tightfit: budget auto is 75.66 GiB of 80.00 GiB: 2.00 GiB are taken beside PyTorch's allocator (CUDA's context")
    assert said.endswith("and 2.34 GiB stay free\n")


def test_what_is_taken_beside_the_budget_is_said_once(monkeypatch, capfd):
    """CUDA's context and NCCL are not in the budget, which PyTorch's allocator is kept within."""
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    monkeypatch.setenv("TIGHTFIT_VERBOSE", "1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 18 << 30)
    assert beside(torch.device("cuda")) == 2 << 30 and beside(torch.device("cpu")) == 0
    monkeypatch.setattr(plans, "beside", lambda device: beside(torch.device("cuda")))
    model = tt.fit(Resnet(blocks=2).train(), "1GiB")
    for size in (4, 8):
        model(image(size)).mean().backward()
    first, second = (line for line in capfd.readouterr().err.splitlines() if "predicted peak" in line)
    assert first.endswith("; 2.00 GiB of the GPU are taken beside it (CUDA's context, NCCL and other libraries, other processes)")
    assert "beside" not in second


def test_a_block_covers_the_loss_and_several_models(monkeypatch):
    for link in (FAST, SLOW):
        set_link(monkeypatch, link)

        def run(block, steps=4):
            torch.manual_seed(2)
            first, second = Vae().train(), Resnet(blocks=2).train()
            optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-2)
            found = []
            for _ in range(steps):
                optimizer.zero_grad()
                with block(first, second, optimizer):
                    loss = second(first(image(2, 16))).logsumexp(1).square().mean()
                loss.backward()
                optimizer.step()
                found.append(torch.cat([p.grad.flatten() for p in [*first.parameters(), *second.parameters()]]))
            return torch.cat(found)

        class Nothing:
            def __init__(self, *_):
                pass

            def __enter__(self):
                pass

            def __exit__(self, *_):
                pass

        budgets = []

        def block(first, second, optimizer):
            name = f"block {link}"
            budgets.append(tt.budget("1300KiB", first, second, optimizer=optimizer, name=name))
            return budgets[-1]

        assert torch.equal(run(Nothing), run(block))
        assert budgets[0] is budgets[-1], "one place in the program has one set of plans"
        assert sum(decided(budgets[0].session.last).values()) > 0
        assert budgets[0].session.last.counts.packs > 0


def test_blocks_at_two_places_have_plans_of_their_own():
    model, x = resnet()
    first, second = tt.budget("8MiB", model), tt.budget("8MiB", model)
    assert first is second
    third = tt.budget("8MiB", model)
    assert third is not first


def test_a_block_that_cannot_fit_is_refused_before_it_runs():
    model = nn.Linear(512, 512)
    optimizer, ran = torch.optim.AdamW(model.parameters()), []
    with pytest.raises(tightfit.DoesNotFit, match="alone take .*give a larger budget, or use an optimizer") as refused:  # noqa: SIM117
        with tt.budget("2MiB", model, optimizer=optimizer):
            ran.append(model)
    assert not ran
    # The weights, their gradients, and two states of AdamW.
    assert refused.value.needed_bytes == 4 * 4 * (512 * 512 + 512)
    # Without an optimizer, nothing but the weights is known, and they fit.
    with tt.budget("2MiB", model):
        loss = model(torch.randn(1, 512)).sum()
    with pytest.raises(tightfit.DoesNotFit, match="it needs at least"):
        loss.backward()


def test_buckets_of_ranks_count(tmp_path):
    model, x = resnet()
    alone = tt.plan(model, x, optimizer=sgd(model))
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ranked = tt.plan(model, x, optimizer=sgd(model))
        # One bucket, rounded as a GPU's allocator does.
        assert bucket_bytes(nn.Linear(3, 5), torch.device("cuda")) == 512
        assert bucket_bytes(nn.Linear(3, 5).requires_grad_(False), torch.device("cuda")) == 0
    finally:
        distributed.destroy_process_group()
    assert ranked.plain == alone.plain + sum(4 * p.numel() for p in model.parameters())
    assert [note for note in ranked.assumed if "DistributedDataParallel" in note] and len(alone.assumed) + 1 == len(ranked.assumed)


def test_training_goes_on_where_a_plan_needed_more_than_predicted_and_none_needs_less(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    set_link(monkeypatch, FAST)
    model, x = resnet()
    fitted = fitted_copy(model, x)
    train(fitted, 1, x)
    session, plan = session_of(fitted), last_plan(fitted)
    # As after a step whose peak was over the budget.
    plan.stale, session.planner.reserve = True, session.budget
    fitted.load_state_dict(model.state_dict())
    assert same_bits(train(model, 2, x), train(fitted, 2, x))
    assert session.last is plan and not plan.stale and plan.over
    assert capfd.readouterr().err.count("no smaller plan was found; training goes on") == 1


def test_same_bits_sees_a_difference():
    model, x = resnet()
    other = fitted_copy(model, x)
    left, right = train(model, 1, x), train(other, 1, x)
    assert same_bits(left, right)
    with torch.no_grad():
        next(iter(other.parameters())).view(-1)[0] += 1
    assert not same_bits(train(model, 1, x), train(other, 1, x))
    assert tight_budget(model, x, 0.5) < tight_budget(model, x, 1.0)
    assert last_plan(other).counts.packs > 0


class Chooses(nn.Module):
    """Chooses its way by whole numbers: of its input, of a buffer, and of what it makes of them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 32)
        self.short, self.long = nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.register_buffer("limit", torch.tensor(4))

    def forward(self, ids):
        ids[0, 0] = 7
        positions = torch.arange(ids.shape[1])
        mask = (ids != 0) & (positions < self.limit + 100)
        length = int(mask.sum(1).max())
        x = self.table(ids[:, :length])
        x = self.long(x) if length > self.limit else self.short(x)
        return x if mask[:, :length].all() else x * mask[:, :length, None]


@pytest.mark.parametrize("ids", [[[1, 2, 0, 0]], [[1, 2, 3, 4, 5, 6]], [[1, 2, 3, 4, 5, 0], [1, 0, 0, 0, 0, 0]]])
def test_a_rehearsal_goes_the_way_that_whole_numbers_choose(ids, capfd, monkeypatch):
    torch.manual_seed(1)
    model, given = Chooses(), torch.tensor(ids)
    kept = given.clone()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.shape) or tensor, lambda tensor: tensor):
        model(given.clone())
    plan = tt.plan(model, given)
    shapes = [pack.view.shape for pack in plan._fitted.recorder.packs]
    assert shapes == saved
    assert torch.equal(given, kept) and model.limit == 4
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    tt.fit(model, "1GiB", optimizer=sgd(model))
    model(given).square().mean().backward()
    assert "cannot be rehearsed" not in capfd.readouterr().err
