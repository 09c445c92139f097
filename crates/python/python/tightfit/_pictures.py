"""Pictures of plans and runs: memory over a step or over time, and time against budgets, as SVG with axes and numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from ._table import text

__all__ = ["PAGE", "memory", "over_time", "tradeoff"]

# Narrow, so that a phone can show it whole, with letters of a readable size.
_WIDTH, _PLOT = 560, 220
_LEFT, _RIGHT, _BOTTOM = 64, 20, 50
# The left edge of the title and the key, and the most letters of a line.
_MARGIN, _LETTERS = 10, 84
# Heights of the title, and of a line of the key.
_TITLE, _LINE = 34, 17
_DASHES = "stroke-dasharray='5 4'"
# Readable on light and dark pages, and apart for eyes that see few colors (Okabe and Ito 2008).
_PLAIN, _OURS, _OTHERS, _LIMIT, _INK = "#767676", "#0072B2", "#009E73", "#D55E00", "#444444"
#: The style of a page, for phones and screens, light and dark.
PAGE = (
    "<meta name='viewport' content='width=device-width, initial-scale=1'><style>body{font:15px sans-serif;margin:1.5em auto;max-width:62em;"
    "padding:0 1em;color:#222;background:#fff}svg{width:100%;max-width:780px;height:auto}"
    "td,th{padding:.1em 1em .1em 0;text-align:left;white-space:nowrap}"
    ".wide{overflow-x:auto}.three{display:flex;flex-wrap:wrap;gap:1em 3em}.three b{display:block;font-size:1.6em}</style>"
)


class _Key(NamedTuple):
    """A line of the key under the title: labels stand there, because in the picture they would cross curves. A line without a color continues the
    one above."""

    color: str
    label: str
    dashed: bool = False


class _Axes:
    """Places of values in a picture whose key has this number of lines."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], keys: int) -> None:
        self.low, self.high = x
        self.least, self.most = y
        self.top = _TITLE + keys * _LINE
        self.bottom = self.top + _PLOT

    def x(self, value: float) -> float:
        return _LEFT + (value - self.low) / max(self.high - self.low, 1e-12) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.least) / max(self.most - self.least, 1e-12) * _PLOT

    def line(self, points: Sequence[tuple[float, float]], color: str, title: str) -> str:
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f"<polyline fill='none' stroke='{color}' stroke-width='1.5' points='{places}'><title>{html.escape(title)}</title></polyline>"

    def dot(self, x: float, y: float, color: str, title: str) -> str:
        return f"<circle cx='{self.x(x):.1f}' cy='{self.y(y):.1f}' r='3.5' fill='{color}'><title>{html.escape(title)}</title></circle>"

    def level(self, value: float, color: str) -> str:
        y = self.y(value)
        return f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{color}' {_DASHES}/>"

    def upright(self, value: float, color: str) -> str:
        x = self.x(value)
        return f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{self.top}' y2='{self.bottom}' stroke='{color}' {_DASHES}/>"


