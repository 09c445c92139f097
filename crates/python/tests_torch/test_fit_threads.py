"""Under `cudnn.benchmark`, convolutions run again on the thread that knows their algorithms."""

import threading

import pytest
import torch

import tightfit.torch as tt
from fit_models import Resnet, image
from fit_support import SLOW, default_loss, equal, fitted_copy, gradients, last_plan, set_link
from tightfit._fit import threads


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
    assert last_plan(other).bound.convolves and not torch._C._is_multithreading_enabled()
    loss.backward()
    default_loss(model, x).backward()
    assert equal(gradients(other), gradients(model))
    assert last_plan(other).counts.rebuilt and last_plan(other).counts.elsewhere == 0
    tt.unfit(other)
    assert torch._C._is_multithreading_enabled()


def test_without_benchmark_autograd_keeps_its_threads(monkeypatch):
    _, other, x = fitted(False, monkeypatch)
    default_loss(other, x).backward()
    assert last_plan(other).bound.convolves and torch._C._is_multithreading_enabled()


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
    # The first pass has a plan of its own, for parameters without gradients.
    assert last_plan(other).counts.elsewhere == 2
    assert capfd.readouterr().err.count("runs its backward pass on another thread") == 1
