"""Under `cudnn.benchmark`, convolutions run again on the thread that knows their algorithms."""

import copy
import subprocess
import sys
import threading

import pytest
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import SLOW, default_loss, equal, fitted_copy, gradients, last_plan, set_link, sgd, tight_budget
from tightfit._budget.api import session_of
from tightfit._budget.eager import backward_thread as threads


@pytest.fixture(autouse=True)
def computes_again(monkeypatch):
    set_link(monkeypatch, SLOW)
    yield
    threads._needing.clear()
    threads.share(threads, False)


def fitted(benchmark, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    return model, fitted_copy(model, x), x


def test_a_backward_pass_that_computes_convolutions_again_runs_on_the_thread_of_the_forward_pass(monkeypatch):
    model, other, x = fitted(True, monkeypatch)
    loss = default_loss(other, x)
    assert last_plan(other).schedule.convolves and not torch._C._is_multithreading_enabled()
    loss.backward()
    default_loss(model, x).backward()
    assert equal(gradients(other), gradients(model))
    assert last_plan(other).counts.rebuilt and last_plan(other).counts.elsewhere == 0
    tt.unfit(other)
    assert torch._C._is_multithreading_enabled()


def test_without_benchmark_autograd_keeps_its_threads(monkeypatch):
    _, other, x = fitted(False, monkeypatch)
    default_loss(other, x).backward()
    assert last_plan(other).schedule.convolves and torch._C._is_multithreading_enabled()


def test_a_program_that_asked_for_one_thread_keeps_it(monkeypatch):
    with torch.autograd.set_multithreading_enabled(False):
        _, other, x = fitted(True, monkeypatch)
        default_loss(other, x).backward()
        tt.unfit(other)
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


def test_one_thread_is_kept_where_a_program_had_it_for_the_first_step_alone(monkeypatch):
    with torch.autograd.set_multithreading_enabled(False):
        _, other, x = fitted(True, monkeypatch)
        default_loss(other, x).backward()
    loss = default_loss(other, x)
    assert not torch._C._is_multithreading_enabled()
    loss.backward()
    tt.unfit(other)
    assert torch._C._is_multithreading_enabled()


def test_one_thread_is_kept_as_long_as_any_model_needs_it(monkeypatch):
    _, first, x = fitted(True, monkeypatch)
    plain = tt.fit(Resnet(blocks=1).train(), "1GiB")
    second = fitted_copy(Resnet(blocks=4).train(), x)
    for model in (first, second, plain):
        loss = default_loss(model, x)
        assert not torch._C._is_multithreading_enabled(), "what needs no thread of its own may share a graph with what does"
        loss.backward()
    tt.unfit(first)
    assert not torch._C._is_multithreading_enabled()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    default_loss(second, x).backward()
    assert torch._C._is_multithreading_enabled()


def test_a_backward_pass_on_another_thread_is_told_once(monkeypatch, capfd):
    _, other, x = fitted(True, monkeypatch)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    for _ in range(3):
        thread = threading.Thread(target=default_loss(other, x).backward)
        thread.start()
        thread.join()
    # The first pass has another plan, for parameters without gradients.
    assert last_plan(other).counts.elsewhere == 2
    assert capfd.readouterr().err.count("runs its backward pass on another thread") == 1


def in_threads(count, work):
    """The errors in several threads that do the same at once."""
    wrong = []

    def run(number):
        try:
            wrong.extend(work(number))
        except Exception as error:
            wrong.append((number, repr(error)))

    running = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return wrong


def gradients_of(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("first", ["planned", "rehearsed", "recorded"])
def test_threads_share_a_fitted_model(first, monkeypatch, capfd):
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    other = fitted_copy(model, x, 0.7)
    if first == "recorded":
        other[4].register_forward_hook(lambda module, inputs, output: None)
    if first == "planned":
        gradients_of(default_loss(other, x), other)
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")

    def work(number):
        plain = copy.deepcopy(model)
        for step in range(6):
            given = image(4)
            found = gradients_of(default_loss(other, given), other)
            if not equal(found, gradients_of(default_loss(plain, given), plain)):
                yield number, step

    assert in_threads(3, work) == []
    session, said = session_of(other), capfd.readouterr().err
    assert "another path" not in said and "differently" not in said
    assert not session._offloaded and not session._threads and session._recording is None
    assert torch.autograd._engine_run_backward.__module__.startswith("torch")
    gradients_of(default_loss(other, x), other)
    gradients_of(default_loss(other, x), other)
    assert session.last.schedule is not None and session.last.counts.packs > 0
    assert not any(module._forward_pre_hooks for name, module in other.named_modules() if name)


def test_threads_share_a_block(monkeypatch):
    torch.manual_seed(1)
    model, x = Resnet(blocks=4).train(), image(4)
    optimizer = sgd(model)
    block = tt.budget(tight_budget(model, x, 0.8), model, optimizer=optimizer, name="block")

    def work(number):
        plain = copy.deepcopy(model)
        for step in range(5):
            given = image(4)
            with block:
                loss = default_loss(model, given)
            if not equal(gradients_of(loss, model), gradients_of(default_loss(plain, given), plain)):
                yield number, step

    assert in_threads(3, work) == []
    assert not block.session._offloaded and not block.session._threads


FORK = """
import os, torch, tightfit.torch as tt
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
x = torch.randn(8, 3, 32, 32)
tt.plan(net, x)
child = os.fork()
if not child:
    net(x).square().mean().backward()
    os._exit(0)
os._exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_trains_after_a_plan():
    """Fake tensors make a GPU known to autograd, which would start a thread for it that no child has."""
    assert subprocess.run([sys.executable, "-c", FORK], check=False, timeout=120).returncode == 0
