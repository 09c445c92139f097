"""Records the first real step of what cannot run on fake tensors, with everything offloaded as it comes.

The forward pass is recorded between the model's hooks. The backward pass is entered by the program, through PyTorch's engine,
so for this one step the call into the engine is wrapped. A step may call it several times, for parts of the graph first::

    forward   grad(l1, last, retain_graph=True)   grad(l2, last, retain_graph=True)   backward()   graph freed
    |----------------------------------------- one recording -----------------------------------------|

It ends when nothing that was saved is there any more; or, if a part of the graph stays, where the optimizer updates the model or the
model's next forward pass begins.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.autograd
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..plan.counts import Counts
from ..record.compiled_parts import compiled_parts, hide
from ..record.cost import flops
from ..record.marks import Marks, active_modes, take_away
from ..record.modes import NODES
from ..record.recorder import HIDDEN, Packed, Recorder, has_storage
from ..record.rehearse import Rehearsal, follow, name_externals
from ..record.unwatched import Unwatched, asks, would_differ
from .offload_all import SafePass

__all__ = ["RealRecording"]


class _Graph:
    """Lives as long as anything that was saved."""

    __slots__ = ("__weakref__",)


class _SafePass(SafePass):
    """Notes how long its graph lives."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder, Counts())
        self.graph: _Graph | None = _Graph()

    def pack(self, tensor: Tensor) -> Any:
        return Packed((super().pack(tensor), self.graph))

    def unpack(self, handle: Any) -> Tensor:
        return super().unpack(handle[0])


class _InNodes:
    """Has a recorder on while nodes of a graph run, and off in between, where autograd adds up the gradients of a tensor with several uses.

    Under a mode, autograd adds them out of place. The sum then has another layout in some programs, and later sums have other last bits.
    """

    def __init__(self, recorder: Recorder, roots: Any) -> None:
        self.recorder = recorder
        self.roots = roots
        self.was_on = False
        self.hooks: list[Any] = []

    def __enter__(self) -> None:
        # A node may enter the engine itself, as checkpoints do.
        self.was_on = self.recorder.innermost()
        if self.was_on:
            self.recorder.__exit__(None, None, None)
        nodes: list[Any] = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in self.roots]
        seen: set[Any] = {None}
        while nodes:
            node = nodes.pop()
            if node not in seen:
                seen.add(node)
                nodes += [following for following, _ in node.next_functions]
                before, after = (self._hide, self._show) if node.name().rstrip("0123456789") in NODES else (self._before, self._after)
                self.hooks += [node.register_prehook(before), node.register_hook(after)]

    def _arrived(self, gradients: Any) -> list[Tensor]:
        found = [gradient for gradient in gradients if gradient is not None]
        for gradient in found:
            self.recorder.arrived(gradient)
        return found

    def _before(self, gradients: Any) -> None:
        self._arrived(gradients)
        self.recorder.__enter__()

    def _after(self, *_: Any) -> None:
        self.recorder.__exit__(None, None, None)

    def _hide(self, gradients: Any) -> None:
        self.recorder.hide(self._arrived(gradients), HIDDEN)

    def _show(self, results: Any, _: Any) -> None:
        self.recorder.show([result for result in results if result is not None])

    def __exit__(self, *_: object) -> None:
        while self.recorder.innermost():
            # A node has raised.
            self.recorder.__exit__(None, None, None)
        for hook in self.hooks:
            hook.remove()
        if self.was_on:
            self.recorder.__enter__()


