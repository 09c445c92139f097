"""What users call: `fit`, `plan` and `budget`."""

from __future__ import annotations

import html
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput, DoesNotFit, FileError
from .eager.hooks import fitted_by, install, uninstall
from .eager.running import push_hooks
from .eager.session import Session
from .memory.allocator import There
from .memory.cap import may_grow, most_reserved, reserve_of, there_on
from .memory.host import host_bytes
from .memory.sizes import UNLIMITED, budget_bytes, text
from .plan.buckets import bucket_bytes
from .plan.fitted import Fitted, least_of, make_plan
from .plan.watch import Assumed
from .record.measure import MEASURED
from .record.optimizer import optimizer_bytes
from .record.rehearse import CannotRehearse, rehearse
from .record.times import times_of

__all__ = ["Budget", "Plan", "budget", "fit", "plan", "session_of", "unfit"]


def fit(
    model: nn.Module,
    budget: int | str,
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
        Bytes on the device, such as ``"8GiB"``; ``"auto"`` takes what is free on the GPU, less 3%.
    optimizer
        The optimizer, for the bytes of its state; AdamW is assumed if none is given.
    loss
        Maps the model's outputs to a scalar, for the prediction; a mean over the outputs is assumed if none is given.
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
    if not isinstance(model, nn.Module):
        raise BadInput(f"fit takes a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise BadInput("the model is a module of TorchScript, which is not planned; fit the one that it was made of")
    if fitted_by(model) is not None:
        raise BadInput("the model is fitted already; call tightfit.torch.unfit(model) first")
    if compile:
        from .compiled.backend import tightfit

        model.compile(backend=tightfit, options={"budget": budget_bytes(budget, _device(model)), "optimizer": optimizer})
        return model
    host = budget_bytes(host_budget, torch.device("cpu"), "host_budget") if host_budget is not None else None
    session = Session(type(model).__name__, budget_bytes(budget, _device(model)), optimizer, loss, host_budget=host, recomputes=recompute)
    install(model, session)
    return model


def unfit(model: nn.Module) -> nn.Module:
    """Takes back what :func:`fit` did to a model."""
    session = fitted_by(model)
    if session is not None:
        session.stop()
    uninstall(model)
    return model


def session_of(model: nn.Module) -> Session:
    """The session of a fitted model, with its plans and counts."""
    session = fitted_by(model)
    if session is None:
        raise BadInput("the model is not fitted; call tightfit.torch.fit(model, budget) first")
    return session


def _device(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        return parameter.device
    return torch.device("cpu")


class Plan:
    """What a training step of a model needs under a budget.

    Attributes
    ----------
    peak : int
        Predicted peak in bytes under the plan.
    plain : int
        Predicted peak in bytes if everything is kept.
    fits : bool
        Whether the peak is within the budget.
    overhead : float
        Predicted added time, as a share of the step: 0.05 for 5%.
    gap : float or None
        How far the predicted time is above a bound, as a share of that: no plan that leaves as much room for gaps between blocks takes less.
        None if everything is kept, or no bound was found.
    host : int
        Bytes of host memory.
    assumed : list of str
        What was assumed, because nobody said.
    """

    def __init__(self, fitted: Fitted, fits: bool) -> None:
        self._fitted = fitted
        self.fits = fits
        self.peak = fitted.peak
        self.plain = fitted.plain
        self.overhead = fitted.overhead
        self.gap = fitted.gap
        outcome = fitted.bound.outcome if fitted.bound is not None else fitted.decided.outcome
        self.host = outcome.host
        self.assumed = list(fitted.step.assumed)
        self._live = outcome.live
        self._least: int | None = None

    @property
    def least(self) -> int:
        """The least budget in bytes for which a plan was found; less may be possible. On a busy host, searches end earlier."""
        if self._least is None:
            self._least = least_of(self._fitted)
        return self._least

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decision for each tensor that is not kept, as in a plan file."""
        if self._fitted.bound is None:
            return []
        never: dict[str, Any] = {"offload_after": None, "release_after": None, "prefetch_before": None, "rebuilt": []}
        step = self._fitted.step
        kinds = {tensor: "mask" if tensor in step.masked else "drop" for tensor in step.dropped}
        return [*self._fitted.bound.decisions.values(), *({"tensor": tensor, "decision": kind, **never} for tensor, kind in kinds.items())]

    def __repr__(self) -> str:
        return f"<Plan: {self._fitted.line(self._fitted.step.data['name'])}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON; ``save_step`` writes the step that it is for.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        data = {
            "network": self._fitted.step.data["name"],
            "budget_bytes": self._fitted.budget,
            "peak_bytes": self.peak,
            "baseline_bytes": self.plain,
            "min_feasible_bytes": self.least,
            "host_bytes": self.host,
            "overhead": self.overhead,
            "gap": self.gap,
            "decisions": self.decisions,
        }
        _write(path, json.dumps(data))

    def save_step(self, path: str | os.PathLike[str]) -> None:
        """Writes the recorded step, for ``tightfit plan --step``.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        _write(path, json.dumps(self._fitted.step.data))

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page: memory over the step, plain and planned, and the decisions.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        _write(path, _page(self))


def _write(path: str | os.PathLike[str], content: str) -> None:
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {os.fspath(path)}: {error.strerror}", os.fspath(path)) from error


def plan(
    model: nn.Module,
    inputs: Any,
    budget: int | str | None = None,
    optimizer: Any = None,
    loss: Callable[[Any], Tensor] | None = None,
    kwargs: dict[str, Any] | None = None,
    host_budget: int | str | None = None,
    recompute: bool = True,
) -> Plan:
    """Plans a training step and runs nothing: the model, its statistics and the random states are left as they are.

    Where a process group exists, the buckets of DistributedDataParallel count too.

    ::

        plan = tightfit.torch.plan(model, x, budget="8GiB", optimizer=optimizer)
        print(plan.fits, plan.peak, plan.least, plan.overhead)

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

    Raises
    ------
    BadInput
        If the budget is no size, or the model cannot be rehearsed.
    """
    started = time.monotonic()
    device = _device(model)
    limit = budget_bytes(budget, device) if budget is not None else UNLIMITED
    args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    try:
        rehearsal = rehearse(model, args, kwargs or {}, loss)
    except CannotRehearse as error:
        raise BadInput(f"the model cannot be planned without running it: {error}") from error
    state, scratch, assumed = optimizer_bytes(optimizer, model, device)
    name = type(model).__name__
    times = times_of(device) if device.type in MEASURED else None
    # What operations need beside their results is known where they were measured.
    reserve = reserve_of(limit, device) if budget is not None and not (times and times.known) else 0
    buckets = bucket_bytes(model, device)
    outside = Assumed(state, scratch, buckets, reserve, 0)
    host = budget_bytes(host_budget, torch.device("cpu"), "host_budget") if host_budget is not None else host_bytes()
    grows = budget is not None and may_grow(device)
    most, there = (most_reserved(limit), there_on(device)) if grows else (None, There())
    try:
        fitted = make_plan(rehearsal, device, name, limit, outside, started, times, host, 0, most, there, must_have_room=True, recomputes=recompute)
        fits = True
    except DoesNotFit as error:
        fitted = make_plan(rehearsal, device, name, error.needed_bytes, outside, started, times, host, 0, most, there, recomputes=recompute)
        fitted.budget = limit
        fits = False
    ranks = f"DistributedDataParallel has {text(buckets)} of buckets" if buckets else ""
    fitted.step.assumed.extend(note for note in (*rehearsal.assumed, assumed, ranks) if note)
    return Plan(fitted, fits)


class Budget:
    """The context of :func:`budget`; enter it as often as needed."""

    def __init__(self, session: Session, models: tuple[nn.Module, ...]) -> None:
        self.session = session
        # Weakly: a block keeps no model alive.
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
    """What answers for a block's hooks in this thread, from the outermost on."""

    def __init__(self) -> None:
        self.active: list[Any] = []


# Blocks by place: without models, and of those whose first model is there.
_blocks: dict[Any, Budget] = {}
_blocks_of: weakref.WeakKeyDictionary[nn.Module, dict[Any, Budget]] = weakref.WeakKeyDictionary()


def budget(
    budget: int | str, *models: nn.Module, optimizer: Any = None, name: str | None = None, recompute: bool = True
) -> Budget:
    """Plans whatever autograd saves inside a ``with`` block: forward passes of several models, and their losses.

    ::

        with tightfit.torch.budget("8GiB", generator, discriminator):
            loss = criterion(discriminator(generator(z)), real)
        loss.backward()

    The first time a block runs, everything that it saves is moved to host memory, and the step is recorded; from the second time on
    a plan is carried out. Each place in the program has plans of its own. Call ``backward`` outside the block.

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
        session = Session(label, budget_bytes(budget, device), optimizer, recomputes=recompute)
        found = blocks[key] = Budget(session, models)
    return found


def _page(plan: Plan) -> str:
    """Two curves of memory over the operations of the step, and a table of decisions."""
    fitted = plan._fitted
    width, height = 960, 320
    top = max(plan.plain, plan.peak, 1)

    def curve(live: Sequence[int]) -> str:
        step = max(1, len(live) // width)
        points = [max(live[at : at + step]) for at in range(0, len(live), step)]
        scale = width / max(1, len(points) - 1)
        return " ".join(f"{at * scale:.1f},{height - height * value / top:.1f}" for at, value in enumerate(points))

    tensors = fitted.step.data["tensors"]
    rows = "".join(
        f"<tr><td>{html.escape(tensors[decision['tensor']]['name'])}</td><td>{text(tensors[decision['tensor']]['bytes'])}</td>"
        f"<td>{decision['decision']}</td></tr>"
        for decision in sorted(plan.decisions, key=lambda decision: -tensors[decision["tensor"]]["bytes"])
    )
    line = html.escape(fitted.line(fitted.step.data["name"]))
    limit = height - height * min(fitted.budget, top) / top
    return (
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(fitted.step.data['name'])}</title>"
        "<style>body{font:14px sans-serif;margin:2em}td{padding:0 1em 0 0}</style>"
        f"<p>{line}</p><svg viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
        f"<polyline fill='none' stroke='#bbb' points='{curve(fitted.decided.plain.live)}'><title>everything kept</title></polyline>"
        f"<polyline fill='none' stroke='#06c' points='{curve(plan._live)}'><title>planned</title></polyline>"
        f"<line x1='0' x2='{width}' y1='{limit:.1f}' y2='{limit:.1f}' stroke='#c00' stroke-dasharray='4'/></svg>"
        f"<p>Gray: everything kept. Blue: planned. Dashed: the budget.</p><table>{rows}</table>"
    )
