"""The bytes that the allocator of a GPU may reserve, with its statistics played here."""

import gc
from types import SimpleNamespace

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import FAST, Peaks, fitted_resnet, passes, set_link, sgd
from tightfit._budget.api import session_of
from tightfit._budget.eager import planner
from tightfit._budget.memory import allocator
from tightfit._budget.plan import fitted as fitted_plans
from tightfit._budget.plan import watch
from tightfit._budget.plan.reserved import Reserved
from tightfit._budget.site import tightfit_allocator


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    set_link(monkeypatch, FAST)


def test_segments_grow_where_the_user_set_nothing_else_up(monkeypatch):
    cuda, changed = torch.device("cuda"), []
    for name in tightfit_allocator.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch._C._accelerator_setAllocatorSettings", changed.append, raising=False)
    assert not allocator.expand_segments(torch.device("cpu")) and not changed
    assert allocator.expand_segments(cuda) and changed == ["expandable_segments:True"]
    for setting, grows in (("expandable_segments:True", True), ("max_split_size_mb:64", False)):
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
        assert allocator.expand_segments(cuda) is grows and len(changed) == 1


@pytest.mark.parametrize("over", [False, True])
def test_a_budget_in_which_the_allocator_has_no_room_is_refused_with_one_in_which_it_has(monkeypatch, over):
    Peaks(monkeypatch)
    monkeypatch.setattr(planner, "expand_segments", lambda device: True)
    monkeypatch.setattr(allocator, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    size = session_of(fitted).budget
    # The allocator reserves this size for any decisions.
    needed = size + size // fitted_plans.CROWDED + (1000 if over else -1000)
    monkeypatch.setattr(fitted_plans, "reserved", lambda *_: Reserved(allocator.most_reserved(needed), None))
    if not over:
        passes(fitted, x, 1)
        return
    with pytest.raises(tightfit.DoesNotFit, match=r"it needs at least .*, with .* for gaps between the blocks") as refused:
        passes(fitted, x, 1)
    assert refused.value.needed_bytes == pytest.approx(needed, rel=1e-5) and refused.value.limit_bytes == size


def test_no_budget_is_refused_for_gaps_once_training_has_begun(monkeypatch):
    Peaks(monkeypatch)
    monkeypatch.setattr(planner, "expand_segments", lambda device: True)
    fitted, x = fitted_resnet()
    passes(fitted, x, 1)
    needed = 2 * session_of(fitted).budget
    monkeypatch.setattr(fitted_plans, "reserved", lambda *_: Reserved(allocator.most_reserved(needed), None))
    found = passes(fitted, torch.cat([x, x[:1]]), 1)
    assert found.schedule is not None and found.needed >= needed - 2 and not found.is_roomy


def test_what_the_allocator_has_already(monkeypatch):
    block = {"active": {"size": 30, "state": "active_allocated"}, "free": {"size": 10, "state": "inactive"}}
    known = {"device": 0, "segment_type": "large", "stream": 7, "total_size": 40, "active_size": 30, "blocks": list(block.values())}
    others = [{"device": 1}, {"segment_type": "small"}, {"stream": 8}, {"is_expandable": True}, {"active_size": 0}, {"segment_pool_id": (0, 3)}]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [known, {**known, "segment_pool_id": (0, 0)}, *({**known, **other} for other in others)])
    assert allocator.there_on(torch.device("cuda", 0)) == (80, [10, 10])
    assert allocator.there_on(torch.device("cpu")) == (0, ())


def test_the_least_budget_for_what_is_reserved():
    for least in (128 << 20, 1 << 30, 4 << 30, 7 << 30, 80 << 30):
        found = allocator.budget_for(allocator.most_reserved(least))
        assert abs(found - least) <= 2 and allocator.most_reserved(found) >= allocator.most_reserved(least) - 2
    assert allocator.budget_for(0) == 0


GIB = 1 << 30


def bounds_of(monkeypatch):
    """The bytes to which the allocator is bounded, as they come."""
    bounds = []
    monkeypatch.setattr(allocator, "enforce", lambda needed, device, owner: bounds.append(needed) or needed)
    return bounds


