"""The answers to questions about memory: a plan, a sweep over budgets, the largest mini-batch."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._native import checkpoints
from .._sweep import SHARES, Sweep, page, sweep, write
from .._table import Table
from .memory.sizes import UNLIMITED, text
from .plan.fitted import Fitted
from .question import Question

__all__ = ["LargestBatch", "Plan", "Sweep"]


class Plan(Table):
    """The memory and time of a training step of a model under a budget.

    Attributes
    ----------
    peak : int
        Predicted peak in bytes under the plan.
    plain : int
        Predicted peak in bytes if everything is kept.
    overhead : float
        Predicted added time, as a share of the step: 0.05 for 5%.
    gap : float or None
        The difference between the predicted time and a lower bound, as a share of the bound. The bound covers all plans that leave the same room for
        gaps between blocks. None if everything is kept, or no bound was found.
    host : int
        Bytes of host memory.
    device : str
        The device that times are predicted for.
    assumed : list of str
        The assumptions about facts that were not given.
    """

    def __init__(self, fitted: Fitted, question: Question) -> None:
        self._fitted = fitted
        self._question = question
        self.peak = fitted.peak
        self.plain = fitted.plain
        self.overhead = fitted.overhead
        self.gap = fitted.gap
        self.device = fitted.device
        self.host = fitted.outcome.host
        self.assumed = list(fitted.step.assumed)
        self._least: int | None = None

    @property
    def least(self) -> int:
        """The least budget in bytes for which a plan was found; less may be possible. On a busy host, searches end earlier."""
        if self._least is None:
            self._least = self._question.least(self._fitted)
        return self._least

    @property
    def needed(self) -> int:
        """The least budget in bytes for this plan: its peak, and gaps between the blocks of PyTorch's allocator."""
        return self._fitted.needed

    # The names that plans of `tightfit.plan` have.

    @property
    def fits(self) -> bool:
        """True: a plan that does not fit raises :class:`tightfit.BudgetTooSmall`."""
        return True

    @property
    def network(self) -> str:
        """The model's name."""
        return str(self._fitted.step.data["name"])

    @property
    def budget_bytes(self) -> int | None:
        """The budget; None for no limit."""
        return None if self._fitted.budget >= UNLIMITED else self._fitted.budget

    @property
    def peak_bytes(self) -> int:
        """As `peak`."""
        return self.peak

    @property
    def baseline_bytes(self) -> int:
        """As `plain`."""
        return self.plain

    @property
    def least_bytes(self) -> int:
        """As `least`."""
        return self.least

    @property
    def host_bytes(self) -> int:
        """As `host`."""
        return self.host

    @property
    def offloaded_bytes(self) -> int:
        """Bytes copied to the host in a step."""
        return self._fitted.outcome.moved

    @property
    def recomputed_us(self) -> float:
        """Time of what runs again."""
        return self._fitted.outcome.rebuilt_us

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decision for each tensor that is not kept, as in a plan file."""
        if self._fitted.schedule is None:
            return []
        never: dict[str, Any] = {"offload_after": None, "release_after": None, "prefetch_before": None, "rebuilt": []}
        step = self._fitted.step
        kinds = {tensor: "mask" if tensor in step.masked else "drop" for tensor in step.dropped}
        return [*self._fitted.schedule.decisions.values(), *({"tensor": tensor, "decision": kind, **never} for tensor, kind in kinds.items())]

    def __repr__(self) -> str:
        return f"<Plan: {self._fitted.brief(self.network)}>"

    def _rows(self) -> list[dict[str, Any]]:
        tensors = self._fitted.step.data["tensors"]
        found = [(tensors[one["tensor"]], one["decision"]) for one in self.decisions]
        return [{"tensor": tensor["name"], "bytes": tensor["bytes"], "decision": decision} for tensor, decision in sorted(found, key=lambda one: -one[0]["bytes"])]

    def _shown(self) -> list[dict[str, str]]:
        figures = {
            "budget": text(self._fitted.budget) if self.budget_bytes is not None else "unlimited",
            "peak": text(self.peak),
            "plain": text(self.plain),
            "does": self._fitted.does if self._fitted.schedule is not None else "keeps everything",
            "added time": f"{100 * self.overhead:.1f}%, predicted for {self.device}",
        }
        return [{"figure": figure, "value": value} for figure, value in figures.items()]

    def _picture(self) -> str:
        return self.svg()

    def svg(self) -> str:
        """Live bytes over the step, plain and planned, as an SVG document; the dashed line is the budget."""
        return self._fitted.svg()

    def sweep(self, shares: Sequence[float] = SHARES) -> Sweep:
        """What less memory costs: the added time under each of these shares of what plain needs, down to the least budget.

        Raises
        ------
        BadInput
            If a share is not above 0, or above 10, as percentages are.
        """
        def least(plans: Sequence[Any]) -> int:
            self._least = min([self.least, *(plan.needed for plan in plans)])
            return self._least

        def of_checkpoints(shares: list[float]) -> list[float | None]:
            return checkpoints(json.dumps(self._fitted.step.data), shares)

        return sweep(self, shares, lambda budget: Plan(self._question.planned(budget), self._question), least, of_checkpoints, self.device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan with its step as JSON, for ``tightfit plan --step``; compressed if the name ends in ``.gz``.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        data = {
            **self._fitted.step.data,
            "network": self.network,
            "device": self.device,
            "budget_bytes": self._fitted.budget,
            "peak_bytes": self.peak,
            "baseline_bytes": self.plain,
            "min_feasible_bytes": self.least,
            "host_bytes": self.host,
            "overhead": self.overhead,
            "gap": self.gap,
            "decisions": self.decisions,
        }
        write(path, json.dumps(data))

    def save_step(self, path: str | os.PathLike[str]) -> None:
        """Writes the recorded step, for ``tightfit plan --step``; compressed if the name ends in ``.gz``.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        write(path, json.dumps(self._fitted.step.data))

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page: three numbers, memory over the step, plain and planned, and the decisions.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        budget = self._shown()[0]["value"]
        share = f"; {100 * self.peak / max(self.plain, 1):.0f}% of plain" if self._fitted.schedule is not None else ""
        three = [(text(self.peak), f"peak, of {budget}{share}"), (text(self.plain), "plain"), (f"{100 * self.overhead:.1f}%", "added time")]
        rows = "".join(
            f"<tr><td>{html.escape(row['tensor'])}</td><td>{text(row['bytes'])}</td><td>{row['decision']}</td></tr>" for row in self._rows()
        )
        table = f"<div class='wide'><table><tr><th>tensor</th><th>size</th><th>decision</th></tr>{rows}</table></div>" if rows else ""
        assumed = f"<p>Assumed: {html.escape('; '.join(self.assumed))}.</p>" if self.assumed else ""
        brief = f"<p>{html.escape(self._fitted.brief(self.network))}.</p>"
        write(path, page(self.network, three, f"{brief}<div class='wide'>{self.svg()}</div>{assumed}{table}"))


@dataclass(frozen=True)
class LargestBatch:
    """The largest mini-batch that fits in a budget.

    Attributes
    ----------
    batch
        With a plan.
    plain_batch
        Without a plan, by the same predictions; 0 if not one sample fits.
    plan
        The plan for `batch`.
    """

    batch: int
    plain_batch: int
    plan: Plan

    def __repr__(self) -> str:
        return f"<LargestBatch: {self.batch} with a plan, {self.plain_batch} without: {self.plan._fitted.brief(self.plan.network)}>"

