"""What the allocator of a GPU may reserve, with its statistics played here."""

import gc
from types import SimpleNamespace

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import FAST, Peaks, fitted_resnet, passes, set_link, sgd
from tightfit._budget.api import session_of
from tightfit._budget.eager import limit, planner
from tightfit._budget.memory import cap as budget
from tightfit._budget.memory import retries
from tightfit._budget.plan import fitted as fitted_plans
from tightfit._budget.plan import watch
from tightfit._budget.plan.fitted import least_of
from tightfit._budget.plan.reserved import Reserved
from tightfit._budget.site import tightfit_allocator


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    set_link(monkeypatch, FAST)


def test_gaps_that_the_bound_has_no_room_for_get_some_in_one_more_plan(monkeypatch, capfd):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    found = session_of(fitted)
    room = budget.room_for_gaps(found.budget)
    # Only the last of the passes that are watched counts.
    peaks.most = 9 * found.budget
    passes(fitted, x, watch.WATCHED - 1)
    peaks.most = found.budget + 3 * room
    first = passes(fitted, x, 1)
    assert first.watch.reserved == peaks.most and not first.stale
    second = passes(fitted, x, 1)
    assert first.stale and found.planner.gaps == 2 * room and second.peak <= found.budget - 2 * room
    assert "because of gaps between blocks; planning again, with " in capfd.readouterr().err
    # Whatever is reserved then, it is not planned again.
    peaks.most = 2 * found.budget
    assert passes(fitted, x, watch.WATCHED + 1) is second and not second.stale


def test_segments_grow_where_the_user_set_nothing_else_up(monkeypatch):
    cuda, changed = torch.device("cuda"), []
    for name in tightfit_allocator.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch._C._accelerator_setAllocatorSettings", changed.append, raising=False)
    assert not budget.expand_segments(torch.device("cpu")) and not changed
    assert budget.expand_segments(cuda) and changed == ["expandable_segments:True"]
    for setting, grows in (("expandable_segments:True", True), ("max_split_size_mb:64", False)):
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
        assert budget.expand_segments(cuda) is grows and len(changed) == 1


