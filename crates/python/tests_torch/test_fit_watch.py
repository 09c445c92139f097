"""Peaks that are seen on a GPU, whose statistics are played here, and the plans that follow from them."""

import re
import weakref
from types import SimpleNamespace

import pytest
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import (
    FAST,
    SLOW,
    LiveBytes,
    Peaks,
    default_loss,
    equal,
    fitted_copy,
    fitted_resnet,
    gradients,
    last_plan,
    passes,
    set_link,
    sgd,
    tight_budget,
)  # fmt: skip
from tightfit._budget.api import session_of
from tightfit._budget.eager import planner
from tightfit._budget.memory import allocator, copies
from tightfit._budget.plan import watch
from tightfit._budget.record import inputs as forms
from tightfit._budget.record.rehearse import is_recording


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    set_link(monkeypatch, FAST)


def test_what_fits_is_watched_and_planned_anew(monkeypatch, capfd):
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    plain = tt.plan(model, x, optimizer=sgd(model)).peak
    tt.fit(model, plain + 4096, optimizer=sgd(model))
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    default_loss(model, x).backward()
    assert session_of(model).last.schedule is None
    peaks.now = plain + 4096 + (256 << 10)
    model.zero_grad()
    # The reserve has 8 MiB to spare on a GPU, which is more than this step has.
    monkeypatch.setattr(planner, "SPARE_BYTES", 0)
    default_loss(model, x).backward()
    assert last_plan(model).schedule is not None
    assert "256.00 KiB over the budget; planning again" in capfd.readouterr().err


def test_the_peak_of_what_fits_is_that_of_all_its_passes(monkeypatch):
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    tt.fit(model, "1GiB", optimizer=sgd(model))
    for peak in (1000, 3000, 2000):
        plan = passes(model, x, 1)
        peaks.now = peak
    assert passes(model, x, 1) is plan and plan.watch.seen == 3000


def test_other_code_between_passes_is_not_blamed_on_a_plan(monkeypatch):
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    fitted = fitted_copy(model, x)
    found = session_of(fitted)
    for _ in range(6):
        fitted.zero_grad()
        default_loss(fitted, x).backward()
        first = last_plan(fitted)
        # An evaluation with a large batch.
        peaks.now = 1 << 40
    assert last_plan(fitted) is first and not first.stale and first.watch.passes == watch.WATCHED
    # Before a pass, and after each of its phases.
    assert first.watch.seen <= found.budget and peaks.resets == 4 * watch.WATCHED