def test_the_allocator_is_bounded_once_the_watched_passes_are_over(monkeypatch):
    """They show the memory of the loss, of the optimizer and of whatever else the program holds: a bound before that could end it."""
    Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    bounds, size = bounds_of(monkeypatch), session_of(fitted).budget
    passes(fitted, x, watch.WATCHED)
    assert bounds == []
    passes(fitted, x, watch.WATCHED)
    assert bounds == [size + size // 4]


def test_bytes_that_another_pass_reserved_are_given_back_and_end_nothing(monkeypatch):
    peaks = Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    bounds, size = bounds_of(monkeypatch), session_of(fitted).budget
    peaks.reserved = 3 * size
    first = passes(fitted, x, watch.WATCHED + 1)
    assert bounds == [3 * size], "blocks that are still in use"
    peaks.reserved, emptied = size, peaks.emptied
    passes(fitted, x, 1)
    # As after an evaluation.
    for _ in range(3):
        peaks.reserved = 2 * size + 2 * allocator.room_for_gaps(size)
        passes(fitted, x, 1)
        peaks.reserved = size
        assert passes(fitted, x, allocator.LOOKS) is first
    assert bounds == [3 * size] and peaks.emptied == emptied + 3


def test_an_allocator_whose_gaps_often_exceed_the_budget_gets_another_plan_and_then_a_higher_limit(monkeypatch, capfd):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(allocator, "_LEAST_GAPS", 0)
    fitted, x = fitted_resnet()
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    bounds, size = bounds_of(monkeypatch), session_of(fitted).budget
    room = allocator.room_for_gaps(size)
    first = passes(fitted, x, 2 * allocator.LOOKS)
    peaks.reserved = size + room + 1
    second = passes(fitted, x, allocator.LOOKS)
    assert second is not first and session_of(fitted).planner.gaps == room and second.peak <= size - room
    assert passes(fitted, x, watch.WATCHED + 1) is second
    emptied = peaks.emptied
    assert passes(fitted, x, 5 * allocator.LOOKS) is second
    assert peaks.emptied == emptied and session_of(fitted).cap.limit == peaks.reserved, "emptying the cache in each pass would be slow"
    assert bounds == [size + size // 4] * 2
    assert capfd.readouterr().err.count("planning again, with ") == 1


def test_a_few_crowded_passes_change_no_plan(monkeypatch):
    peaks = Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    first = passes(fitted, x, watch.WATCHED + 1)
    limit = session_of(fitted).cap.limit
    for _ in range(3):
        peaks.reserved = 2 * limit
        assert passes(fitted, x, 1) is first
        peaks.reserved = limit
        assert passes(fitted, x, allocator.LOOKS) is first
    assert session_of(fitted).cap.limit == limit


def test_a_bound_at_which_the_allocator_found_no_room_rises(monkeypatch):
    """The next pass may need a little more."""
    peaks = Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    bounds, size = bounds_of(monkeypatch), session_of(fitted).budget
    passes(fitted, x, watch.WATCHED + 1)
    for _ in range(2):
        peaks.retries += 1
        passes(fitted, x, allocator.LOOKS)
    assert bounds == [size + part * (size // 4) for part in (1, 2, 3)]


def test_steps_that_fit_as_they_are_may_reserve_what_they_did(monkeypatch):
    """No plan has room for their gaps."""
    peaks = Peaks(monkeypatch)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    tt.fit(model, 1 << 30, optimizer=sgd(model))
    bounds = bounds_of(monkeypatch)
    first = passes(model, x, 1)
    peaks.most = peaks.reserved = 2 << 30
    emptied = peaks.emptied
    assert passes(model, x, 3 * allocator.LOOKS) is first and bounds == [5 << 29] and peaks.emptied <= emptied + watch.WATCHED


def test_algorithms_that_are_tried_are_bounded_and_no_measure_of_what_is_needed(monkeypatch):
    peaks = Peaks(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 9 << 30)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    tt.fit(model, 1 << 30, optimizer=sgd(model))
    bounds = bounds_of(monkeypatch)
    first = passes(model, x, 1)
    peaks.now = 8 << 30
    assert passes(model, x, 1) is first and first.watch.seen == 0
    passes(model, x, watch.WATCHED)
    assert bounds == [5 << 28] * (watch.WATCHED + 1)


def judged(monkeypatch, turns):
    """Whether a cap reports before each of its passes that passes were often crowded. Each turn is a pass of one of two models, with the number
    of the allocator's tries in it."""
    bounds_of(monkeypatch)
    monkeypatch.setattr(allocator, "_last", {})
    monkeypatch.setattr(allocator, "_caps", {})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    ours, other, device = allocator.Cap(), allocator.Cap(), torch.device("cuda", 7)
    counted, found = 0, []
    for mine, more in turns:
        monkeypatch.setattr(allocator, "reserved_and_retries", lambda device, counted=counted: (0, counted))
        often = (ours if mine else other).begin(device, GIB, holds=True)
        if mine:
            found.append(often)
        counted += more
    return found


def test_tries_of_the_allocator_are_of_the_model_whose_pass_runs(monkeypatch):
    most, few = allocator.LOOKS // 2, allocator.LOOKS // 2 - 1
    rest = [(True, 0)] * allocator.LOOKS
    assert judged(monkeypatch, [(True, 0), *[(True, 1)] * most, *rest])[most + 1]
    assert not any(judged(monkeypatch, [(True, 0), *[(True, 1)] * few, *rest])), "half of the passes at least"
    assert not any(judged(monkeypatch, [(True, 0), (True, 100), *rest])), "an evaluation behind one pass"
    assert not any(judged(monkeypatch, [(True, 0), (False, 1)] * (2 * allocator.LOOKS))), "another model on the same GPU"
    assert any(judged(monkeypatch, [(True, 1), (False, 0)] * (2 * allocator.LOOKS)))


def test_a_bound_is_lifted_while_another_plan_shows_what_it_needs(monkeypatch):
    Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    events = []
    monkeypatch.setattr(allocator, "enforce", lambda needed, device, owner: events.append("bound") or needed)
    monkeypatch.setattr(allocator, "release", lambda owner: events.append("lifted"))
    passes(fitted, x, watch.WATCHED + 2)
    assert events[-1] == "bound" and events.count("bound") == 1
    events.clear()
    passes(fitted, image(2), watch.WATCHED)
    assert set(events) == {"lifted"}
    events.clear()
    for _ in range(3):
        passes(fitted, image(2), 1)
        passes(fitted, x, 1)
    assert events == ["bound"]


def test_a_plan_that_needs_more_than_the_budget_is_bounded_by_what_it_needs(monkeypatch):
    """And is not planned again for that: no other plan was found."""
    Peaks(monkeypatch)
    fitted, x = fitted_resnet()
    found, plan = session_of(fitted), passes(fitted, x, 1)
    bounds = bounds_of(monkeypatch)
    plan.over = True
    for _ in range(watch.WATCHED):
        plan.watch.seen = 2 * found.budget
        assert passes(fitted, x, 1) is plan and not plan.stale
    assert bounds == [2 * found.budget + found.budget // 2]


class Allocator:
    """PyTorch's allocator on a GPU of 80 GiB: the share that is allowed."""

    def __init__(self, monkeypatch):
        self.share = 1.0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * GIB))
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: self.share, raising=False)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.set)
        monkeypatch.setattr(allocator, "_bounds", {})
        monkeypatch.setattr(allocator, "_shares", {})

    def set(self, share, device):
        self.share = share

    def allowed(self):
        return round(80 * self.share, 3)


class Owner:
    pass


def test_bounds_end_with_their_owners(monkeypatch):
    gpu, device = Allocator(monkeypatch), torch.device("cuda", 0)
    one, two = Owner(), Owner()
    allocator.enforce(8 * GIB, device, one)
    assert gpu.allowed() == 8.25
    allocator.enforce(16 * GIB, device, two)
    allocator.enforce(8 * GIB, device, one)
    assert gpu.allowed() == 16.5, "the largest counts, whichever came last"
    allocator.release(two)
    assert gpu.allowed() == 8.25
    allocator.enforce(79 * GIB, device, one)
    assert gpu.allowed() == 80
    allocator.enforce(8 * GIB, device, one)
    del one
    gc.collect()
    assert gpu.allowed() == 80


def test_the_bound_of_a_deleted_model_is_lifted(monkeypatch):
    gpu, device, cap = Allocator(monkeypatch), torch.device("cuda", 0), allocator.Cap()
    monkeypatch.setattr(allocator, "_last", {})
    monkeypatch.setattr(allocator, "_caps", {})
    monkeypatch.setattr(allocator, "reserved_and_retries", lambda device: (0, 0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    cap.begin(device, 8 * GIB, True)
    assert gpu.allowed() == 10.312
    del cap
    gc.collect()
    assert gpu.allowed() == 80
    other = allocator.Cap()
    assert not other.begin(device, 16 * GIB, True)


def test_a_bound_has_room_for_gaps(monkeypatch):
    gpu, device, owner = Allocator(monkeypatch), torch.device("cuda", 0), Owner()
    allocator.enforce(GIB, device, owner)
    assert gpu.allowed() == 1.125, "gaps of small models are no smaller"
    allocator.enforce(16 * GIB, device, owner)
    assert gpu.allowed() == 16.5


def test_a_bound_of_the_program_is_put_back(monkeypatch):
    gpu, device, owner = Allocator(monkeypatch), torch.device("cuda", 0), Owner()
    gpu.share = 0.5
    allocator.enforce(79 * GIB, device, owner)
    assert gpu.allowed() == 40
    allocator.enforce(8 * GIB, device, owner)
    allocator.release(owner)
    assert gpu.share == 0.5


def test_unfit_lifts_the_bound(monkeypatch):
    released = []
    monkeypatch.setattr("tightfit._budget.memory.allocator.release", released.append)
    model = tt.fit(Resnet(blocks=3), "1GiB")
    found = session_of(model)
    tt.unfit(model)
    assert released == [found.cap]
