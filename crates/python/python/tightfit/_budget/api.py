"""What users call: `fit`, `plan` and `budget`."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from .._sweep import Sweep
from ..errors import BadInput
from .answer import LargestBatch, Plan
from .eager.hooks import fitted_by, install, uninstall
from .eager.running import push_hooks
from .eager.session import Session
from .known import launched
from .largest import largest, largest_fitting
from .memory.sizes import UNLIMITED, Share, budget_bytes, budget_of
from .messages import short
from .question import Question
from .record.cost import Card, card_of
from .summary import stats_of

__all__ = ["Budget", "LargestBatch", "Plan", "Sweep", "budget", "fit", "largest_batch", "plan", "session_of", "stats", "unfit"]


@short
def fit(
    model: nn.Module,
    budget: int | float | str,
    optimizer: Any = None,
    loss: Callable[[Any], Tensor] | None = None,
    host_budget: int | str | None = None,
    recompute: bool = True,
    compile: bool = False,
) -> nn.Module:
    """Trains a model within a budget of bytes: weights, gradients, optimizer state, and what the passes need.

    ::

        model = tightfit.torch.fit(model, budget="8GiB", optimizer=optimizer)

    Before its first step with inputs of a form, the step is rehearsed on fake tensors, and planned: what the forward pass saves is
    kept, moved to host memory, or computed again. Where everything fits, nothing is done. Gradients and statistics keep their
    bits. What a step computes outside the model, such as a loss, is not planned; :func:`budget` covers that too. Workspaces of
    convolutions count as they were measured, but nothing here limits them: ``tightfit run --budget`` does.

    Parameters
    ----------
    model
        Changed in place by hooks alone: its parameters, names and class stay. Call this after moving it to its device, and
        before wrapping it in DistributedDataParallel. A copy of it (``copy.deepcopy``), or what is read from a file that the
        whole model was saved to, is a plain model: fit it too if it is to be trained. Call :func:`unfit` before ``torch.jit.script``.
    budget
        Bytes on the device, such as ``"8GiB"``; or a share of what the model needs without a budget, such as ``"60%"``; ``"auto"`` takes
        what is free on the GPU, less 3%.
    optimizer
        The optimizer, for the bytes of its state; AdamW is assumed if none is given.
    loss
        Maps the model's outputs to a scalar, for the prediction; a cross entropy of the outputs is assumed if none is given.
    host_budget
        Bytes of host memory for what is moved there, such as ``"16GiB"``; a share of what is free if none is given.
    recompute
        Whether anything is computed again. If not, tensors are kept or moved alone.
    compile
        Whether the model is compiled in place (``model.compile``), by the backend of `torch.compile` that holds the budget. Nothing is moved to the
        host then.

    Returns
    -------
    torch.nn.Module
        The same object.

    Raises
    ------
    BadInput
        If the budget is no size, or the model is fitted already.
    DoesNotFit
        From the model's call: if no plan was found within the budget. ``needed_bytes`` is the least that was found.
    """
    _check("fit", model, optimizer)
    if isinstance(model, torch.jit.ScriptModule):
        raise BadInput("the model is a module of TorchScript, which is not planned; fit the one that it was made of")
    if fitted_by(model) is not None:
        raise BadInput("the model is fitted already; call tightfit.torch.unfit(model) first")
    if compile:
        from .compiled.backend import tightfit

        model.compile(backend=tightfit, options={"budget": budget, "optimizer": optimizer})
        return model
    host = budget_bytes(host_budget, torch.device("cpu"), "host_budget") if host_budget is not None else None
    session = Session(type(model).__name__, budget_of(budget, _device(model)), optimizer, loss, host_budget=host, recomputes=recompute)
    install(model, session)
    return model


def _check(name: str, model: Any, optimizer: Any) -> None:
    """Refuses classes in place of objects, and other objects in place of a model."""
    if isinstance(model, type):
        raise BadInput(f"{name} takes a model, not a class; give {model.__name__}(..)")
    if not isinstance(model, nn.Module):
        raise BadInput(f"{name} takes a torch.nn.Module, not {type(model).__name__}")
    if isinstance(optimizer, type):
        raise BadInput(f"optimizer takes an optimizer, not its class; give {optimizer.__name__}(model.parameters())")


def unfit(model: nn.Module) -> nn.Module:
    """Takes back what :func:`fit` did to a model."""
    session = fitted_by(model)
    if session is not None:
        session.stop()
    uninstall(model)
    return model


def session_of(model: nn.Module) -> Session:
    """The session of a fitted model, with its plans and counts."""
    session = fitted_by(model) or launched.get(model)
    if session is None:
        raise BadInput("the model is not fitted; call tightfit.torch.fit(model, budget) first")
    return session


def stats(model: nn.Module) -> dict[str, Any]:
    """What the plan of a model's last step does, in numbers, for loggers: ``logger.log(tightfit.torch.stats(model))``.

    Sizes in bytes: ``budget_bytes``, ``plain_bytes``, ``peak_bytes`` (predicted), ``seen_bytes`` (counted in its first steps on a GPU), and what a
    step does for it: ``moved_bytes``, ``dropped_bytes``, ``recomputed_ms``, ``overhead`` (the predicted added share of time). Empty before the first
    step.

    Raises
    ------
    BadInput
        If the model is neither fitted nor trained under ``tightfit run --budget``.
    """
    session = session_of(model)
    return {} if session.last is None else stats_of(session.last)


def _device(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        return parameter.device
    return torch.device("cpu")


@short
def plan(
    model: nn.Module,
    inputs: Any,
    budget: int | float | str | None = None,
    optimizer: Any = None,
    loss: Callable[[Any], Tensor] | None = None,
    kwargs: dict[str, Any] | None = None,
    host_budget: int | str | None = None,
    recompute: bool = True,
    costs: str | None = None,
) -> Plan:
    """Plans a training step and runs nothing: the model, its statistics and the random states are left as they are.

    Where a process group exists, the buckets of DistributedDataParallel count too.

    ::

        plan = tightfit.torch.plan(model, x, budget="8GiB", optimizer=optimizer)
        print(plan.peak, plan.plain, plan.least, plan.overhead)

    Parameters
    ----------
    model
        The model, on its device.
    inputs
        A tensor, or a tuple of the positional arguments of ``forward``.
    budget
        As for :func:`fit`; without one, nothing is moved or computed again.
    optimizer, loss, host_budget, recompute
        As for :func:`fit`.
    kwargs
        Keyword arguments of ``forward``.
    costs
        A card whose times and memory are planned for, by the names of ``tightfit plan --costs``, such as ``"4090"``; without a budget, the plan
        is within its memory. By default, times are of the model's device.

    Raises
    ------
    BudgetTooSmall
        If no plan was found within the budget. ``needed_bytes`` is the least that was found.
    BadInput
        If the budget is no size, or the model cannot be rehearsed.
    """
    card = card_of(costs) if costs is not None else None
    question = _question(model, inputs, kwargs, optimizer, loss, host_budget, recompute, card)
    given = budget_of(budget, question.device) if budget is not None else None
    if given is None:
        given = card.room if card is not None and card.room is not None else UNLIMITED
    return Plan(question.planned(given), question)


def _question(
    model: nn.Module, inputs: Any, kwargs: dict[str, Any] | None, optimizer: Any, loss: Callable[[Any], Tensor] | None,
    host_budget: int | str | None, recompute: bool, card: Card | None,
) -> Question:  # fmt: skip
    """Records what is asked about."""
    _check("plan", model, optimizer)
    if isinstance(inputs, tuple | list) and inputs and all(type(size) is int for size in inputs):
        raise BadInput(f"inputs={inputs!r} is a shape; give what the model is called with, such as torch.randn{tuple(inputs)}")
    host = budget_bytes(host_budget, torch.device("cpu"), "host_budget") if host_budget is not None else None
    return Question.about(model, _device(model), inputs, kwargs, optimizer, loss, host, recompute, card)


@short
def largest_batch(
    model: nn.Module,
    make_inputs: Callable[[int], Any],
    budget: int | float | str | None = None,
    optimizer: Any = None,
    loss: Callable[[Any], Tensor] | None = None,
    host_budget: int | str | None = None,
    recompute: bool = True,
    costs: str | None = None,
) -> LargestBatch:
    """The largest mini-batch that fits in a budget, with a plan and without one; runs nothing.

    ::

        found = tightfit.torch.largest_batch(model, lambda batch: torch.randn(batch, 3, 224, 224), budget="8GiB")
        print(found.batch, found.plain_batch, found.plan)

    Parameters
    ----------
    make_inputs
        Makes the inputs of a mini-batch of a given number of samples, on the model's device: a tensor, or a tuple of arguments.
    budget
        Bytes on the device, such as ``"8GiB"``; a share says nothing about a size. Without one, what the card of `costs` has.
    optimizer, loss, host_budget, recompute, costs
        As for :func:`plan`.

    Raises
    ------
    BudgetTooSmall
        If not one sample fits.
    BadInput
        If the budget is no size, or the model cannot be rehearsed.
    """
    if not callable(make_inputs):
        raise BadInput("make_inputs takes a function of the mini-batch size, such as lambda batch: torch.randn(batch, 3, 224, 224)")
    card = card_of(costs) if costs is not None else None
    size = budget_of(budget, _device(model)) if budget is not None else card.room if card is not None else None
    if size is None or isinstance(size, Share):
        raise BadInput(f"budget={budget!r}: give a size such as '8GiB', or a card such as costs='4090'")

    def asked(batch: int) -> Question:
        return _question(model, make_inputs(batch), None, optimizer, loss, host_budget, recompute, card)

    plain = largest(lambda batch: asked(batch).plain, size)
    best = largest_fitting(lambda batch: asked(batch).fits(size), plain)
    question = asked(max(best, 1))
    if not best:
        question.name += " with one sample"
    return LargestBatch(best, plain, Plan(question.planned(size), question))


class Budget:
    """The context of :func:`budget`, which may be entered any number of times."""

    def __init__(self, session: Session, models: tuple[nn.Module, ...]) -> None:
        self.session = session
        # Weak references, so that a block keeps no model alive.
        self.models = [weakref.ref(model) for model in models]
        self._entered = _Entered()

    def __enter__(self) -> Budget:
        session, active = self.session, None
        if not session.inside() and session.applies(None):
            there = {str(at): model for at, place in enumerate(self.models) if (model := place()) is not None}
            active = session.enter_context(nn.ModuleDict(there))
        if active is not None:
            push_hooks(active)
        self._entered.active.append(active)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        active = self._entered.active.pop()
        if active is not None:
            self.session.leave(active)


class _Entered(threading.local):
    """The handlers of the active blocks' hooks in this thread, the outermost first."""

    def __init__(self) -> None:
        self.active: list[Any] = []