class RealRecording:
    """One recorded step; ``done`` gets it when its backward pass has ended.

    Attributes
    ----------
    safe
        The pass that answers the hooks.
    signature
        The form of the inputs.
    thread
        The thread of the forward pass.
    is_shared
        Whether other threads call the model too: then backward passes on theirs are not of this step.
    is_spoiled
        Whether they did during this forward pass, so that nobody knows whose modules ran.
    began
        Whether a backward pass has read what was saved.
    """

    def __init__(self, model: nn.Module | None, inputs: list[Any], signature: Any, done: Callable[[Rehearsal], None]) -> None:
        self.recorder = Recorder(flops)
        self.safe = _SafePass(self.recorder)
        self.model = model
        self.signature = signature
        self.done = done
        self.thread = threading.get_ident()
        self.is_shared = self.is_spoiled = self.began = self.is_stopped = False
        self.handles: list[Any] = []
        self._graph = weakref.ref(self.safe.graph)
        self._gradients: set[int] = set()
        # Operations, events and storages before the call into the engine that is running; and storages of calls that were none of this step.
        self._first: tuple[int, int, int] | None = None
        self._others: set[int] = set()
        self._before = "forward", "", True
        if model is not None:
            name_externals(self.recorder, model, inputs)
            self.handles = [*follow(self.recorder, model), *hide(self.recorder, compiled_parts(model))]
        self.recorder.__enter__()
        self.marks = Marks(self.recorder)
        self.recorder.marks = self.marks
        if model is not None:
            unwatched = Unwatched(self._stop, self._go_on)
            self.handles += [part.register_forward_pre_hook(unwatched, prepend=True) for part in model.modules() if part is not model and asks(part)]
        if model is None or not (asks(model) and would_differ(model, inputs)):
            self.marks.__enter__()
        self.inside = True

    def forward_done(self) -> bool:
        """Ends the forward part, and waits for the backward pass; whether anything was saved."""
        self.recorder.given = len(self.recorder.timeline)
        self._leave()
        self.safe.graph = None
        if self.recorder.packs:
            _waiting.append(self)
            _wrap()
        return bool(self.recorder.packs)

    def is_there(self) -> bool:
        """Whether a backward pass may still come, or come again."""
        return self.inside or self._graph() is not None

    def begin(self) -> bool:
        """Begins a call into the engine, if it may be of this step."""
        if self._first is not None or self.is_shared and threading.get_ident() != self.thread:
            return False
        recorder = self.recorder
        self._before = recorder.stage, recorder.group, recorder.watching
        recorder.stage, recorder.group, recorder.watching = "backward", "", False
        self._first = len(recorder.operations), len(recorder.timeline), len(recorder.storages)
        return True

    def end(self) -> None:
        """Ends it."""
        assert self._first is not None
        first, self._first = self._first, None
        if self.inside:
            # The model has computed gradients inside of its forward pass.
            self.recorder.stage, self.recorder.group, self.recorder.watching = self._before
        if any(event == "unpack" for event, _ in self.recorder.timeline[first[1] :]):
            self.began = True
            self._note_gradients()
        elif self.safe.recorder is not None:
            # The backward pass of another loss, such as a discriminator's: it does not belong to this step.
            self.recorder.undo(*first[:2])
            self._others.update(range(first[2], len(self.recorder.storages)))

    def finish(self) -> None:
        """Ends the step."""
        self._forget()
        rehearsal = Rehearsal(self.recorder)
        rehearsal.gradients |= self._gradients
        used = {number for operation in self.recorder.operations for number, _ in (*operation.reads, *operation.makes)}
        for number in self._others - used:
            storage = self.recorder.storages[number]
            if not storage.holders:
                # Tensors that other calls made and released take no memory of this step.
                storage.bytes = 0
        self.recorder.finish()
        self.done(rehearsal)

    def abandon(self) -> None:
        """Stops recording: the step never got to its backward pass."""
        self._leave()
        self._forget()

    def _note_gradients(self) -> None:
        for parameter in self.model.parameters() if self.model is not None else ():
            if has_storage(parameter.grad):
                storage = self.recorder.stays(parameter.grad)
                if storage.external is None:
                    self._gradients.add(storage.number)

    def _stop(self) -> None:
        if any(mode is self.marks for mode in active_modes()):
            take_away(self.marks)
            self.is_stopped = True

    def _go_on(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            if self.inside:
                torch._C._push_on_torch_function_stack(self.marks)

    def _leave(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if self.inside:
            self.inside = False
            take_away(self.marks)
            self.recorder.__exit__(None, None, None)

    def _forget(self) -> None:
        self.safe.recorder = None
        if self in _waiting:
            _waiting.remove(self)
        if not _waiting:
            _unwrap()


# Recordings that wait for their backward passes, and PyTorch's engine meanwhile.
_waiting: list[RealRecording] = []
_engine: Any = None
# Stays once it is there: PyTorch calls it while nothing may take it away.
_updates: Any = None


def _wrap() -> None:
    global _engine, _updates
    if _updates is None:
        _updates = register_optimizer_step_pre_hook(_update)
    if _engine is None:
        _engine = torch.autograd._engine_run_backward
        torch.autograd._engine_run_backward = _run


def _unwrap() -> None:
    global _engine
    # Where another wrapper came upon ours, this stays below it, and passes calls through.
    if _engine is not None and torch.autograd._engine_run_backward is _run:
        torch.autograd._engine_run_backward = _engine
        _engine = None


def _run(*args: Any, **kwargs: Any) -> Any:
    engine = _engine
    _finish_freed()
    begun = [recording for recording in _waiting if recording.begin()]
    nested = [recording for recording in _waiting if recording not in begun and recording.recorder.innermost()]
    try:
        with ExitStack() as stack:
            for recording in (*begun, *nested):
                stack.enter_context(_InNodes(recording.recorder, args[0]))
            result = engine(*args, **kwargs)
    except BaseException:
        for recording in begun:
            recording.abandon()
        raise
    for recording in begun:
        recording.end()
    _finish_freed()
    return result


def _finish_freed() -> None:
    """Ends the recordings of graphs that are gone, such as with their outputs."""
    for recording in list(_waiting):
        if recording.began and not recording.is_there():
            recording.finish()


def _update(*_: Any) -> None:
    """Called before an optimizer updates a model: what of a graph is still there is nobody's any more."""
    for recording in list(_waiting):
        if recording.began and recording.thread == threading.get_ident():
            recording.finish()