def test_a_pass_that_needs_more_is_seen_at_its_end(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(planner, "SPARE_BYTES", 0)
    fitted, x = fitted_resnet()
    found = session_of(fitted)
    loss = default_loss(fitted, x)
    first = last_plan(fitted)
    peaks.now = found.budget + 1024
    loss.backward()
    fitted.zero_grad()
    default_loss(fitted, x).backward()
    assert first.stale and last_plan(fitted) is not first and last_plan(fitted).assumed.reserve >= 1024


def test_what_fits_is_watched_though_other_models_run_in_turn_with_it(monkeypatch):
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    models, x = [Resnet(blocks=3).train() for _ in range(2)], image(4)
    for model in models:
        tt.fit(model, "1GiB", optimizer=sgd(model))
    for peak in (1000, 2000, 3000, 4000):
        plan = passes(models[peak // 1000 % 2], x, 1)
        peaks.now = peak
    assert plan.watch.seen == 2000 and session_of(models[1]).last.watch.seen == 3000


class Counting(LiveBytes):
    """An allocator's statistics, counted from outside."""

    def __init__(self, model, x, monkeypatch):
        known = [x, *model.parameters(), *model.buffers()]
        super().__init__(known)
        self.there = sum(tensor.untyped_storage().nbytes() for tensor in known)
        monkeypatch.setattr(watch, "WATCHES", {"cpu"})
        monkeypatch.setattr(watch, "SPARE_BYTES", 0)
        monkeypatch.setattr(planner, "SPARE_BYTES", 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.there + self.live)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.there + self.peak)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.there + self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def count(self, storage):
        if not is_recording():
            super().count(storage)

    def reset(self, device):
        self.peak = self.live


def counted_steps(model, x, optimizer, counting, loss=default_loss, steps=3):
    """The plan of each step, and the peak of its passes."""
    found = []
    for _ in range(steps):
        with counting:
            optimizer.zero_grad()
            counting.reset(None)
            value = loss(model, x)
            value.backward()
            del value
            fitted = last_plan(model)
            found.append((fitted, fitted.watch.seen))
            optimizer.step()
    return found


def large_loss(model, x):
    """Needs some 400 KiB, where the assumed one needs next to nothing."""
    return model(x).repeat(1, 512).square().mean()


def test_a_loss_that_needs_more_than_assumed_is_planned_for_from_the_second_step_on(monkeypatch, capfd):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    optimizer, size = sgd(model), tight_budget(model, x, 0.75)
    tt.fit(model, size, optimizer=optimizer)
    counting = Counting(model, x, monkeypatch)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    (first, peak), (second, later), (third, last) = counted_steps(model, x, optimizer, counting, large_loss)
    assert peak > size >= max(later, last) and second is third is not first
    assert first.assumed.between == 0 < second.assumed.between
    assert any(operation["name"] == "between the passes" for operation in second.step.data["operations"])
    said = [line for line in capfd.readouterr().err.splitlines() if "anew" in line]
    assert len(said) == 1 and "planned anew, as its first step was seen: between its passes, the program needs " in said[0], said


def test_a_state_smaller_than_assumed_is_not_paid_for_after_the_first_step(monkeypatch, capfd):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    plain = tt.plan(model, x).plain
    tt.fit(model, int(plain * 0.75))
    counting = Counting(model, x, monkeypatch)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    (first, _), (second, later), (third, last) = counted_steps(model, x, optimizer, counting)
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert first.assumed.state == 2 * weights and second.assumed.state == 0 and second is third
    assert max(later, last) <= session_of(model).budget
    assert second.schedule.outcome.rebuilt_us < first.schedule.outcome.rebuilt_us
    said = [line for line in capfd.readouterr().err.splitlines() if "anew" in line]
    assert len(said) == 1 and re.search(r"seen: the optimizer's state is 0 bytes \(.* KiB assumed\)$", said[0]), said


def test_a_step_that_is_as_predicted_keeps_its_plan(monkeypatch, capfd):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    optimizer, size = sgd(model), tight_budget(model, x, 0.75)
    tt.fit(model, size, optimizer=optimizer)
    counting = Counting(model, x, monkeypatch)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    plans = {id(fitted): fitted for fitted, _ in counted_steps(model, x, optimizer, counting)}
    assert len(plans) == 1 and plans.popitem()[1].learned
    assert "anew" not in capfd.readouterr().err


def test_a_state_that_was_seen_stays_known_for_later_forms(monkeypatch, capfd):
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    tt.fit(model, int(tt.plan(model, x).plain * 0.75))
    counting = Counting(model, x, monkeypatch)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    optimizer = torch.optim.AdamW(model.parameters())
    (first, _), *_ = counted_steps(model, x, optimizer, counting)
    larger = image(5)
    counting.known.add(larger.untyped_storage()._cdata)
    (second, _), (third, _), _ = counted_steps(model, larger, optimizer, counting)
    assert first is not second is third and second.learned and second.assumed.state >= first.assumed.state > 0
    assert "anew" not in capfd.readouterr().err


def test_a_form_whose_plan_was_over_the_budget_is_not_planned_less_carefully_again(monkeypatch):
    """As passes that grow by more in some steps than in others: plans would take turns."""
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    optimizer = sgd(model)
    tt.fit(model, tight_budget(model, x, 0.75), optimizer=optimizer)
    growths = [watch.Growth(growth, 0, 0) for growth in (64 << 10, 0, 64 << 10, 0, 0)]
    monkeypatch.setattr(watch.Watch, "growth", lambda *_: growths.pop(0))
    plans = {id(fitted): fitted for fitted, _ in counted_steps(model, x, optimizer, Counting(model, x, monkeypatch), steps=5)}
    assert [fitted.assumed.reserve for fitted in plans.values()] == [0, 64 << 10]


def test_what_was_seen_of_one_form_is_not_taken_from_another():
    found, device = planner.Planner("model", 100 << 20), torch.device("cpu")

    def over(form, seen, reserve):
        assumed = watch.Assumed(0, 0, 0, reserve, 0)
        return found.exceeded(SimpleNamespace(watch=SimpleNamespace(seen=seen), peak=90 << 20, assumed=assumed), form)

    assert not over("small", 100 << 20, 0) and found._reserve(device, "small") == 0
    assert over("large", 101 << 20, 4 << 20)
    large = found._reserve(device, "large")
    assert large == (4 << 20) + (11 << 20) + watch.SPARE_BYTES
    # A form that nothing is known of begins with the most; one that was seen keeps its own.
    assert found._reserve(device, "small") == large
    found._reserves["small"] = 1 << 20
    assert found._reserve(device, "large") == large and found._reserve(device, "small") == 1 << 20


def test_a_model_on_another_device_has_plans_and_copies_of_its_own(monkeypatch):
    model, x = Resnet(blocks=3), image(4)
    one, other = torch.device("cuda", 0), torch.device("cuda", 1)
    assert forms.form_of(model, [x], one) == forms.form_of(model, [x], torch.device("cuda", 0)) != forms.form_of(model, [x], other)
    assert forms.form_of_block(model, one) != forms.form_of_block(model, other)
    monkeypatch.setattr(planner, "copies_for", lambda device: SimpleNamespace(device=device))
    found = planner.Planner("model", 1 << 30, host_budget=1 << 20)
    first, arenas = found.copies_on(one), found.host
    assert found.copies_on(one) is first and found.host is arenas
    assert found.copies_on(other).device == other and found.host is not arenas and found.host.budget == 1 << 20


def test_outputs_that_a_program_still_has_count_until_the_forward_pass_ends(monkeypatch, capfd):
    """As in programs with `outputs = model(x)`: the earlier outputs go between the passes, before memory peaks."""
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    model[-1] = torch.nn.Linear(16, 4096)
    optimizer = sgd(model)
    tt.fit(model, tight_budget(model, x, 0.75), optimizer=optimizer)
    counting, plans, peaks = Counting(model, x, monkeypatch), [], []
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    with counting:
        for _ in range(4):
            # In place, so that the plan of steps with gradients is made while outputs are there.
            counting.reset(None)
            outputs = model(x)
            loss = outputs.float().mean()
            loss.backward()
            del loss
            plans.append(last_plan(model))
            peaks.append(plans[-1].watch.seen)
            optimizer.step()
    first, second, third, last = plans
    size = outputs.untyped_storage().nbytes()
    assert first.assumed.before == 0 and second.assumed.before == size and second is third is last is not first
    assert second.assumed.outside == first.assumed.outside and max(peaks) <= session_of(model).budget
    held = [tensor["name"] for tensor in second.step.data["tensors"]].index("outputs of the pass before")
    lives = second.lives
    assert lives.first[held] == 0 and lives.last[held] < lives.backward_start and lives.first_backward[held] < 0
    assert "anew" not in capfd.readouterr().err


def test_outputs_count_where_their_bytes_are():
    found, device = planner.Planner("model", 1 << 20), torch.device("cpu")
    dense = torch.ones(4, 8)
    outputs = [dense, dense[1:], torch.ones(4, 4).to_sparse(), torch.ones(4, device="meta"), torch.nn.Parameter(torch.ones(2))]
    found.outputs = [weakref.ref(output) for output in outputs]
    assert found.before(device) == 4 * 8 * 4
    del outputs, dense
    assert found.before(device) == 0


def test_growth_is_measured_beside_outputs_of_the_pass_before():
    size = 300 << 20
    found = watch.Watch(torch.device("cpu"), begin=1000 + size, before=size, forward=1000 + size + 50, between=1000 + size + 60, backward=1000 + 70)
    operations = [{"name": name, "stage": stage} for name, stage in (("pack", "forward"), ("loss", "forward"), ("unpack", "backward"))]
    lives = SimpleNamespace(bytes=[1000], resident=[True], backward_start=2, operations=operations)
    # 40 bytes are predicted in each phase, and the outputs in the forward pass besides.
    outcome = SimpleNamespace(live=[1000 + size + 40, 1000 + 40, 1000 + 40])
    # They are there still when the forward pass has just ended, which does not count as growth between the passes.
    assert found.growth(lives, outcome, 1, size) == (30, 0, 1040)
    found.between = 1000 + 2 * size
    assert found.growth(lives, outcome, 1, size) == (30, 2 * size - 40, 1040)
    found.backward = 1000
    assert found.growth(lives, outcome, 1, size).passes == 10, "of the forward pass"
    # A plan that was made without them.
    outcome.live[0] -= size
    assert found.growth(lives, outcome, 1, 0).passes == 10


def test_a_pass_in_which_algorithms_are_tried_teaches_nothing(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    optimizer = sgd(model)
    tt.fit(model, tight_budget(model, x, 0.75), optimizer=optimizer)
    learned = []
    monkeypatch.setattr(watch.Watch, "growth", lambda self, *_: learned.append(self.passes))
    monkeypatch.setattr(allocator, "reserved_and_retries", lambda device: (0, 0))
    counted_steps(model, x, optimizer, Counting(model, x, monkeypatch), steps=4)
    assert learned == [1]


def test_a_form_without_a_plan_keeps_to_that_of_steps_which_differ_by_gradients_alone(monkeypatch, capfd):
    set_link(monkeypatch, SLOW)
    fitted, x = fitted_resnet()
    plain = Resnet(blocks=4).train()
    plain.load_state_dict(fitted.state_dict())
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    for step in range(3):
        for model in (plain, fitted):
            default_loss(model, x).backward()
        assert equal(gradients(plain), gradients(fitted)), step
        # No plan is found for the second one, in which gradients accumulate.
        session_of(fitted).planner.reserve = session_of(fitted).budget
    first, second = session_of(fitted).plans.values()
    assert second.schedule is first.schedule and second.over and not first.over and session_of(fitted).last is second
    assert second.counts is not first.counts and second.counts.rebuilt > 0 == second.counts.unplanned
    assert "For these inputs, it keeps to its plan for steps without gradients before them" in capfd.readouterr().err


def test_nothing_is_learned_before_the_optimizer_has_updated_the_model(monkeypatch):
    """As where gradients accumulate: its state is not there yet."""
    set_link(monkeypatch, SLOW)
    torch.manual_seed(1)
    model, x = Resnet(blocks=5).train(), image(4)
    optimizer = torch.optim.AdamW(model.parameters())
    tt.fit(model, int(tt.plan(model, x, optimizer=optimizer).plain * 0.75))
    counting = Counting(model, x, monkeypatch)
    with counting:
        for _ in range(3):
            default_loss(model, x).backward()
    assert not last_plan(model).learned


def test_memory_that_cannot_be_pinned_leaves_no_error(monkeypatch):
    cleared = []
    runtime = SimpleNamespace(cudaHostRegister=lambda *_: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(copies, "_forget_error", lambda: cleared.append(True))
    memory = copies._Pinned(-1, 4096)
    assert not memory.pinned and cleared == [True]


def test_benchmark_is_part_of_what_a_plan_is_for(monkeypatch):
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    tt.fit(model, tight_budget(model, x, 0.8), optimizer=sgd(model))
    for benchmark in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
        model.zero_grad()
        default_loss(model, x).backward()
    assert len(session_of(model).plans) == 2
