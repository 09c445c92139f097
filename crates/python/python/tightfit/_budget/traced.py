"""Writes the trace of a program's first steps under ``tightfit run --trace``, for Perfetto, and a page with its memory.

The file is complete after each step, so a program that ends early loses at most its last step::

    {"traceEvents": [ ...one event a line... | ], "otherData": {...}}
                                             ^ the events of the next step are written here
"""

from __future__ import annotations

import atexit
import functools
import html
import json
import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .._pictures import over_time
from .._sweep import page
from . import trace
from .eager.running import running
from .memory.sizes import UNLIMITED, text
from .messages import say
from .record.cost import device_name
from .record.rehearse import is_recording
from .trace import Mark, Record, Span

if TYPE_CHECKING:
    from .eager.session import Session
    from .memory.peaks import Peaks
    from .plan.fitted import Fitted

__all__ = ["Traced", "install"]

# The number of recorded steps, and the most recorded spans, because a step may have many.
STEPS, SPANS = 100, 200_000
# Steps after which the page is written for the first time.
_SHOWN = 8
_TRACKS = ("steps", "phases", "phases on the GPU", "copies to the host", "copies from the host", "reruns")


class Traced:
    """The record of a process's steps, and its file."""

    def __init__(self, file: Path, fitted: Callable[[], list[Fitted]], peaks: Peaks) -> None:
        self.path = file
        self.fitted = fitted
        self.record = Record()
        self.peaks = peaks
        self.state = threading.local()
        self.steps = 0
        self.spans = 0
        self.times: list[float] = []
        self.memory: list[tuple[float, int]] = []
        self._file: int | None = None
        # The position at which the events end, and the number of steps that they cover.
        self._place = self._written = 0
        self._first: int | None = None
        self._updates: dict[int, Mark] = {}
        self._began: Mark | None = None
        # A moment on both clocks, and its time on the host. Spans on the GPU are placed relative to it.
        self._base: Mark | None = None
        self._base_us = 0.0
        self._zero = 0.0
        self._process = os.getpid()
        self._hooks = [
            register_module_forward_pre_hook(self.before),
            register_module_forward_hook(self.after, always_call=True),
            register_optimizer_step_pre_hook(self.updates),
            register_optimizer_step_post_hook(self.stepped),
        ]
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._backward(getattr(torch.autograd, name)))

    # Hooks in the program.

    def _is_on(self) -> bool:
        return trace.record is self.record and not torch.compiler.is_compiling() and not is_recording()

    def before(self, module: nn.Module, args: Any) -> None:
        if not self._is_on():
            return
        state = self.state
        if running(getattr(state, "frame", None)):
            self.record.sample()
        elif torch.is_grad_enabled() and (parameter := next(module.parameters(), None)) is not None:
            self._begin(parameter.device)
            state.frame, state.module, state.mark = sys._getframe(1), module, self.record.mark()

    def after(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if not self._is_on():
            return
        state = self.state
        if getattr(state, "module", None) is module:
            self.record.end("phases", f"forward: {type(module).__name__}", state.mark)
            state.frame = state.module = None
        else:
            self.record.sample()

    def _backward(self, run: Any) -> Any:
        @functools.wraps(run)
        def traced(*args: Any, **kwargs: Any) -> Any:
            # Rehearsals go backward, too.
            if not self._is_on() or self._began is None:
                return run(*args, **kwargs)
            mark = self.record.mark()
            try:
                return run(*args, **kwargs)
            finally:
                self.record.end("phases", "backward", mark)

        return traced

    def updates(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_on():
            self._updates[id(optimizer)] = self.record.mark()

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._is_on():
            return
        mark = self._updates.pop(id(optimizer), None)
        if mark is not None:
            self.record.end("phases", f"update: {type(optimizer).__name__}", mark)
        # A step ends where the optimizer that stepped first steps again.
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first or self._began is None:
            return
        self.steps += 1
        self.record.end("steps", f"step {self.steps}", self._began)
        self.times.append(self.record.spans[-1].end.host - self._began.host)
        self._began = self.record.mark()
        self.write()
        if self.steps == STEPS or self.spans >= SPANS:
            self.end("; the program goes on without it")
        elif self.steps == _SHOWN:
            self._show()

    def _begin(self, device: torch.device) -> None:
        """Begins with the first model that runs."""
        if self._began is None:
            self.record.device = device
            self._began = self._base = self.record.mark()
            self._zero = self._began.host

    # The file.

    def write(self, waits: bool = False) -> None:
        """Writes the spans that have ended. It `waits` for the GPU, or leaves spans that the GPU has not reached for the next write."""
        record = self.record
        if self._base is None:
            return
        if record.device.type == "cuda" and waits:
            torch.cuda.synchronize(record.device)
        ready: list[Span] = []
        late: list[Span] = []
        for span in record.spans:
            (ready if span.end.event is None or span.end.event.query() else late).append(span)
        record.spans[: len(ready) + len(late)] = late
        memory, record.memory = record.memory, []
        self.memory += memory
        events = [event for span in ready for event in self._events(span)]
        events += [{"ph": "C", "name": self._memory_is(), "pid": 1, "ts": self._at(when), "args": {"bytes": used}} for when, used in memory]
        self.spans += len(events)
        if self._append(events) and ready and ready[-1].end.event is not None:
            self._move_base(ready[-1].end)

    def _move_base(self, mark: Mark) -> None:
        """Moves the base forward, because times between near events are more exact."""
        assert self._base is not None
        self._base_us += 1e3 * self._base.event.elapsed_time(mark.event)
        self._base = mark

    def _at(self, host: float) -> float:
        return round(host - self._zero, 3)

    def _events(self, span: Span) -> Iterable[dict[str, Any]]:
        """The events of a span: phases appear on the host's and the GPU's tracks, copies and reruns on the track of the device that runs them."""
        base = self._base
        begin, end = span.begin, span.end
        on_host = (span.track, self._at(begin.host), self._at(end.host))
        found = []
        if base is not None and base.event is not None and begin.event is not None and end.event is not None:
            first = self._base_us + 1e3 * base.event.elapsed_time(begin.event)
            on_gpu = first, first + 1e3 * begin.event.elapsed_time(end.event)
            found.append(("phases on the GPU" if span.track == "phases" else span.track, *on_gpu))
        if not found or span.track == "phases":
            found.append(on_host)
        args = {} if span.bytes is None else {"bytes": span.bytes}
        name = span.name if span.bytes is None else f"{span.name} {text(span.bytes)}"
        for track, first, last in found:
            where = {"pid": 1, "tid": 1 + _TRACKS.index(track)}
            yield {"ph": "X", "name": name, **where, "ts": round(first, 3), "dur": round(max(last - first, 0.0), 3), "args": args}

    def _memory_is(self) -> str:
        return "memory in use on the GPU" if self.record.device.type == "cuda" else "resident memory of the process"

    def _append(self, events: list[dict[str, Any]]) -> bool:
        """Writes events, and then the end of the file. If that fails, it ends the trace and leaves a complete file."""
        lines = [json.dumps(event, separators=(",", ":")) for event in events]
        before = self._place
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
                self._place = before = self._put(b'{"traceEvents":[\n' + ",\n".join(map(json.dumps, self._names())).encode(), 0)
            place = self._put("".join(f",\n{line}" for line in lines).encode(), self._place)
            self._put(self._end(self.steps), place)
        except OSError as error:
            self._fail(error, before)
            return False
        self._place, self._written = place, self.steps
        return True

    def _end(self, steps: int) -> bytes:
        """The end of a file with this number of steps."""
        return f'\n],\n"displayTimeUnit":"ms",\n"otherData":{json.dumps(self.about(steps))}}}\n'.encode()

    def _put(self, data: bytes, place: int) -> int:
        """Writes at a position. Returns the position after the data."""
        assert self._file is not None
        while data:
            written = os.pwrite(self._file, data, place)
            data, place = data[written:], place + written
        return place

    def _fail(self, error: OSError, place: int) -> None:
        """Restores the file to its last complete state, if there is one, and stops tracing. The program goes on."""
        kept = ""
        if self._file is not None and place:
            try:
                # The removed part leaves enough room on the disk for the end of the file.
                os.ftruncate(self._file, place)
                self._put(self._end(self._written), place)
                kept = f"; it has the first {self._written} steps"
            except OSError:
                pass
        say(f"cannot write the trace {self.path}: {error.strerror}{kept}. The program goes on without it")
        self._stop()

    def _names(self) -> Iterable[dict[str, Any]]:
        """The names of the process and its tracks."""
        yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"tightfit run, on {device_name(self.record.device)}"}}
        for number, track in enumerate(_TRACKS, 1):
            yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": track}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}}

    def about(self, steps: int) -> dict[str, Any]:
        """Facts for a reader of the trace."""
        return {
            "device": device_name(self.record.device),
            "torch": torch.__version__,
            "command": sys.argv,
            "budget": os.environ.get("TIGHTFIT_BUDGET"),
            "memory": self._memory_is(),
            "steps": steps,
            "models": [
                {"model": plan.step.data["name"], "budget_bytes": plan.budget, "plain_bytes": plan.plain, "peak_bytes": plan.peak}
                for plan in self.fitted()
            ],
        }  # fmt: skip

    # The page.

    @property
    def page(self) -> Path:
        """The page of the trace, in the same folder."""
        return self.path.with_suffix(".html")

    def _show(self) -> bool:
        """Writes the page, if there is memory to show. A page that was there stays until this one is whole."""
        if not self.memory:
            return False
        beside = self.page.with_name(f"{self.page.name}.{self._process}")
        try:
            try:
                beside.write_text(self.content(), encoding="utf-8")
                beside.replace(self.page)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            say(f"cannot write the page {self.page}: {error.strerror}")
            return False
        return True

    def content(self) -> str:
        """Three numbers, memory over the steps as measured, and over a step as planned."""
        plans = self.fitted()
        on_gpu = self.record.device.type == "cuda"
        device = device_name(self.record.device)
        peak = max(used for _, used in self.memory)
        if on_gpu:
            peak = max(peak, self.peaks.most() or 0)
        budgets = [plan.budget for plan in plans if plan.budget < UNLIMITED]
        plain = max((plan.plain for plan in plans), default=0)
        seconds = statistics.median(self.times[len(self.times) // 2 :]) / 1e6 if self.times else None
        three = [
            (text(peak), ("peak" if on_gpu else "resident in the process at most") + (f", of {text(max(budgets))}" if budgets and on_gpu else "")),
            (text(plain), "plain, predicted") if plain else ("no plan", "everything was left as it is"),
            (f"{1e3 * seconds:.1f} ms" if seconds is not None else "no step", f"a step, of {self.steps}"),
        ]
        samples = [((when - self._zero) / 1e6, used) for when, used in self.memory]
        measured = over_time(f"{self._memory_is()}, measured on {device}", samples, max(budgets) if budgets and on_gpu else None)
        note = "" if on_gpu else "<p>On a CPU, no memory is saved: a budget is only rehearsed, and the process holds what is moved.</p>"
        title = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
        said = "".join(f"<p>{html.escape(plan.brief(str(plan.step.data['name'])))}.</p>" for plan in plans)
        return page(title, three, said + note + "".join(f"<div class='wide'>{part}</div>" for part in (measured, *(plan.svg() for plan in plans))))

    # The end.

    def _stop(self) -> None:
        """Records no more."""
        if trace.record is self.record:
            trace.begin(None)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def end(self, rest: str = "") -> None:
        """Writes what is left, once, and says where it is; `rest` ends the line."""
        if trace.record is not self.record or os.getpid() != self._process:
            return
        try:
            self.write(waits=True)
        except RuntimeError as error:
            # A failed GPU has no times.
            say(f"the trace lacks its last steps: {error}")
        page = f", and the page with its memory in {self.page}" if self._show() else ""
        if self._file is not None:
            say(f"the trace of {self.steps} steps is in {self.path}{page}{rest}")
        self._stop()


def install(path: str, sessions: Callable[[], Iterable[Session]], peaks: Peaks) -> None:
    """Records this process, and the memory of its plans; of several ranks without ``%p`` in the path, the first."""
    if "%p" not in path and os.environ.get("RANK", "0") != "0":
        return
    file = Path(path.replace("%p", str(os.getpid())))
    traced = Traced(file, lambda: [plan for session in sessions() if (plan := session.last) is not None], peaks)
    trace.begin(traced.record)
    os.register_at_fork(after_in_child=lambda: trace.begin(None))
    atexit.register(traced.end)
