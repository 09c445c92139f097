"""The answers to questions about memory: a plan, a sweep over budgets, the largest mini-batch."""

from __future__ import annotations

import gzip
import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._native import checkpoints
from .._table import Table, size
from ..errors import BadInput, FileError
from .memory.sizes import UNLIMITED, Share, text
from .pictures import PAGE, planned, tradeoff
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
        return planned(self._fitted)

    def sweep(self, shares: Sequence[float] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)) -> Sweep:
        """What less memory costs: the added time under each of these shares of what plain needs, down to the least budget.

        Raises
        ------
        BadInput
            If a share is not above 0, or above 10, as percentages are.
        """
        if not shares or min(shares) <= 0 or max(shares) > 10:
            raise BadInput(f"shares={list(shares)!r}: give shares of what plain needs, such as (0.8, 0.6, 0.4)")
        plans = []
        refused = None
        for share in sorted(set(shares), reverse=True):
            fitted, fits = self._question.within(Share(share))
            if not fits:
                refused = share
                break
            plans.append((share, Plan(fitted, self._question)))
        # A search within one of these budgets may have found less.
        needed = [plan._fitted.needed for _, plan in plans]
        self._least = min([self.least, *needed])
        if not plans or self.least < min(needed):
            plans.append((self.least / self.plain, Plan(self._question.planned(self.least), self._question)))
        by_share = checkpoints(json.dumps(self._fitted.step.data), [share for share, _ in plans])
        found = [(share, added) for (share, _), added in zip(plans, by_share, strict=True) if added is not None]
        return Sweep(self.network, self.plain, self.least, self.device, plans, found, refused)

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
        _write(path, json.dumps(data))

    def save_step(self, path: str | os.PathLike[str]) -> None:
        """Writes the recorded step, for ``tightfit plan --step``; compressed if the name ends in ``.gz``.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        _write(path, json.dumps(self._fitted.step.data))

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
        title = html.escape(self.network)
        _write(
            path,
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>{PAGE}<h1>{title}</h1><div class='three'>"
            + "".join(f"<div><b>{number}</b>{html.escape(what)}</div>" for number, what in three)
            + f"</div><p>{html.escape(self._fitted.brief(self.network))}.</p><div class='wide'>{self.svg()}</div>{assumed}{table}</html>",
        )


@dataclass(repr=False)
class Sweep(Table):
    """Plans of one step under shares of what plain needs.

    Attributes
    ----------
    network, device
        The model, and what times are predicted for.
    plain, least
        What a plain step needs, and the least budget for which a plan was found.
    plans
        By share, from the largest on, down to the least budget.
    checkpoints
        For each share in which checkpoints fit (Chen et al. 2016): the share, and their added time, by the same prediction.
    refused
        The largest share for which no plan was found; None if every share has a plan.
    """

    network: str
    plain: int
    least: int
    device: str
    plans: list[tuple[float, Plan]]
    checkpoints: list[tuple[float, float]]
    refused: float | None = None

    def __repr__(self) -> str:
        return f"<Sweep: {self.network}, plain {text(self.plain)}, least {text(self.least)}, predicted for {self.device}>"

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "share": share, "budget_bytes": plan.budget_bytes, "peak_bytes": plan.peak, "overhead": plan.overhead,
                "offloaded_bytes": plan.offloaded_bytes, "recomputed_us": plan.recomputed_us, "checkpoints": dict(self.checkpoints).get(share),
            }
            for share, plan in self.plans
        ]  # fmt: skip

    def _shown(self) -> list[dict[str, str]]:
        rows = []
        for share, plan in self.plans:
            added = dict(self.checkpoints).get(share)
            rows.append({
                "budget": size(plan.budget_bytes), "of plain": f"{100 * share:.0f}%", "added time": f"{100 * plan.overhead:.1f}%",
                "moved": size(plan.offloaded_bytes), "recomputed": f"{plan.recomputed_us / 1e3:.1f} ms",
                "checkpoints": "" if added is None else f"{100 * added:.1f}%",
            })  # fmt: skip
        if self.refused is not None:
            row = dict.fromkeys(rows[0], "")
            least = f"does not fit (least {text(self.least, enough=True)})"
            rows.append(row | {"budget": size(int(self.refused * self.plain)), "of plain": f"{100 * self.refused:.0f}%", "added time": least})
        return rows

    def _picture(self) -> str:
        return self.svg()

    def svg(self) -> str:
        """Added time against the budget, with checkpoints, plain and the least budget, as an SVG document."""
        rows = [(plan.budget_bytes or self.plain, plan.overhead) for _, plan in self.plans]
        others = [(int(share * self.plain), added) for share, added in self.checkpoints]
        return tradeoff(self.network, self.plain, rows, others, self.least, self.device)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with the picture and the table.

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        title = html.escape(self.network)
        rows = self._shown()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
        table = f"<div class='wide'><table><tr>{head}</tr>{body}</table></div>"
        three = [(text(self.plain), "plain"), (text(self.least, enough=True), f"least, {100 * self.least / self.plain:.0f}% of plain")]
        three += [(f"{100 * plan.overhead:.1f}%", f"added time in {100 * share:.0f}% of plain") for share, plan in self.plans[-1:]]
        numbers = "".join(f"<div><b>{number}</b>{html.escape(what)}</div>" for number, what in three)
        # One point is no curve.
        picture = f"<div class='wide'>{self.svg()}</div>" if len(self.plans) > 1 else ""
        _write(
            path,
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>{PAGE}<h1>{title}</h1><div class='three'>{numbers}</div>"
            f"<p>Predicted for {html.escape(self.device)}.</p>{picture}{table}</html>",
        )


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


def _write(path: str | os.PathLike[str], content: str) -> None:
    data = content.encode()
    try:
        # Without the time of writing, so that equal plans are equal files.
        Path(path).write_bytes(gzip.compress(data, mtime=0) if os.fspath(path).endswith(".gz") else data)
    except OSError as error:
        raise FileError(f"cannot write {os.fspath(path)}: {error.strerror}", os.fspath(path)) from error
