"""The cost of less memory: plans of one step under several budgets. Plans of PyTorch models and of networks have the same answer."""

from __future__ import annotations

import gzip
import html
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ._pictures import PAGE, tradeoff
from ._table import Table, size, text
from .errors import BadInput, BudgetTooSmall, FileError

__all__ = ["SHARES", "StepPlan", "Sweep", "page", "sweep", "write"]

#: The shares of a sweep by default.
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


class StepPlan(Protocol):
    """A plan of a PyTorch model or of a network: the figures that both have."""

    @property
    def network(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def budget_bytes(self) -> int | None: ...
    @property
    def peak(self) -> int: ...
    @property
    def needed(self) -> int: ...
    @property
    def plain(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def host(self) -> int: ...
    @property
    def overhead(self) -> float: ...
    @property
    def gap(self) -> float | None: ...
    @property
    def offloaded_bytes(self) -> int: ...
    @property
    def recomputed_us(self) -> float: ...
    def svg(self) -> str: ...
    def html(self, path: str | os.PathLike[str]) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(repr=False)
class Sweep(Table):
    """Plans of one step under shares of plain.

    Attributes
    ----------
    network, device
        The network or model, and the device that times are predicted for.
    plain, least
        The bytes of a plain step, and the least budget for which a plan was found.
    plans
        By share, from the largest on, down to the least budget.
    refused
        The largest share for which no plan was found; None if every share has a plan.
    checkpoints
        For each share in which checkpoints fit (Chen et al. 2016): the share, and their added time, by the same prediction.
    """

    network: str
    plain: int
    least: int
    device: str
    plans: list[tuple[float, StepPlan]]
    refused: float | None = None
    checkpoints: list[tuple[float, float]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Sweep: {self.network}, plain {text(self.plain)}, least {text(self.least, enough=True)}, predicted for {self.device}>"

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
            row = {
                "budget": size(plan.budget_bytes), "of plain": f"{100 * share:.0f}%", "added time": f"{100 * plan.overhead:.1f}%",
                "moved": size(plan.offloaded_bytes), "recomputed": f"{plan.recomputed_us / 1e3:.1f} ms",
            }  # fmt: skip
            if self.checkpoints:
                added = dict(self.checkpoints).get(share)
                row["checkpoints"] = "" if added is None else f"{100 * added:.1f}%"
            rows.append(row)
        if self.refused is not None:
            row = {"budget": size(int(self.refused * self.plain)), "of plain": f"{100 * self.refused:.0f}%"}
            row["added time"] = "does not fit"
            rows.append(dict.fromkeys(rows[0], "") | row)
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
        rows = self._shown()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
        share, least = self.plans[-1]
        three = [
            (text(self.plain), "plain"),
            (text(self.least, enough=True), f"least, {100 * self.least / self.plain:.0f}% of plain"),
            (f"{100 * least.overhead:.1f}%", f"added time in {100 * share:.0f}% of plain"),
        ]
        # A curve needs two points.
        picture = f"<div class='wide'>{self.svg()}</div>" if len(self.plans) > 1 else ""
        device = f"<p>Predicted for {html.escape(self.device)}.</p>"
        write(path, page(self.network, three, f"{device}{picture}<div class='wide'><table><tr>{head}</tr>{body}</table></div>"))


def sweep(
    plan: StepPlan,
    shares: Sequence[float],
    within: Callable[[int], StepPlan],
    least: Callable[[Sequence[StepPlan]], int],
    checkpoints: Callable[[list[float]], list[float | None]],
    device: str,
) -> Sweep:
    """Plans a step within each of these shares of plain, down to the least budget.

    Parameters
    ----------
    within
        The plan within a budget.
    least
        The least budget, after these plans were found: a search within one of their budgets may have found less.
    checkpoints
        The time that checkpoints add under each of these shares, as a share of the step; None where they do not fit.

    Raises
    ------
    BadInput
        If a share is not above 0, or above 10, as percentages are.
    """
    if not shares or min(shares) <= 0 or max(shares) > 10:
        raise BadInput(f"shares={list(shares)!r}: give shares of what plain needs, such as (0.8, 0.6, 0.4)")
    plans: list[tuple[float, StepPlan]] = []
    refused = None
    for share in sorted(set(shares), reverse=True):
        try:
            plans.append((share, within(max(1, int(share * plan.plain)))))
        except BudgetTooSmall:
            refused = share
            break
    lowest = least([found for _, found in plans])
    if not plans or lowest < min(found.needed for _, found in plans):
        plans.append((lowest / plan.plain, within(lowest)))
    under = [share for share, _ in plans]
    added = [(share, more) for share, more in zip(under, checkpoints(under), strict=True) if more is not None]
    return Sweep(plan.network, plan.plain, lowest, device, plans, refused, added)


def page(title: str, three: Sequence[tuple[str, str]], content: str) -> str:
    """A page that begins with three numbers and their meanings."""
    numbers = "".join(f"<div><b>{number}</b>{html.escape(what)}</div>" for number, what in three)
    title = html.escape(title)
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>{PAGE}<h1>{title}</h1>"
    return f"{head}<div class='three'>{numbers}</div>{content}</html>"


def write(path: str | os.PathLike[str], content: str) -> None:
    """Writes a file, compressed if its name ends in ``.gz``.

    Raises
    ------
    FileError
        If it cannot be written.
    """
    data = content.encode()
    try:
        # Without the time of writing, so that equal plans are equal files.
        Path(path).write_bytes(gzip.compress(data, mtime=0) if os.fspath(path).endswith(".gz") else data)
    except OSError as error:
        raise FileError(f"cannot write {os.fspath(path)}: {error.strerror}", os.fspath(path)) from error
