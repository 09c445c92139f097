"""Records for ``tightfit compare``, inside a program: the time of each step, each loss on which ``backward`` is called, and the peak.

A step ends when the optimizer that stepped first steps again. On a GPU, its time is between two events on the stream, so nothing waits. Losses are
copied on the device and read at the end. After enough steps, all is written to the file in ``TIGHTFIT_COMPARE`` and the program ends. With several
ranks, the first one writes, and all end after the same number of steps.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from ._budget.memory.peaks import Peaks
from ._budget.record.cost import device_name

__all__ = ["FIRST", "Notes", "install"]

# Steps that are not measured: models are planned, tuned or compiled in them.
FIRST = 8
# Steps that are measured by default: at least _MIN_STEPS steps and _MIN_SECONDS, at most _MAX_STEPS steps and _MAX_SECONDS seconds.
_MIN_STEPS, _MIN_SECONDS, _MAX_STEPS, _MAX_SECONDS = 20, 5.0, 200, 60.0


class Notes:
    """The notes of one process."""

    def __init__(self, file: str, steps: int | None) -> None:
        self.file = Path(file)
        self.steps = steps
        self.several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.writes = os.environ.get("RANK", "0") == "0"
        self.losses: list[Tensor] = []
        # When steps ended: on the host, and on the GPU if there is one.
        self.marks: list[tuple[float, Any]] = []
        self.device = torch.device("cpu")
        self.peaks = Peaks()
        self._first: int | None = None
        self._process = os.getpid()

    def loss(self, tensors: Any) -> None:
        """Notes the losses of a backward pass."""
        values = [tensors] if isinstance(tensors, Tensor) else list(tensors) if isinstance(tensors, Sequence) else []
        with torch.no_grad():
            # Our rehearsals go backward on fake tensors, which have another class, and from leaves.
            self.losses += [value.detach().clone() for value in values if type(value) is Tensor and value.numel() == 1 and value.grad_fn is not None]

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Notes that an optimizer has stepped."""
        if self._first is None:
            self._first = id(optimizer)
            self.device = next((p.device for group in optimizer.param_groups for p in group["params"]), self.device)
        if id(optimizer) != self._first or os.getpid() != self._process:
            return
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
        self.marks.append((time.perf_counter(), event))
        if len(self.marks) == FIRST:
            self.peaks.restart()
        if self._is_enough():
            self.write()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _is_enough(self) -> bool:
        measured = len(self.marks) - FIRST
        if self.steps is not None:
            return measured >= self.steps
        if self.several:
            return measured >= _MIN_STEPS
        seconds = self.marks[-1][0] - self.marks[FIRST - 1][0] if measured > 0 else 0.0
        return measured >= _MAX_STEPS or measured >= _MIN_STEPS and seconds >= _MIN_SECONDS or seconds >= _MAX_SECONDS

    def write(self) -> None:
        """Writes the notes once, if the program has trained."""
        if not self.writes or not self.marks or os.getpid() != self._process:
            return
        self.writes = False
        peak = self.peaks.most()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        pairs = zip(self.marks[FIRST - 1 :], self.marks[FIRST:], strict=False)
        times = [1e3 * (b - a) if one is None else one.elapsed_time(other) for (a, one), (b, other) in pairs]
        losses = [float(value.double()) for value in self.losses]
        data = {
            "steps_ms": times,
            "peak_bytes": peak,
            "bits": [value.hex() for value in losses],
            "losses": [value if abs(value) < float("inf") else None for value in losses],
            "device": device_name(self.device),
        }
        self.file.write_text(json.dumps(data), encoding="utf-8")


def install() -> None:
    """Notes the steps of this process."""
    steps = os.environ.get("TIGHTFIT_COMPARE_STEPS")
    notes = Notes(os.environ["TIGHTFIT_COMPARE"], int(steps) if steps else None)
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        notes.loss(tensors)
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = noted
    register_optimizer_step_post_hook(notes.stepped)
    atexit.register(notes.write)
