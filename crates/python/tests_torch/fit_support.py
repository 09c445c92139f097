"""Training side by side, and live bytes counted from outside."""

import copy
import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import tightfit
import tightfit.torch as tt
import torch
from fit_models import resnet
from tightfit._budget.api import session_of
from tightfit._budget.compiled import operators, private
from tightfit._budget.memory import allocator
from tightfit._budget.plan import watch
from tightfit._budget.record import cost
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

PACKAGE = Path(tightfit.__file__).parent
# Links that make a plan offload, and recompute.
FAST, SLOW = 1e12, 1e6


def set_link(monkeypatch, bytes_per_s):
    rates = cost._CPU
    monkeypatch.setattr(cost, "_CPU", cost.Rates(rates.wide, rates.narrow, rates.memory, bytes_per_s, rates.call_us))


def sgd(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2, momentum=0.9)


def resident_bytes(fitted):
    lives = fitted.lives
    return sum(size for size, resident in zip(lives.bytes, lives.resident, strict=True) if resident)


def tight_budget(model, x, share, **options):
    """A budget that leaves a share of the step's need in addition to the resident bytes; at least the least budget."""
    plan = tt.plan(model, x, optimizer=sgd(model), **options)
    resident = resident_bytes(plan._fitted)
    return max(int(resident + (plan.plain - resident) * share), plan.least)


def fitted_copy(model, x, share=0.5, copies=None):
    """A copy of the model under a budget that must be planned for."""
    other = copy.deepcopy(model)
    tt.fit(other, tight_budget(other, x, share), optimizer=sgd(other))
    if copies is not None:
        session_of(other).planner.copies = copies
    return other


def fitted_resnet():
    """A small ResNet within 80% of its peak, and its inputs."""
    model, x = resnet(blocks=4)
    return fitted_copy(model, x, 0.8), x


def squares(outputs):
    return outputs.float().square().mean()


def default_loss(model, x):
    return squares(model(x))


def train(model, steps, x, loss=default_loss, seed=0):
    """Gradients after each step, and everything the model holds after the last."""
    optimizer = sgd(model)
    gradients = []
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(seed + step)
        loss(model, x).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    return gradients, [value.clone() for value in model.state_dict().values()], torch.get_rng_state()


def gradients(model):
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def same_bits(left, right):
    return (
        all(torch.equal(a, b) for step, other in zip(left[0], right[0], strict=True) for a, b in zip(step, other, strict=True))
        and all(torch.equal(a, b) for a, b in zip(left[1], right[1], strict=True))
        and torch.equal(left[2], right[2])
    )


def last_plan(model):
    fitted = session_of(model).last
    assert fitted is not None and fitted.schedule is not None, "nothing was planned"
    return fitted


def decided(fitted):
    kinds = [decision["decision"] for decision in fitted.schedule.decisions.values()]
    return {kind: kinds.count(kind) for kind in ("offload", "recompute")}


class LiveBytes(TorchDispatchMode):
    """Bytes of every storage that operations make while this is entered, counted until it dies; and their peak."""

    only_counts = True

    def __init__(self, known):
        super().__init__()
        self.live = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor):
                self.count(value.untyped_storage())
        self.peak = max(self.peak, self.live)
        return out

    def count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or key in self.alive:
            return

        def died(_):
            self.live -= size
            del self.alive[key]

        self.live += size
        self.alive[key] = weakref.ref(storage, died)


class DeviceBytes(LiveBytes):
    """The same for compiled graphs, without the host memory of offloaded values. It stays, so that no other storage gets its address."""

    def __init__(self, known):
        super().__init__(known)
        self.hosts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is not operators.offload:
            return super().__torch_dispatch__(function, types, args, kwargs)
        self.hosts.append(function(*args, **(kwargs or {})))
        self.known.add(self.hosts[-1].untyped_storage()._cdata)
        return self.hosts[-1]


def run_graphs_under(mode, monkeypatch):
    """Runs compiled graphs, which run as they are, under a dispatch mode."""
    boxed = private._boxed

    def within(graph, inputs):
        run = boxed(graph, inputs)

        def run_within(arguments):
            with mode:
                return run(arguments)

        run_within._boxed_call = True
        return run_within

    monkeypatch.setattr(private, "_boxed", within)


def measured_peak(model, x, cast=None):
    """Live bytes at most in one step, without parameters, buffers and the input; host memory of the plan does not count.

    The input is a new tensor in each step, and the outputs stay until the backward pass has ended, as in most programs, and as a rehearsal assumes.
    """
    x = x.clone()
    model.zero_grad()
    gc.collect()
    known = [x, *model.parameters(), *model.buffers()]
    session = session_of(model)
    known += [arena for arena, _ in session.arenas]
    with LiveBytes(known) as counter:
        with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
            outputs = model(x)
            loss = squares(outputs)
        loss.backward()
    return counter.peak


class Peaks:
    """PyTorch's statistics: `now` is the peak of the allocated bytes since the last reset, and of the reserved bytes, unless `most` is more."""

    def __init__(self, monkeypatch):
        self.now = self.resets = self.reserved = self.most = self.emptied = 0
        watch._unseen.clear()
        allocator._last.clear()
        allocator._caps.clear()
        # The allocator's tries.
        self.retries = 0
        monkeypatch.setattr(watch, "WATCHES", {"cpu"})
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: max(self.now, self.most))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.reserved)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)
        monkeypatch.setattr(allocator, "reserved_and_retries", lambda device: (self.reserved, self.retries))

    def reset(self, device):
        self.now = 0
        self.resets += 1

    def empty(self):
        self.emptied += 1


def passes(model, x, count):
    """The plan of the last of `count` passes."""
    for _ in range(count):
        model.zero_grad()
        default_loss(model, x).backward()
    return session_of(model).last


class Current:
    """A `torch.cuda.device`: the GPU that is current inside."""

    now = 0

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.before, Current.now = Current.now, self.device.index

    def __exit__(self, *_):
        Current.now = self.before


PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
                                    for i in range(5)])
    def forward(self, x, *, scale):
        return self.body(x).mean((2, 3)) * scale
model, loss, x = Model(), nn.CrossEntropyLoss(), torch.randn(8, 3, 32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    value = loss(model(x, scale=2.0), torch.zeros(8, dtype=torch.long))
    value.backward()
    optimizer.step()
    print("loss", value.item().hex())
print("done")
"""


def launched(tmp_path, budget, program=PROGRAM, own_site=None):
    """A program as `tightfit run --budget` starts it."""
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    path = [str(PACKAGE / "_budget/site"), *([own_site] if own_site else []), str(PACKAGE.parent)]
    environment = {**os.environ, "PYTHONPATH": ":".join(path), "TIGHTFIT_BUDGET": budget, "TIGHTFIT_QUIET": "0", "TIGHTFIT_VERBOSE": "1"}
    command = [sys.executable, str(tmp_path / "program.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