def test_gaps_that_were_not_predicted_get_room_in_one_more_plan(monkeypatch):
    peaks, asked, known = Peaks(monkeypatch), [], planner.make_plan
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)

    def made(*arguments, **options):
        asked.append(arguments[-2])
        return known(*arguments, **options)

    monkeypatch.setattr(planner, "make_plan", made)
    monkeypatch.setattr(planner, "expand_segments", lambda device: True)
    for unpredicted in (-1000, 1000):
        fitted, x = fitted_resnet()
        found = session_of(fitted)
        first = passes(fitted, x, 1)
        peaks.most = found.budget + budget.room_for_gaps(found.budget) + 10_000
        monkeypatch.setattr(planner, "reserved", lambda *_: Reserved(peaks.most - unpredicted, None))
        second = passes(fitted, x, watch.WATCHED)
        assert asked.pop(0) == budget.most_reserved(found.budget)
        if unpredicted < 0:
            # It was predicted, and no better plan found.
            assert second is first and found.planner.gaps == 0 and not asked
        else:
            # The next plan may be lucky; the one after it need not be.
            assert second is not first and found.planner.gaps == unpredicted // 4
            third = passes(fitted, x, watch.WATCHED)
            assert third is not second and found.planner.gaps == unpredicted // 4 + unpredicted
            assert passes(fitted, x, watch.WATCHED) is third
            assert asked == [budget.most_reserved(found.budget) - gaps for gaps in (unpredicted // 4, unpredicted // 4 + unpredicted)]


@pytest.mark.parametrize("over", [False, True])
def test_a_budget_in_which_the_allocator_has_no_room_is_refused_with_one_in_which_it_has(monkeypatch, over):
    Peaks(monkeypatch)
    monkeypatch.setattr(planner, "expand_segments", lambda device: True)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    size = session_of(fitted).budget
    # Whatever is given up, so much is reserved.
    needed = size + size // fitted_plans.CROWDED + (1000 if over else -1000)
    monkeypatch.setattr(fitted_plans, "reserved", lambda *_: Reserved(budget.most_reserved(needed), None))
    if not over:
        passes(fitted, x, 1)
        return
    with pytest.raises(tightfit.DoesNotFit, match=r"the least budget found is \d+ bytes .*, with .* for gaps between the blocks") as refused:
        passes(fitted, x, 1)
    assert refused.value.needed_bytes == pytest.approx(needed, rel=1e-5) and refused.value.limit_bytes == size


def test_no_budget_is_refused_for_gaps_once_training_has_begun(monkeypatch):
    Peaks(monkeypatch)
    monkeypatch.setattr(planner, "expand_segments", lambda device: True)
    fitted, x = fitted_resnet()
    passes(fitted, x, 1)
    needed = 2 * session_of(fitted).budget
    monkeypatch.setattr(fitted_plans, "reserved", lambda *_: Reserved(budget.most_reserved(needed), None))
    found = passes(fitted, torch.cat([x, x[:1]]), 1)
    assert found.bound is not None and found.needed >= needed - 2 and not found.is_roomy


def test_what_the_allocator_has_already(monkeypatch):
    block = {"active": {"size": 30, "state": "active_allocated"}, "free": {"size": 10, "state": "inactive"}}
    known = {"device": 0, "segment_type": "large", "stream": 7, "total_size": 40, "active_size": 30, "blocks": list(block.values())}
    others = [{"device": 1}, {"segment_type": "small"}, {"stream": 8}, {"is_expandable": True}, {"active_size": 0}, {"segment_pool_id": (0, 3)}]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [known, {**known, "segment_pool_id": (0, 0)}, *({**known, **other} for other in others)])
    assert budget.there_on(torch.device("cuda", 0)) == (80, [10, 10])
    assert budget.there_on(torch.device("cpu")) == (0, ())


def test_the_least_budget_for_what_is_reserved():
    for least in (128 << 20, 1 << 30, 4 << 30, 7 << 30, 80 << 30):
        found = budget.budget_for(budget.most_reserved(least))
        assert abs(found - least) <= 2 and budget.most_reserved(found) >= budget.most_reserved(least) - 2
    assert budget.budget_for(0) == 0


def test_gaps_that_cannot_be_given_back_get_room_as_well(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    found = session_of(fitted)
    room = budget.room_for_gaps(found.budget)
    peaks.reserved = 3 * room
    first = passes(fitted, x, watch.WATCHED)
    assert first.watch.gap == 3 * room
    first.watch.seen = found.budget
    assert passes(fitted, x, 1) is not first and found.planner.gaps == 2 * room


def test_gaps_that_the_bound_has_room_for_change_no_plan(monkeypatch):
    peaks = Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    peaks.reserved = budget.room_for_gaps(session_of(fitted).budget)
    peaks.most = session_of(fitted).budget + peaks.reserved
    first = passes(fitted, x, watch.WATCHED)
    first.watch.seen = session_of(fitted).budget
    assert passes(fitted, x, 2) is first and not first.stale and session_of(fitted).limit.needed == first.watch.seen + peaks.reserved


def test_gaps_get_a_share_of_the_budget_at_most_and_leave_a_plan(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    found = session_of(fitted)
    peaks.most = 5 * found.budget
    first = passes(fitted, x, watch.WATCHED)
    second = passes(fitted, x, 1)
    assert second is not first and found.planner.gaps == found.budget // planner.GAPS
    # Where less has no plan, half of the gaps or none will do.
    assert least_of(second) <= second.peak <= found.budget


def test_what_is_cached_is_no_gap(monkeypatch):
    """Nor are gaps of the first pass, behind which the optimizer's state takes its place."""
    peaks = Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(peaks, "reserved", min(peaks.reserved, 1000)))
    for reserved in (9000, 5000, 600, 7000):
        peaks.reserved = reserved
        plan = passes(fitted, x, 1)
        assert plan.watch.gap == (0 if reserved == 9000 else 1000)


def test_an_allocator_without_room_gets_some_before_it_fails(monkeypatch, capfd):
    Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    bounds, waits, size = [], iter(range(1000)), session_of(fitted).budget
    monkeypatch.setattr(limit, "enforce", lambda needed, device, owner: bounds.append(needed) or needed)
    first = passes(fitted, x, watch.WATCHED + 1 + 2 * retries.LOOKS)
    room = budget.room_for_gaps(size)
    assert bounds[-1] == size, "where none waits, nothing changes"
    # One more in each pass: the bound gives way at once, and then there is another plan.
    bounds.clear()
    monkeypatch.setattr(retries, "retries", lambda device: next(waits))
    passes(fitted, x, 2)
    assert bounds == [size + room] and session_of(fitted).planner.gaps == 0
    second = passes(fitted, x, watch.WATCHED)
    assert second is not first and session_of(fitted).planner.gaps == room and second.peak <= size - room
    assert passes(fitted, x, 10 * retries.LOOKS) is second
    # The first time, nothing is said.
    assert bounds[bounds.index(size) :] == [size, *(size + times * room for times in range(1, limit.LOOSENED + 1)), size + size // limit.MORE]
    said = capfd.readouterr().err
    assert said.count("planning again, with ") == 1
    assert said.count("waited for the GPU; it may reserve ") == limit.LOOSENED


def test_one_wait_of_the_allocator_changes_no_plan(monkeypatch):
    Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    bounds, size = [], session_of(fitted).budget
    monkeypatch.setattr(limit, "enforce", lambda needed, device, owner: bounds.append(needed) or needed)
    first = passes(fitted, x, watch.WATCHED + 1)
    for count in range(1, 4):
        monkeypatch.setattr(retries, "retries", lambda device, count=count: count)
        assert passes(fitted, x, retries.LOOKS + 1) is first
    assert bounds == [size, size + budget.room_for_gaps(size)]


def test_an_allocator_without_room_for_what_fits_gets_some_at_once(monkeypatch):
    """A plan that gives nothing up has no more room to leave."""
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    tt.fit(model, 1 << 30, optimizer=sgd(model))
    bounds, waits = [], iter(range(1000))
    monkeypatch.setattr(limit, "enforce", lambda needed, device, owner: bounds.append(needed) or needed)
    monkeypatch.setattr(retries, "retries", lambda device: next(waits))
    first = passes(model, x, watch.WATCHED)
    # Nothing sees the gaps of its passes, so what was reserved counts.
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 2 << 30)
    assert passes(model, x, 2) is first and bounds == [2 << 30, (2 << 30) + (1 << 27)] and peaks.reserved == 0


def test_algorithms_that_are_tried_are_bounded_and_no_measure_of_what_is_needed(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 9 << 30)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    tt.fit(model, 1 << 30, optimizer=sgd(model))
    bounds = []
    monkeypatch.setattr(limit, "enforce", lambda needed, device, owner: bounds.append(needed) or needed)
    first = passes(model, x, 1)
    peaks.now = 8 << 30
    assert passes(model, x, 1) is first and first.watch.seen == 0
    peaks.now = 1 << 30
    assert passes(model, x, watch.WATCHED - 1) is first and first.watch.seen == 1 << 30
    assert bounds == [5 << 28] * watch.WATCHED + [1 << 30]


def judged(monkeypatch, turns):
    """Whether the allocator often tried again before a model's passes, where each turn is a pass of ours or of another model, and how often
    it tries again in it."""
    ours, other, device = retries.Retries(), retries.Retries(), torch.device("cuda", 7)
    counted, found = 0, []
    for mine, more in turns:
        monkeypatch.setattr(retries, "retries", lambda device, counted=counted: counted)
        (ours if mine else other).begin(device)
        if mine:
            found.append(ours.are_often())
        counted += more
    return found


def test_tries_of_the_allocator_are_of_the_model_whose_pass_runs(monkeypatch):
    most, few = retries.LOOKS // 2, retries.LOOKS // 2 - 1
    rest = [(True, 0)] * retries.LOOKS
    assert judged(monkeypatch, [(True, 1)] * most + rest)[most]
    assert not any(judged(monkeypatch, [(True, 1)] * few + rest)), "half of the passes at least"
    assert not any(judged(monkeypatch, [(True, 100)] + rest)), "an evaluation behind one pass"
    assert not any(judged(monkeypatch, [(True, 0), (False, 1)] * (2 * retries.LOOKS))), "another model on the same GPU"
    assert any(judged(monkeypatch, [(True, 1), (False, 0)] * (2 * retries.LOOKS)))
    assert not any(judged(monkeypatch, [(True, 1)] * retries.LOOKS + 3 * rest)[2 * retries.LOOKS :]), "long ago"


def test_a_bound_is_lifted_while_another_plan_is_watched(monkeypatch):
    Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    events = []
    monkeypatch.setattr(limit, "enforce", lambda needed, device, owner: events.append("bound") or needed)
    monkeypatch.setattr(limit, "release", lambda owner: events.append("lifted"))
    passes(fitted, x, watch.WATCHED + 2)
    assert events[-1] == "bound" and events.count("bound") == 1
    passes(fitted, image(2), 1)
    events.clear()
    passes(fitted, x, 2)
    passes(fitted, image(2), 1)
    assert events == ["bound", "lifted"]
    # Once both were watched, the bound holds for both.
    passes(fitted, image(2), 2)
    events.clear()
    for _ in range(3):
        passes(fitted, image(2), 1)
        passes(fitted, x, 1)
    assert events == ["bound"]


def test_a_plan_that_needs_more_than_the_budget_is_bounded_by_what_it_needs(monkeypatch):
    """And is not planned again for that: no other plan was found."""
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(budget, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    found, bounds = session_of(fitted), []
    monkeypatch.setattr(limit, "enforce", lambda needed, device, owner: bounds.append(needed) or needed)
    plan = passes(fitted, x, 1)
    plan.over, peaks.reserved = True, 1 << 20
    for _ in range(watch.WATCHED):
        plan.watch.seen = 2 * found.budget
        assert passes(fitted, x, 1) is plan and not plan.stale
    assert bounds == [2 * found.budget + (1 << 20)]


GIB = 1 << 30


class Allocator:
    """PyTorch's allocator on a GPU of 80 GiB: the share that is allowed."""

    def __init__(self, monkeypatch):
        self.share = 1.0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * GIB))
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


def test_a_bound_has_room_for_gaps(monkeypatch):
    allocator, device, owner = Allocator(monkeypatch), torch.device("cuda", 0), Owner()
    budget.enforce(GIB, device, owner)
    assert allocator.allowed() == 1.125, "gaps of small models are no smaller"
    budget.enforce(16 * GIB, device, owner)
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
    monkeypatch.setattr("tightfit._budget.eager.limit.release", released.append)
    model = tt.fit(Resnet(blocks=3), "1GiB")
    found = session_of(model)
    tt.unfit(model)
    assert released == [found.limit]
