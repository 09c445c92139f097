"""What a program under ``tightfit run --budget`` did, when it ends: on one line, and in the file of ``--report``."""

from __future__ import annotations

import atexit
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from .compiled.held import all_held
from .memory.peaks import Peaks
from .memory.sizes import UNLIMITED, text
from .messages import say

if TYPE_CHECKING:
    from .compiled.held import Held
    from .eager.session import Session
    from .plan.fitted import Fitted

__all__ = ["Steps", "Summary", "stats_of"]

# The times of these first steps do not count: they include planning and compiling.
_FIRST = 5
# The most step times to keep.
_KEPT = 4096


class Steps:
    """Counts the steps of the optimizer that steps first, and times them on the host. Once the host waits for the GPU, its times are the GPU's."""

    def __init__(self) -> None:
        self.count = 0
        self.times: list[float] = []
        self._first: int | None = None
        self._last = 0.0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first:
            return
        now = time.perf_counter()
        self.count += 1
        if self.count > _FIRST and len(self.times) < _KEPT:
            self.times.append(now - self._last)
        self._last = now

    @property
    def seconds(self) -> float | None:
        """The median time of a step, without the first ones."""
        return statistics.median(self.times) if self.times else None


class Summary:
    """Writes a summary at the end of its process."""

    def __init__(self, sessions: Callable[[], Iterable[Session]]) -> None:
        self.sessions = sessions
        self.steps = Steps()
        self.peaks = Peaks()
        self._process = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        # A forked child inherits the hooks and models of its parent, but must not write a summary.
        if os.getpid() != self._process or os.environ.get("RANK", "0") != "0":
            return
        fitted = [plan for session in self.sessions() if (plan := session.last) is not None]
        graphs = all_held()
        if not fitted and not any(held.graphs for held in graphs):
            return
        say(self.line(fitted, graphs))
        if path := os.environ.get("TIGHTFIT_BUDGET_REPORT"):
            file = Path(path.replace("%p", str(os.getpid())))
            try:
                file.write_text(json.dumps(self.report(fitted, graphs), indent=2) + "\n", encoding="utf-8")
            except OSError as error:
                say(f"cannot write the report {file}: {error.strerror}")

    def line(self, fitted: list[Fitted], graphs: list[Held]) -> str:
        """The summary."""
        budget = max([plan.budget for plan in fitted] + [held.budget for held in graphs])
        seconds = self.steps.seconds
        steps = f"{self.steps.count} steps" + (f" of {_duration(seconds)}" if seconds is not None else "")
        most = self.peaks.most()
        if most is not None:
            peak = f"peak {text(most)} of {text(budget)}"
        else:
            predicted = [plan.peak for plan in fitted] + [planned.peak for held in graphs for planned in held.planned]
            peak = f"predicted peak {text(max(predicted, default=0))} of {text(budget)}"
        if budget >= UNLIMITED:
            peak = peak.removesuffix(f" of {text(budget)}")
        given_up = [plan for plan in fitted if plan.schedule is not None]
        divided = [planned for held in graphs for planned in held.planned if not planned.is_plain]
        if not given_up and not divided:
            return f"{steps}, {peak}; everything fit, so nothing was changed"
        does = "; ".join(plan.does for plan in given_up)
        if divided:
            milliseconds = sum(planned.overhead_us for planned in divided) / 1e3
            does = "; ".join(filter(None, [does, f"compiled graphs recompute, for {milliseconds:.1f} ms more"]))
        over = f" and takes about {100 * _overhead(given_up):.1f}% longer than plain" if given_up else ""
        return f"{steps}, {peak}; each {does}{over} (predicted; `tightfit compare` measures it)"

    def report(self, fitted: list[Fitted], graphs: list[Held]) -> dict[str, Any]:
        """The same for programs."""
        seconds = self.steps.seconds
        return {
            "kind": "budget",
            "pid": os.getpid(),
            "steps": self.steps.count,
            "step_ms": None if seconds is None else 1e3 * seconds,
            "peak_bytes": self.peaks.most(),
            "models": [stats_of(plan) for plan in fitted],
            "graphs": [
                {
                    "budget_bytes": held.budget, "peak_bytes": planned.peak, "plain_bytes": planned.plain, "by": planned.of,
                    "overhead_us": planned.overhead_us,
                }
                for held in graphs for planned in held.planned
            ],
        }  # fmt: skip


def stats_of(fitted: Fitted) -> dict[str, Any]:
    """A plan in numbers."""
    outcome = fitted.outcome
    return {
        "model": fitted.step.data["name"],
        "device": fitted.device,
        "budget_bytes": fitted.budget,
        "plain_bytes": fitted.plain,
        "peak_bytes": fitted.peak,
        "seen_bytes": fitted.watch.seen or None,
        "moved_bytes": outcome.moved,
        "host_bytes": outcome.host,
        "dropped_bytes": fitted.dropped,
        "recomputed_ms": outcome.rebuilt_us / 1e3,
        "overhead": fitted.overhead,
        "planning_s": fitted.seconds,
    }


def _overhead(plans: list[Fitted]) -> float:
    """The added share of time of plans that follow each other."""
    plain = sum(plan.decided.plain.time_us for plan in plans)
    return sum(plan.outcome.time_us for plan in plans) / max(plain, 1e-9) - 1


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
