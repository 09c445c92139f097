"""Pictures of plans and runs: memory over a step or over time, and time against budgets, as SVG with axes and numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .memory.sizes import UNLIMITED, text

if TYPE_CHECKING:
    from .plan.fitted import Fitted

__all__ = ["PAGE", "memory", "over_time", "planned", "tradeoff"]

_WIDTH, _HEIGHT = 960, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 40, 50
# Readable on light and dark pages, and apart for eyes that see few colors (Okabe and Ito 2008).
_PLAIN, _OURS, _LIMIT, _INK = "#767676", "#0072B2", "#D55E00", "#444444"
#: The style of a page, for phones and screens, light and dark.
PAGE = (
    "<meta name='viewport' content='width=device-width, initial-scale=1'><style>body{font:15px sans-serif;margin:1.5em auto;max-width:62em;"
    "padding:0 1em;color:#222;background:#fff}svg{width:100%;min-width:760px;height:auto}"
    "td,th{padding:.1em 1em .1em 0;text-align:left;white-space:nowrap}"
    ".wide{overflow-x:auto}.three{display:flex;flex-wrap:wrap;gap:1em 3em}.three b{display:block;font-size:1.6em}</style>"
)


class _Axes:
    """Places of values in a picture."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.low, self.high = x
        self.bottom, self.top = y

    def x(self, value: float) -> float:
        return _LEFT + (value - self.low) / max(self.high - self.low, 1e-12) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self.bottom) / max(self.top - self.bottom, 1e-12) * (_HEIGHT - _TOP - _BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], color: str, title: str) -> str:
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f"<polyline fill='none' stroke='{color}' stroke-width='1.5' points='{places}'><title>{html.escape(title)}</title></polyline>"

    def level(self, value: float, color: str, label: str) -> str:
        y = self.y(value)
        return (
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{color}' stroke-dasharray='5 4'/>"
            f"<text x='{_WIDTH - _RIGHT}' y='{y - 5:.1f}' fill='{color}' text-anchor='end'>{html.escape(label)}</text>"
        )


def _ticks(high: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    return [step * at for at in range(math.ceil(high / step) + 1)]


def _frame(axes: _Axes, x_label: str, y_label: str, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]], title: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = [
        f"<text x='{_LEFT}' y='18' font-size='14' font-weight='bold'>{html.escape(title)}</text>",
        f"<line x1='{_LEFT}' y1='{bottom}' x2='{_WIDTH - _RIGHT}' y2='{bottom}' stroke='{_INK}'/>",
        f"<line x1='{_LEFT}' y1='{_TOP}' x2='{_LEFT}' y2='{bottom}' stroke='{_INK}'/>",
        f"<text x='{(_LEFT + _WIDTH - _RIGHT) / 2}' y='{_HEIGHT - 8}' text-anchor='middle'>{html.escape(x_label)}</text>",
        f"<text transform='translate(14,{(_TOP + bottom) / 2}) rotate(-90)' text-anchor='middle'>{html.escape(y_label)}</text>",
    ]
    for value, label in xs:
        parts.append(f"<text x='{axes.x(value):.1f}' y='{bottom + 18}' text-anchor='middle'>{html.escape(label)}</text>")
    for value, label in ys:
        y = axes.y(value)
        parts.append(f"<line x1='{_LEFT - 4}' x2='{_LEFT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{_INK}'/>")
        parts.append(f"<text x='{_LEFT - 7}' y='{y + 4:.1f}' text-anchor='end'>{html.escape(label)}</text>")
    return "".join(parts)


def _svg(body: str, label: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{html.escape(label, quote=True)}' "
        f"font-family='sans-serif' font-size='12' fill='{_INK}'><rect width='{_WIDTH}' height='{_HEIGHT}' fill='#ffffff'/>{body}</svg>"
    )


def _unit(size: float) -> tuple[int, str]:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return unit, name
    return 1, "bytes"