def _ticks(high: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    return [step * at for at in range(math.ceil(high / step) + 1)]


def _picture(
    axes: _Axes, keys: Sequence[_Key], labels: tuple[str, str], xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]], title: str, body: str
) -> str:
    """The picture with its title, its key and its axes."""
    bottom, height = axes.bottom, axes.bottom + _BOTTOM
    parts = [
        f"<text x='{_MARGIN}' y='18' font-size='14' font-weight='bold'>{html.escape(title)}</text>",
        f"<line x1='{_LEFT}' y1='{bottom}' x2='{_WIDTH - _RIGHT}' y2='{bottom}' stroke='{_INK}'/>",
        f"<line x1='{_LEFT}' y1='{axes.top}' x2='{_LEFT}' y2='{bottom}' stroke='{_INK}'/>",
        f"<text x='{(_LEFT + _WIDTH - _RIGHT) / 2}' y='{height - 8}' text-anchor='middle'>{html.escape(labels[0])}</text>",
        f"<text transform='translate(14,{(axes.top + bottom) / 2}) rotate(-90)' text-anchor='middle'>{html.escape(labels[1])}</text>",
    ]
    for at, key in enumerate(keys):
        base = _TITLE + at * _LINE
        if key.color:
            dashes = _DASHES if key.dashed else ""
            parts.append(f"<line x1='{_MARGIN}' x2='{_MARGIN + 22}' y1='{base - 4}' y2='{base - 4}' stroke='{key.color}' stroke-width='2' {dashes}/>")
        label = key.label if len(key.label) <= _LETTERS else key.label[: _LETTERS - 2] + ".."
        parts.append(f"<text x='{_MARGIN + 30}' y='{base}'>{html.escape(label)}</text>")
    for value, label in xs:
        parts.append(f"<text x='{axes.x(value):.1f}' y='{bottom + 18}' text-anchor='middle'>{html.escape(label)}</text>")
    for value, label in ys:
        y = axes.y(value)
        parts.append(f"<line x1='{_LEFT - 4}' x2='{_LEFT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{_INK}'/>")
        parts.append(f"<text x='{_LEFT - 7}' y='{y + 4:.1f}' text-anchor='end'>{html.escape(label)}</text>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' role='img' aria-label='{html.escape(title, quote=True)}' "
        f"font-family='sans-serif' font-size='12' fill='{_INK}'><rect width='{_WIDTH}' height='{height}' fill='#ffffff'/>"
        f"{''.join(parts)}{body}</svg>"
    )


def _unit(size: float) -> tuple[int, str]:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return unit, name
    return 1, "bytes"