# Blocks by their place in the program: blocks without models, and blocks of each first model that is still alive.
_blocks: dict[Any, Budget] = {}
_blocks_of: weakref.WeakKeyDictionary[nn.Module, dict[Any, Budget]] = weakref.WeakKeyDictionary()


def budget(
    budget: int | float | str, *models: nn.Module, optimizer: Any = None, name: str | None = None, recompute: bool = True
) -> Budget:
    """Plans whatever autograd saves inside a ``with`` block: forward passes of several models, and their losses.

    ::

        with tightfit.torch.budget("8GiB", generator, discriminator):
            loss = criterion(discriminator(generator(z)), real)
        loss.backward()

    When a block runs for the first time, everything that it saves is moved to host memory, and the step is recorded. From the second time on, a plan
    is carried out. Each place in the program has separate plans. Call ``backward`` outside the block.

    Parameters
    ----------
    budget
        As for :func:`fit`.
    *models
        The models whose parameters are used; without them, nothing that depends on parameters is computed again.
    optimizer, recompute
        As for :func:`fit`.
    name
        Tells blocks apart, instead of their place in the program.

    Raises
    ------
    BadInput
        If the budget is no size.
    DoesNotFit
        From entering a block for the first time, if weights, gradients and the state of `optimizer` alone are over the budget; else
        from its first backward pass, if no plan was found within the budget.
    """
    frame = sys._getframe(1)
    place = name or f"{frame.f_code.co_filename}:{frame.f_lineno}"
    key = (place, tuple(id(model) for model in models), budget, recompute)
    blocks = _blocks_of.setdefault(models[0], {}) if models else _blocks
    found = blocks.get(key)
    if found is None:
        device = _device(nn.ModuleList(models))
        label = name or f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        session = Session(label, budget_of(budget, device), optimizer, recomputes=recompute)
        found = blocks[key] = Budget(session, models)
    return found