def memory(name: str, plain: Sequence[int], planned: Sequence[int], backward_start: int, budget: int | None, names: Sequence[str], planned_is: str) -> str:
    """Live bytes over the operations of a step, plain and planned, with the peaks and the budget in numbers. `backward_start` is the first
    operation of the backward pass."""
    top = max(*plain, *planned, 1)
    if budget is not None and budget <= 1.2 * top:
        top = max(top, budget)
    unit, unit_name = _unit(top)
    marks = _ticks(top / unit)
    count = max(len(plain), 2)
    axes = _Axes((0, count - 1), (0, marks[-1] * unit))
    stride = max(1, len(plain) // (2 * _WIDTH))

    def curve(live: Sequence[int], color: str, title: str) -> str:
        return axes.line([(at, max(live[at : at + stride])) for at in range(0, len(live), stride)], color, title)

    body = _frame(
        axes, "operations of a step", f"live memory, {unit_name}", [(0, "forward pass"), (backward_start, "backward pass")],
        [(mark * unit, f"{mark:g}") for mark in marks], f"{name}: memory over a step",
    )  # fmt: skip
    body += curve(plain, _PLAIN, "plain") + curve(planned, _OURS, planned_is)
    peaks = [max(range(len(live)), key=live.__getitem__) for live in (plain, planned)]
    # Labels of peaks that are near each other stand above and below.
    below = 18 if axes.y(planned[peaks[1]]) - axes.y(plain[peaks[0]]) < 18 else -6
    for live, at, color, what, dy in ((plain, peaks[0], _PLAIN, "plain", -6), (planned, peaks[1], _OURS, planned_is, below)):
        anchor = "end" if at > count / 2 else "start"
        where = f", at {names[at]}" if at < len(names) else ""
        body += (
            f"<circle cx='{axes.x(at):.1f}' cy='{axes.y(live[at]):.1f}' r='3' fill='{color}'/><text x='{axes.x(at):.1f}' "
            f"y='{axes.y(live[at]) + dy:.1f}' fill='{color}' text-anchor='{anchor}'>{what}: {text(live[at])}{html.escape(where)}</text>"
        )
    if budget is not None and budget <= axes.top:
        body += axes.level(budget, _LIMIT, f"budget {text(budget)}")
    # A narrow band for each stretch of operations, whose tooltip names the first.
    band = max(1, len(names) // 240)
    for at in range(0, len(names), band):
        left, right = axes.x(at), axes.x(min(at + band, count - 1))
        tip = f"{names[at]}: plain {text(plain[at])}, {planned_is} {text(planned[min(at, len(planned) - 1)])}"
        body += (
            f"<rect x='{left:.1f}' y='{_TOP}' width='{max(right - left, 0.5):.1f}' height='{_HEIGHT - _TOP - _BOTTOM}' fill='#000' "
            f"fill-opacity='0'><title>{html.escape(tip)}</title></rect>"
        )
    return _svg(body, f"Memory of {name} over a step")


def planned(fitted: Fitted, fits: bool = True) -> str:
    """Live bytes over a step, plain and planned; the dashed line is the budget."""
    data, lives = fitted.step.data, fitted.lives
    names = [f"{operation['name']} in {data['groups'][operation['group']]['name']}" for operation in lives.operations]
    budget = fitted.budget if fitted.budget < UNLIMITED else None
    what = "planned" if fits else "the least plan found, which does not fit"
    return memory(str(data["name"]), fitted.decided.plain.live, fitted.outcome.live, lives.backward_start, budget, names, what)


def over_time(title: str, samples: Sequence[tuple[float, int]], budget: int | None) -> str:
    """Measured bytes over seconds, with the highest sample and the budget in numbers."""
    most = max(samples, key=lambda sample: sample[1])
    top = max(most[1], budget or 0, 1)
    unit, unit_name = _unit(top)
    ys, xs = _ticks(top / unit), _ticks(max(samples[-1][0], 1e-3))
    axes = _Axes((0, xs[-1]), (0, ys[-1] * unit))
    body = _frame(
        axes, "seconds since the first model ran", f"memory, {unit_name}", [(mark, f"{mark:g}") for mark in xs],
        [(mark * unit, f"{mark:g}") for mark in ys], title,
    )  # fmt: skip
    # Samples within half a pixel become one point, the highest.
    columns: dict[int, tuple[float, int]] = {}
    for when, used in samples:
        column = int(2 * axes.x(when))
        if column not in columns or columns[column][1] < used:
            columns[column] = when, used
    body += axes.line(list(columns.values()), _OURS, title)
    x, y = axes.x(most[0]), axes.y(most[1])
    anchor = "end" if x > _WIDTH / 2 else "start"
    body += (
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{_OURS}'/>"
        f"<text x='{x:.1f}' y='{y - 6:.1f}' fill='{_OURS}' text-anchor='{anchor}'>highest sample: {text(most[1])}</text>"
    )
    if budget is not None:
        body += axes.level(budget, _LIMIT, f"budget {text(budget)}")
    return _svg(body, title)


def tradeoff(name: str, plain: int, rows: Sequence[tuple[int, float]], least: int, device: str) -> str:
    """Added time in percent against the budget, from plain down to the least budget."""
    unit, unit_name = _unit(plain)
    widest = max(plain, *(budget for budget, _ in rows)) if rows else plain
    most = max([100 * overhead for _, overhead in rows] or [1.0])
    ys, xs = _ticks(max(most, 1.0)), _ticks(widest / unit)
    axes = _Axes((0, xs[-1]), (0, ys[-1]))
    body = _frame(
        axes, f"budget, {unit_name}", "added time, %", [(mark, f"{mark:g}") for mark in xs], [(mark, f"{mark:g}") for mark in ys],
        f"{name}: what each {unit_name} costs, predicted for {device}",
    )  # fmt: skip
    points = sorted((budget / unit, 100 * overhead) for budget, overhead in rows)
    body += axes.line(points, _OURS, "tightfit")
    for x, y in points:
        body += (
            f"<circle cx='{axes.x(x):.1f}' cy='{axes.y(y):.1f}' r='3.5' fill='{_OURS}'><title>{x:.2f} {unit_name}: {y:.1f}%</title></circle>"
            f"<text x='{axes.x(x):.1f}' y='{axes.y(y) - 8:.1f}' text-anchor='middle' fill='{_OURS}'>{y:.1f}</text>"
        )
    for value, label, color, dy in ((plain, "plain", _PLAIN, 12), (least, "least", _LIMIT, 28)):
        x = axes.x(value / unit)
        body += (
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{_HEIGHT - _BOTTOM}' stroke='{color}' stroke-dasharray='5 4'/>"
            f"<text x='{x - 4:.1f}' y='{_TOP + dy}' text-anchor='end' fill='{color}'>{label} {text(value)}</text>"
        )
    return _svg(body, f"Added time of {name} against its budget")
