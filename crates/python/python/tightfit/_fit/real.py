"""Records the first real step of what cannot run on fake tensors, with everything offloaded as it comes.

The forward pass is recorded between the model's hooks. The backward pass is entered by the program, through PyTorch's engine,
so for this one step the call into the engine is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd
from torch import Tensor, nn

from .compiled import compiled_parts, hide
from .cost import flops
from .recorder import Recorder, borders_of
from .rehearse import Rehearsal, follow, name_externals
from .safe import SafePass
from .slots import Counts

__all__ = ["RealRecording"]


class RealRecording:
    """One recorded step; ``done`` gets it when its backward pass has ended."""

    def __init__(self, model: nn.Module | None, inputs: list[Any], done: Callable[[Rehearsal], None]) -> None:
        self.recorder = Recorder(flops)
        self.safe = SafePass(self.recorder, Counts())
        self.model = model
        self.done = done
        self.engine: Any = None
        self.handles: list[Any] = []
        self.recorder.borders = borders_of(inputs)
        if model is not None:
            name_externals(self.recorder, model, inputs)
            self.handles = [*follow(self.recorder, model), *hide(self.recorder, compiled_parts(model))]
        self.recorder.__enter__()
        self.inside = True

    def forward_done(self) -> None:
        """Ends the forward part, and waits for the backward pass."""
        self.recorder.borders = set()
        self.recorder.given = len(self.recorder.timeline)
        self._leave()
        if not self.recorder.packs:
            return
        self._wrap()

    def _wrap(self) -> None:
        self.engine = torch.autograd._engine_run_backward
        torch.autograd._engine_run_backward = self._run

    def _leave(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if self.inside:
            self.inside = False
            self.recorder.__exit__(None, None, None)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        engine, recorder = self.engine, self.recorder
        self._unwrap()
        recorder.stage = "backward"
        first = len(recorder.operations), len(recorder.timeline)
        with recorder:
            result = engine(*args, **kwargs)
        if any(event == "unpack" for event, _ in recorder.timeline):
            self._finish()
        elif self.safe.recorder is not None:
            # The backward pass of something else, such as a discriminator's own loss: it is no part of this step.
            recorder.undo(*first)
            self._wrap()
        return result

    def _unwrap(self) -> None:
        if self.engine is not None:
            torch.autograd._engine_run_backward = self.engine
            self.engine = None

    def _finish(self) -> None:
        rehearsal = Rehearsal(self.recorder)
        if self.model is not None:
            for parameter in self.model.parameters():
                if isinstance(parameter.grad, Tensor):
                    storage = self.recorder.storage(parameter.grad)
                    if storage.external is None:
                        rehearsal.gradients.add(storage.number)
        self.recorder.finish()
        self.safe.recorder = None
        self.done(rehearsal)

    def abandon(self) -> None:
        """Gives up: the step never got to its backward pass."""
        self._leave()
        self._unwrap()
        self.safe.recorder = None
