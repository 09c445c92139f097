"""The bounds on the host memory of plans, and the times at which it is taken and freed."""

import re
import weakref
from types import SimpleNamespace

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import FAST, Current, last_plan, set_link, sgd, tight_budget
from tightfit._budget.api import session_of
from tightfit._budget.memory import copies, host
from tightfit._budget.memory.copies import CpuCopies
from tightfit._budget.record import measure

pytestmark = pytest.mark.usefixtures("measured")


def test_host_memory_is_bounded(monkeypatch):
    measure.MEASURED.discard("cpu")
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    budget = tight_budget(model, x, 0.5)
    free = tt.plan(model, x, budget=budget, optimizer=sgd(model))
    assert free.fits and free.host > 0
    bound = tt.plan(model, x, budget=budget, optimizer=sgd(model), host_budget=free.host // 2)
    assert bound.fits and bound.host <= free.host // 2
    tt.fit(model, budget, optimizer=sgd(model), host_budget=free.host // 2)
    model(x).square().mean().backward()
    assert all(arena.numel() <= free.host // 2 for arena, _ in session_of(model).arenas)
    tt.unfit(model)
    least = tt.plan(model, x, optimizer=sgd(model), host_budget=1).least
    tt.fit(model, least // 4, optimizer=sgd(model), host_budget=1)
    with pytest.raises(tightfit.DoesNotFit, match="at most 1 bytes of host memory"):
        model(x)
    with pytest.raises(tightfit.BadInput):
        tt.fit(Resnet(), "1GiB", host_budget="none")


def test_host_memory_is_a_share_of_what_is_free(monkeypatch, tmp_path):
    def write(name, content):
        (tmp_path / name).write_text(content)
        return tmp_path / name

    monkeypatch.setattr(host, "_MEMORY", write("meminfo", "MemTotal: 100 kB\nMemAvailable:  2000000 kB\n"))
    monkeypatch.setattr(host, "_GROUPS", ())
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    free = 2_000_000 * 1024
    assert host.host_bytes() == int(0.7 * free)
    monkeypatch.setattr(host, "_GROUPS", ((write("max", "1000000\n"), write("current", "400000\n")),))
    assert host.host_bytes() == int(0.7 * 600_000), "a container has less"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert host.host_bytes() == int(0.7 * 600_000 / 4), "ranks share it"
    write("max", "max\n")
    assert host.host_bytes() == int(0.7 * free / 4)
    write("meminfo", "")
    assert host.host_bytes() is None


class Locked(CpuCopies):
    """A host on which few bytes can be pinned."""

    def __init__(self, most):
        self.most = most

    def pinned(self, size):
        return self.arena(size) if size <= self.most else None

    def pinnable(self, size):
        return min(size, self.most)


def locked_resnet(monkeypatch, share, most):
    """A model whose plan moves more than can be pinned, and the bytes that it would move."""
    measure.MEASURED.discard("cpu")
    set_link(monkeypatch, FAST)
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    budget = tight_budget(model, x, share)
    free = tt.plan(model, x, budget=budget, optimizer=sgd(model))
    tt.fit(model, budget, optimizer=sgd(model))
    session_of(model).planner.copies = Locked(int(free.host * most))
    monkeypatch.setattr(host.resource, "getrlimit", lambda limit: (65536, 65536))
    monkeypatch.setattr(host, "_GROUPS", ())
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    return model, x, free.host


def test_a_plan_moves_no_more_than_can_be_pinned_and_says_so(monkeypatch, capfd):
    model, x, free = locked_resnet(monkeypatch, 0.6, 0.5)
    model(x).square().mean().backward()
    fitted = last_plan(model)
    assert 0 < fitted.schedule.host_bytes <= free // 2 and fitted.peak <= session_of(model).budget
    (arena, _), = session_of(model).arenas
    assert arena.numel() == fitted.schedule.host_bytes
    said = capfd.readouterr().err
    assert re.search(r"of the .* KiB of host memory that its plan needs, .* KiB can be pinned \(`ulimit -l` allows 65536 bytes: raise it", said), said


def test_the_memory_of_a_plan_is_taken_before_its_first_pass(monkeypatch):
    model, x, free = locked_resnet(monkeypatch, 0.6, 2.0)
    taken = []
    arena = CpuCopies.arena
    monkeypatch.setattr(CpuCopies, "arena", lambda self, size: taken.append((size, session_of(model).last)) or arena(self, size))
    for _ in range(2):
        model.zero_grad()
        model(x).square().mean().backward()
    assert taken == [(free, None)]


def test_memory_that_no_plan_needs_any_more_is_given_back(monkeypatch):
    model, x, free = locked_resnet(monkeypatch, 0.6, 2.0)
    found = session_of(model)

    def planned_anew(budget):
        # As after a first step that needed less than was assumed.
        found.planner.budget = budget
        found.last.stale = True
        model.zero_grad()
        model(x).square().mean().backward()
        return [arena.numel() for arena, _ in found.arenas]

    model(x).square().mean().backward()
    sizes = [arena.numel() for arena, _ in found.arenas]
    assert sizes == [free]
    larger = int(found.budget * 1.1)
    sizes = planned_anew(larger)
    assert sizes == [found.last.schedule.host_bytes] and 0 < sizes[0] < free
    # A little more than is needed stays.
    found.arenas[0] = torch.empty(int(1.02 * sizes[0]), dtype=torch.uint8), lambda: None
    assert planned_anew(larger) == [int(1.02 * sizes[0])]
    assert planned_anew(1 << 30) == []
    # An arena that an earlier graph still needs stays, too.
    owner = Locked(0)
    found.planner.host.found = [(torch.empty(1 << 20, dtype=torch.uint8), owner_of) for owner_of in (weakref.ref(owner), lambda: None)]
    assert planned_anew(1 << 30) == [1 << 20]


def test_a_budget_that_needs_more_than_can_be_pinned_is_refused_with_the_limit(monkeypatch):
    model, x, _ = locked_resnet(monkeypatch, 0.6, 0.0)
    monkeypatch.setattr("tightfit._budget.record.builder.may_run_again", lambda *_: False)
    with pytest.raises(tightfit.DoesNotFit, match=r"of host memory that a plan needs, 0 bytes can be pinned \(`ulimit -l` allows 65536 bytes: raise it"):
        model(x)


def test_what_can_be_pinned_is_found_in_a_few_tries(monkeypatch):
    registered = []

    def register(address, size, flags):
        registered.append(size)
        return 0 if size <= 10 << 20 else 2

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda address: 0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(copies, "_forget_error", lambda: None)
    on_gpu = copies.CudaCopies(torch.device("cuda", 0))
    assert on_gpu.pinned(64 << 20) is None and on_gpu.pinned(1 << 20).numel() == 1 << 20
    registered.clear()
    assert 9 << 20 <= on_gpu.pinnable(64 << 20) <= 10 << 20 and len(registered) == copies._PIN_TRIES


def test_why_no_more_can_be_pinned_names_the_limit_that_binds(monkeypatch, tmp_path):
    monkeypatch.setattr(host.resource, "getrlimit", lambda limit: (1 << 30, 1 << 30))
    monkeypatch.setattr(host, "_GROUPS", ())
    assert host.pin_limits(1 << 29).startswith(" (the driver refuses more")
    assert "`ulimit -l` allows 1073741824 bytes" in host.pin_limits(1 << 31)
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "current").write_text("400000\n")
    monkeypatch.setattr(host, "_GROUPS", ((tmp_path / "max", tmp_path / "current"),))
    assert host.pin_limits(1 << 20) == " (the container has 600000 bytes left: give it more)"
