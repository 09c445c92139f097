"""Peaks that are seen and bounds that are set on a GPU, whose statistics are played here."""

import gc
import re
from types import SimpleNamespace

import pytest
import torch

import tightfit.torch as tt
from fit_models import Resnet, image
from fit_support import FAST, SLOW, LiveBytes, default_loss, fitted_copy, last_plan, set_link, sgd, tight_budget
from tightfit._fit import budget, copies, forms, planner, retries, session, watch
from tightfit._fit.doors import session_of
from tightfit._fit.fitted import least_of
from tightfit._fit.rehearse import is_recording


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("TIGHTFIT_QUIET", "1")
    torch.set_num_threads(1)
    set_link(monkeypatch, FAST)


def fitted_resnet():
    """A small ResNet within 80% of its peak, and its inputs."""
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    return fitted_copy(model, x, 0.8), x


class Peaks:
    """PyTorch's statistics: `now` is the peak since the last reset."""

    def __init__(self, monkeypatch):
        self.now = self.resets = self.reserved = 0
        monkeypatch.setattr(watch, "WATCHES", {"cpu"})
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.now)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.reserved)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def reset(self, device):
        self.now = 0
        self.resets += 1


def test_what_fits_is_watched_and_planned_anew(monkeypatch, capfd):
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    plain = tt.plan(model, x, optimizer=sgd(model)).peak
    tt.fit(model, plain + 4096, optimizer=sgd(model))
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    default_loss(model, x).backward()
    assert session_of(model).last.bound is None
    peaks.now = plain + 4096 + (256 << 10)
    model.zero_grad()
    # The reserve has 8 MiB to spare on a GPU, which is more than this step has.
    monkeypatch.setattr(planner, "SPARE", 0)
    default_loss(model, x).backward()
    assert last_plan(model).bound is not None
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
    monkeypatch.setattr(planner, "SPARE", 0)
    fitted, x = fitted_resnet()
    found = session_of(fitted)
    loss = default_loss(fitted, x)
    first = last_plan(fitted)
    peaks.now = found.budget + 1024
    loss.backward()
    fitted.zero_grad()
    default_loss(fitted, x).backward()
    assert first.stale and last_plan(fitted) is not first and last_plan(fitted).assumed.reserve >= 1024


def passes(model, x, count):
    """The plan of the last of so many passes."""
    for _ in range(count):
        model.zero_grad()
        default_loss(model, x).backward()
    return session_of(model).last


def test_gaps_between_blocks_get_room_in_one_more_plan(monkeypatch, capfd):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    found = session_of(fitted)
    over = found.budget // 16
    peaks.reserved = found.budget + over
    first = passes(fitted, x, watch.WATCHED)
    first.watch.seen = first.peak
    second = passes(fitted, x, 1)
    assert first.stale and second.peak + peaks.reserved - first.peak <= found.budget
    assert "over the budget; planning again, with room for that" in capfd.readouterr().err
    # Whatever is reserved then, it is not planned again.
    assert passes(fitted, x, watch.WATCHED + 1) is second and not second.stale