def memory(name: str, plain: Sequence[int], planned: Sequence[int], backward_start: int, budget: int | None, names: Sequence[str]) -> str:
    """Live bytes over the operations of a step, plain and planned, with the peaks and the budget in numbers. `backward_start` is the first
    operation of the backward pass."""
    top = max(*plain, *planned, 1)
    if budget is not None and budget <= 1.2 * top:
        top = max(top, budget)
    unit, unit_name = _unit(top)
    marks = _ticks(top / unit)
    count = max(len(plain), 2)
    curves = (plain, _PLAIN, "plain"), (planned, _OURS, "planned")
    keys, peaks = [], []
    for live, color, what in curves:
        at = max(range(len(live)), key=live.__getitem__)
        peaks.append((at, live[at], color, what))
        keys.append(_Key(color, f"{what}: at most {text(live[at])}"))
        if at < len(names):
            keys.append(_Key("", f"at {names[at]}"))
    if budget is not None:
        keys.append(_Key(_LIMIT, f"budget: {text(budget)}", dashed=True))
    axes = _Axes((0, count - 1), (0, marks[-1] * unit), len(keys))
    stride = max(1, len(plain) // (2 * _WIDTH))
    body = ""
    for live, color, what in curves:
        body += axes.line([(at, max(live[at : at + stride])) for at in range(0, len(live), stride)], color, what)
    for at, most, color, what in peaks:
        body += axes.dot(at, most, color, f"{what}: {text(most)}")
    if budget is not None and budget <= axes.most:
        body += axes.level(budget, _LIMIT)
    # A narrow band for each stretch of operations, whose tooltip names the first.
    band = max(1, len(names) // 240)
    for at in range(0, len(names), band):
        left, right = axes.x(at), axes.x(min(at + band, count - 1))
        tip = f"{names[at]}: plain {text(plain[at])}, planned {text(planned[min(at, len(planned) - 1)])}"
        body += (
            f"<rect x='{left:.1f}' y='{axes.top}' width='{max(right - left, 0.5):.1f}' height='{_PLOT}' fill='#000' "
            f"fill-opacity='0'><title>{html.escape(tip)}</title></rect>"
        )
    labels = "operations of a step", f"live memory, {unit_name}"
    ys = [(mark * unit, f"{mark:g}") for mark in marks]
    return _picture(axes, keys, labels, [(0, "forward pass"), (backward_start, "backward pass")], ys, f"{name}: memory over a step", body)


def over_time(title: str, samples: Sequence[tuple[float, int]], budget: int | None) -> str:
    """Measured bytes over seconds, with the highest sample and the budget in numbers."""
    when, most = max(samples, key=lambda sample: sample[1])
    top = max(most, budget or 0, 1)
    unit, unit_name = _unit(top)
    ys, xs = _ticks(top / unit), _ticks(max(samples[-1][0], 1e-3))
    keys = [_Key(_OURS, f"memory in use: at most {text(most)}")]
    if budget is not None:
        keys.append(_Key(_LIMIT, f"budget: {text(budget)}", dashed=True))
    axes = _Axes((0, xs[-1]), (0, ys[-1] * unit), len(keys))
    # Samples within half a pixel become one point, the highest.
    columns: dict[int, tuple[float, int]] = {}
    for at, used in samples:
        column = int(2 * axes.x(at))
        if column not in columns or columns[column][1] < used:
            columns[column] = at, used
    body = axes.line(list(columns.values()), _OURS, title) + axes.dot(when, most, _OURS, keys[0].label)
    if budget is not None:
        body += axes.level(budget, _LIMIT)
    labels = "seconds since the first model ran", f"memory, {unit_name}"
    return _picture(axes, keys, labels, [(mark, f"{mark:g}") for mark in xs], [(mark * unit, f"{mark:g}") for mark in ys], title, body)


def tradeoff(name: str, plain: int, rows: Sequence[tuple[int, float]], checkpoints: Sequence[tuple[int, float]], least: int, device: str) -> str:
    """Added time in percent against the budget, from plain down to the least budget, and the added time of checkpoints."""
    unit, unit_name = _unit(plain)
    widest = max(plain, *(budget for budget, _ in rows)) if rows else plain
    most = max([100 * overhead for _, overhead in (*rows, *checkpoints)] or [1.0])
    # The number above the highest point is in the picture too.
    ys, xs = _ticks(max(1.1 * most, 1.0)), _ticks(widest / unit)
    # No budget below the least has a plan, so the axis begins near it.
    xs = xs[max(sum(mark < least / unit for mark in xs) - 1, 0) :]
    keys = [
        _Key(_OURS, f"added time, predicted for {device}"),
        *([_Key(_OTHERS, "checkpoints, by the same prediction")] if checkpoints else []),
        _Key(_PLAIN, f"plain: {text(plain)}", dashed=True),
        _Key(_LIMIT, f"least budget: {text(least, enough=True)}, {100 * least / max(plain, 1):.0f}% of plain", dashed=True),
    ]
    axes = _Axes((xs[0], xs[-1]), (0, ys[-1]), len(keys))
    points = sorted((budget / unit, 100 * overhead) for budget, overhead in rows)
    others = sorted((budget / unit, 100 * overhead) for budget, overhead in checkpoints)
    body = axes.line(others, _OTHERS, "checkpoints") if others else ""
    body += "".join(axes.dot(x, y, _OTHERS, f"checkpoints, {x:.2f} {unit_name}: {y:.1f}%") for x, y in others)
    body += axes.upright(plain / unit, _PLAIN) + axes.upright(least / unit, _LIMIT) + axes.line(points, _OURS, "tightfit")
    for x, y in points:
        # The curve falls to the right, so there is room on the upper right of its points; the outline keeps the dashed lines off.
        body += axes.dot(x, y, _OURS, f"{x:.2f} {unit_name}: {y:.1f}%")
        body += (
            f"<text x='{axes.x(x) + 5:.1f}' y='{axes.y(y) - 6:.1f}' fill='{_OURS}' stroke='#ffffff' stroke-width='3' paint-order='stroke'>{y:.1f}</text>"
        )
    labels = f"budget, {unit_name}", "added time, %"
    title = f"{name}: what each {unit_name} costs"
    return _picture(axes, keys, labels, [(mark, f"{mark:g}") for mark in xs], [(mark, f"{mark:g}") for mark in ys], title, body)