def test_gaps_leave_a_plan_where_none_is_found_for_less(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    found = session_of(fitted)
    peaks.reserved = 2 * found.budget - 1
    first = passes(fitted, x, watch.WATCHED)
    second = passes(fitted, x, 1)
    # Half of the gaps has no plan either, and the least that has one would be far slower.
    assert second is not first and least_of(second) < second.peak <= found.budget


def test_what_other_code_reserves_is_no_gap(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    found = session_of(fitted)
    peaks.reserved = found.budget
    first = passes(fitted, x, 2)
    # An evaluation between two passes.
    peaks.reserved = 2 * found.budget
    assert passes(fitted, x, 1) is first and first.watch.kept == found.budget
    # Then its memory is given back.
    peaks.reserved = found.budget
    assert passes(fitted, x, watch.WATCHED) is first and not first.stale and first.watch.kept == found.budget


def test_an_allocator_without_room_gets_some_in_a_while(monkeypatch, capfd):
    Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    bounds, waits = [], iter(range(1000))
    monkeypatch.setattr(session, "enforce", lambda budget, device, owner: bounds.append(budget) or budget)
    monkeypatch.setattr(retries, "retries", lambda device: 0)
    passes(fitted, x, watch.WATCHED + 1 + 2 * retries.LOOKS)
    assert len(bounds) == 1, "where none waits, nothing changes"
    # One more in each pass.
    monkeypatch.setattr(retries, "retries", lambda device: next(waits))
    passes(fitted, x, 10 * retries.LOOKS)
    assert len(bounds) == 1 + session.LOOSENED
    assert "waited for the GPU; it may reserve" in capfd.readouterr().err


def judged(monkeypatch, turns):
    """What is judged of a model's passes, where each turn is a pass of ours or of another model, and how often it tries again."""
    ours, other, device = retries.Retries(), retries.Retries(), torch.device("cuda", 7)
    counted, found = 0, []
    for mine, more in turns:
        monkeypatch.setattr(retries, "retries", lambda device, counted=counted: counted)
        judgment = (ours if mine else other).begin(device)
        if mine:
            found.append(judgment)
        counted += more
    return found


def test_tries_of_the_allocator_are_of_the_model_whose_pass_runs(monkeypatch):
    most, few = retries.LOOKS // 2, retries.LOOKS // 2 - 1
    rest = [(True, 0)] * retries.LOOKS
    assert sum(judged(monkeypatch, [(True, 1)] * most + rest)) == 1
    assert not any(judged(monkeypatch, [(True, 1)] * few + rest)), "half of the passes at least"
    assert not any(judged(monkeypatch, [(True, 100)] + rest)), "an evaluation behind one pass"
    assert not any(judged(monkeypatch, [(True, 0), (False, 1)] * (2 * retries.LOOKS))), "another model on the same GPU"
    assert any(judged(monkeypatch, [(True, 1), (False, 0)] * (2 * retries.LOOKS)))
    # What was counted for passes that were judged is not counted again.
    assert sum(judged(monkeypatch, [(True, 1)] * retries.LOOKS + 3 * rest)) == 1


def test_a_bound_is_lifted_while_another_plan_is_watched(monkeypatch):
    Peaks(monkeypatch)
    monkeypatch.setattr(retries, "retries", lambda device: 0)
    fitted, x = fitted_resnet()
    found, events = session_of(fitted), []
    monkeypatch.setattr(session, "enforce", lambda budget, device, owner: events.append("bound") or budget)
    monkeypatch.setattr(session, "release", lambda owner: events.append("lifted"))
    passes(fitted, x, watch.WATCHED + 2)
    assert events[-1] == "bound" and events.count("bound") == 1
    events.clear()
    passes(fitted, image(2), 1)
    passes(fitted, x, 2)
    passes(fitted, image(2), 1)
    assert events == ["lifted", "bound", "lifted"]
    # One that needs more than the budget has no bound.
    found.last.over, found.last.watch.passes = True, watch.WATCHED
    events.clear()
    passes(fitted, image(2), 2)
    assert events == [] and not found._bounded


class Counting(LiveBytes):
    """An allocator's statistics, counted from outside."""

    def __init__(self, model, x, monkeypatch):
        known = [x, *model.parameters(), *model.buffers()]
        super().__init__(known)
        self.there = sum(tensor.untyped_storage().nbytes() for tensor in known)
        monkeypatch.setattr(watch, "WATCHES", {"cpu"})
        monkeypatch.setattr(watch, "SPARE", 0)
        monkeypatch.setattr(planner, "SPARE", 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.there + self.live)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.there + self.peak)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.there + self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

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
    assert second.bound.outcome.rebuilt_us < first.bound.outcome.rebuilt_us
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
    (second, _), (third, _), _ = counted_steps(model, image(5), optimizer, counting)
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
    assert large == (4 << 20) + (11 << 20) + watch.SPARE
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


GIB = 1 << 30


class Allocator:
    """PyTorch's allocator on a GPU of 80 GiB: what was reserved at most, and the share that is allowed."""

    def __init__(self, monkeypatch):
        self.most, self.share = 0, 1.0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * GIB))
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.most)
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: self.share, raising=False)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.set)
        monkeypatch.setattr(budget, "_bounds", {})
        monkeypatch.setattr(budget, "_shares", {})

    def set(self, share, device):
        self.share = share

    def allowed(self):
        return round(80 * self.share, 3)


class Owner:
    pass


def test_bounds_end_with_their_owners(monkeypatch):
    allocator, device = Allocator(monkeypatch), torch.device("cuda", 0)
    one, two = Owner(), Owner()
    budget.enforce(8 * GIB, device, one)
    assert allocator.allowed() == 8.25
    budget.enforce(16 * GIB, device, two)
    budget.enforce(8 * GIB, device, one)
    assert allocator.allowed() == 16.5, "the largest counts, whichever came last"
    budget.release(two)
    assert allocator.allowed() == 8.25
    budget.enforce(79 * GIB, device, one)
    assert allocator.allowed() == 80
    budget.enforce(8 * GIB, device, one)
    del one
    gc.collect()
    assert allocator.allowed() == 80


def test_a_bound_has_room_for_what_steps_within_the_budget_reserved(monkeypatch):
    allocator, device, owner = Allocator(monkeypatch), torch.device("cuda", 0), Owner()
    budget.enforce(GIB, device, owner)
    assert allocator.allowed() == 1.125, "gaps of small models are no smaller"
    # Also what was given back since, which may be needed again.
    allocator.most = 16 * GIB
    budget.enforce(8 * GIB, device, owner)
    assert allocator.allowed() == 16.5


def test_a_bound_of_the_program_is_put_back(monkeypatch):
    allocator, device, owner = Allocator(monkeypatch), torch.device("cuda", 0), Owner()
    allocator.share = 0.5
    budget.enforce(79 * GIB, device, owner)
    assert allocator.allowed() == 40
    budget.enforce(8 * GIB, device, owner)
    budget.release(owner)
    assert allocator.share == 0.5


def test_unfit_lifts_the_bound(monkeypatch):
    released = []
    monkeypatch.setattr("tightfit._fit.session.release", released.append)
    model = tt.fit(Resnet(blocks=3), "1GiB")
    found = session_of(model)
    tt.unfit(model)
    assert released == [found]


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
