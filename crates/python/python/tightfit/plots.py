"""Figures of the papers, each drawn from a profile in one call. Requires matplotlib.

Each function draws on ``axes`` (new ones by default) and returns them. Times are in ms, workspaces in MiB. Titles and colors are the same as in the
command's SVG pictures. Backgrounds and text follow matplotlib's style, such as ``dark_background``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ._mixed import split
from ._networks import NetworkLike, name_of
from ._optimize import front, optimize
from ._profile import Size
from .errors import DoesNotFit
from .results import Configuration, MixedSplit, Optimized

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = float(1 << 20)
SIZES = ("undivided", "power-of-two", "all")
EVERY_SIZES = (*SIZES, "fit")
#: 1 to 512 MiB.
LIMITS = tuple(1 << power for power in range(20, 30))
SHORT = {"forward": "F", "backward-data": "BD", "backward-filter": "BF"}
#: Those of the SVG pictures: color-blind safe (Okabe and Ito 2008), and the same mixed half with white.
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#80B9D9", "#F3CF80", "#80CFB9", "#E6BCD3", "#ABDAF4", "#EBAF80", "#F8F2A1"),
)
MARKERS = "os^D"
GRAY = "#999999"


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib; install it with `pip install matplotlib` ({error})") from error
    return Figure(layout="constrained").add_subplot()


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def _ink_on(color: str) -> str:
    """A readable text color on this background."""
    return "white" if color in ("#0072B2", "#009E73", "#D55E00") else "#222222"


def _legend(axes: Axes) -> None:
    """Beside the axes, where it hides nothing."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)


def _title(of: str, found: Any) -> str:
    batch = "" if found.batch is None else f", mini-batch {found.batch}"
    return f"{of}{batch}, {found.types}, {found.device}"


def _named(limit: Size) -> str:
    if isinstance(limit, int):
        return f"{limit / MIB:g} MiB"
    return "no limit" if limit is None else limit


def _power(mib: float) -> str:
    """A power of two, in the unit that makes it a whole number."""
    if mib == 0:
        return "none"
    units = ((1024.0, "GiB"), (1.0, "MiB"), (1.0 / 1024, "KiB"), (1.0 / MIB, "B"))
    unit, name = next((unit for unit in units if mib >= unit[0]), units[-1])
    return f"{mib / unit:g} {name}"


def _doubling(axes: Axes, mibs: Sequence[float]) -> None:
    """An axis of workspaces by powers of two, with a place for none."""
    some = [mib for mib in mibs if mib > 0] or [1.0]
    lowest, highest = math.floor(math.log2(min(some))), math.ceil(math.log2(max(some)))
    highest = max(highest, lowest + 1)
    axes.set_xscale("symlog", base=2, linthresh=2.0**lowest, linscale=1)
    every = -(-(highest - lowest) // 7)
    ticks = [2.0**power for power in range(lowest, highest + 1, every)]
    has_none = min(mibs, default=0) == 0
    ticks = [0.0, *ticks] if has_none else ticks
    axes.set_xticks(ticks, [_power(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-(2.0**lowest) / 4 if has_none else 2.0**lowest / 1.2, 1.3 * 2.0**highest)


def _division(parts: Configuration) -> str:
    runs = [(len(list(group)), size) for size, group in groupby(part.micro_batch for part in parts)]
    return " + ".join(str(size) if count == 1 else f"{count} x {size}" for count, size in runs)


def plot_front(
    network: NetworkLike,
    layer: str,
    operation: str = "forward",
    batch: int | None = None,
    *,
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots one kernel's configurations by time and workspace, with divisions where they have room (figure 6).

    ``source`` and the other options are the same as for :func:`tightfit.front`. Source: Oyama et al. 2018.
    """
    found = front(network, layer, operation, batch, **source)
    axes = _axes(axes)
    places = [(point.workspace_bytes / MIB, point.time_us / 1e3) for point in found.points]
    axes.step([x for x, _ in places], [y for _, y in places], where="post", color=GRAY, marker="o", markerfacecolor=COLORS[0])
    _doubling(axes, [x for x, _ in places])
    slowest = max((y for _, y in places), default=1.0)
    axes.set(xlabel="workspace", ylabel="time [ms]", ylim=(0, 1.15 * slowest))
    axes.set_title(_title(f"{layer} {operation}", found), loc="left")
    taken: list[tuple[float, float]] = []
    for point, place in zip(found.points, places):
        x, y = axes.transAxes.inverted().transform(axes.transData.transform(place))
        label = _division(point.configuration)
        if len(label) < 20 and all(abs(x - other) > 0.03 + 0.008 * len(label) or abs(y - above) > 0.1 for other, above in taken):
            axes.annotate(label, place, xytext=(4, 4), textcoords="offset points", rotation=30, fontsize="x-small")
            taken.append((x, y))
    return axes


def plot_limits(
    network: NetworkLike,
    batch: int | None = None,
    *,
    limits: Sequence[Size] = LIMITS,
    sizes: Sequence[str] = EVERY_SIZES,
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the time of a network against the workspace limit per kernel, with one curve per rule of sizes.

    Leaves out limits that a rule does not fit. Options are the same as for :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    where = []
    for index, rule in enumerate(sizes):
        points, shown = [], EVERY_SIZES.index(rule) if rule in EVERY_SIZES else index
        for limit in limits:
            try:
                found = optimize(network, batch, workspace=limit, sizes=rule, **source)
            except DoesNotFit:
                continue
            if found.workspace_limit_bytes is not None:
                points.append((found.workspace_limit_bytes / MIB, found.time_us / 1e3))
            axes.set_title(_title(found.network, found), loc="left")
        # Rules often agree, so each curve is thinner than the one under it.
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=rule,
            color=_color(shown),
            marker=MARKERS[shown % 4],
            linewidth=1.5 + min(len(sizes) - 1 - index, 3),
        )
        where += [x for x, _ in points]
    _doubling(axes, where)
    axes.set(xlabel="workspace limit per kernel", ylabel="time [ms]")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return axes


def plot_speedups(
    network: NetworkLike,
    batch: int | None = None,
    *,
    devices: Sequence[str | None] = (None,),
    workspace: Size = "64MiB",
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the speed-up of each kernel over undivided, sorted, with one curve per device (figure 8).

    Leaves out kernels for which nothing fits or was measured undivided. Options are the same as for :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    for index, device in enumerate(devices):
        found = optimize(network, batch, workspace=workspace, device=device, **source)
        gains = sorted(kernel.undivided.time_us / kernel.time_us for kernel in found.kernels if kernel.undivided)
        label = f"{found.device}, {found.types}"
        axes.plot(range(1, len(gains) + 1), gains, marker=".", color=_color(index), label=label)
        several = f"{found.network}, mini-batch {found.batch}" if len(devices) > 1 else _title(found.network, found)
        axes.set_title(f"{several}, {_named(workspace)}", loc="left")
    axes.axhline(1, color=GRAY, linewidth=0.8)
    axes.set(xlabel="kernels, by gain", ylabel="speed-up over undivided")
    axes.set_ylim(bottom=0)
    if len(devices) > 1:
        _legend(axes)
    return axes


def plot_breakdown(
    network: NetworkLike,
    batch: int | None = None,
    *,
    limits: Sequence[Size] = ("8MiB", "64MiB", "512MiB"),
    sizes: Sequence[str] = SIZES,
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the time of a network by layer, with one bar per limit and rule of sizes (u, p, a as in figure 9).

    Names the rules that do not fit a limit. Options are the same as for :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    found: list[tuple[str, Optimized | None]] = []
    for limit in limits:
        for rule in sizes:
            try:
                answer: Optimized | None = optimize(network, batch, workspace=limit, sizes=rule, **source)
            except DoesNotFit:
                answer = None
            found.append((f"{rule[0]}\n{_named(limit)}", answer))
    layers = list(dict.fromkeys(kernel.layer for _, answer in found if answer for kernel in answer.kernels))
    bottom = [0.0] * len(found)
    for index, layer in enumerate(layers):
        heights = [
            sum(kernel.time_us for kernel in answer.kernels if kernel.layer == layer) / 1e3 if answer else 0.0
            for _, answer in found
        ]
        axes.bar(range(len(found)), heights, bottom=bottom, label=layer, color=_color(index), edgecolor=axes.get_facecolor())
        bottom = [low + height for low, height in zip(bottom, heights)]
    for place, (_, answer) in enumerate(found):
        if answer is None:
            axes.text(place, 0.0, " does not fit", rotation=90, ha="center", va="bottom", fontsize="small")
    axes.set_xticks(range(len(found)), [label for label, _ in found], fontsize="small")
    axes.set(ylabel="time [ms]", xlabel=", ".join(f"{rule[0]}: {rule}" for rule in sizes) + "; workspace limit per kernel")
    known = next((answer for _, answer in found if answer), None)
    axes.set_title(name_of(network) if known is None else _title(known.network, known), loc="left")
    _legend(axes)
    return axes


def plot_divisions(
    network: NetworkLike,
    layer: str,
    operation: str = "forward",
    batch: int | None = None,
    *,
    workspace: Size = "64MiB",
    sizes: Sequence[str] = SIZES,
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots one kernel's micro-batches end to end, one bar per rule of sizes, colored by algorithm (figure 10).

    Micro-batches that are too short for a number share one, such as ``8 x 32``. Options are the same as for :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    found = [
        optimize(network, batch, workspace=workspace, sizes=rule, layers=[layer], operations=[operation], **source)
        for rule in sizes
    ]
    rows = [answer.kernels[0].configuration for answer in found]
    # Sorted, so that colors do not depend on the rules.
    algorithms = sorted({part.algorithm for row in rows for part in row})
    longest = max((sum(part.time_us for part in row) for row in rows), default=0.0) / 1e3
    for place, row in enumerate(rows):
        start = 0.0
        for (size, algorithm), group in groupby(row, lambda part: (part.micro_batch, part.algorithm)):
            run, color, first = list(group), _color(algorithms.index(algorithm)), start
            for part in run:
                axes.barh(place, part.time_us / 1e3, left=start, color=color, edgecolor=axes.get_facecolor())
                start += part.time_us / 1e3
            has_room = (start - first) / len(run) > 0.04 * longest
            marks = [(first + (start - first) * (2 * n + 1) / (2 * len(run)), f"{size}") for n in range(len(run))]
            if not has_room:
                marks = [((first + start) / 2, f"{len(run)} x {size}" if len(run) > 1 else f"{size}")]
            for middle, label in marks:
                axes.text(middle, place, label, ha="center", va="center", fontsize="small", color=_ink_on(color))
    axes.set_yticks(range(len(sizes)), sizes)
    for index, algorithm in enumerate(algorithms):
        axes.barh(0, 0, color=_color(index), label=algorithm)
    axes.set(xlabel="time [ms]")
    if found:
        axes.set_title(f"{_title(f'{layer} {operation}', found[0])}, {_named(workspace)}", loc="left")
    _legend(axes)
    return axes


def plot_allotment(
    network: NetworkLike,
    batch: int | None = None,
    *,
    total_workspace: Size = "120MiB",
    workspace: Size = "8MiB",
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the workspace of each kernel: undivided under a limit per kernel, and under one divided total (figure 12).

    Options are the same as for :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    divided = optimize(network, batch, total_workspace=total_workspace, **source)
    apiece = optimize(network, batch, workspace=workspace, sizes="undivided", **source)
    bars = [(f"{_named(workspace)} each (WR, undivided)", apiece), (f"{_named(total_workspace)} in total (WD)", divided)]
    most = max(sum(kernel.workspace_bytes for kernel in found.kernels) for _, found in bars)
    for place, (_, found) in enumerate(bars):
        bottom = 0.0
        for kernel in found.kernels:
            height, color = kernel.workspace_bytes / MIB, _color(list(SHORT).index(kernel.operation))
            axes.bar(place, height, bottom=bottom, edgecolor=axes.get_facecolor(), color=color)
            if height > 0.03 * most / MIB:
                label = f"{kernel.layer} {SHORT[kernel.operation]}"
                axes.text(place, bottom + height / 2, label, ha="center", va="center", fontsize="x-small", color=_ink_on(color))
            bottom += height
    axes.set_xticks(range(len(bars)), [f"{label}\n{found.time_us / 1e3:.1f} ms" for label, found in bars])
    axes.set(ylabel="workspace [MiB]")
    axes.set_title(_title(divided.network, divided), loc="left")
    # No marker here, so that the last one is the last kernel's.
    for index, (operation, short) in enumerate(SHORT.items()):
        axes.plot([], [], linestyle="", marker="s", color=_color(index), label=f"{operation} ({short})")
    _legend(axes)
    return axes


def plot_split(found: MixedSplit | None = None, *, axes: Axes | None = None, **options: Any) -> Axes:
    """Plots each device's step time for an uneven mini-batch and for the even split, labeled with samples (figure 13).

    Pass the result of :func:`tightfit.split`, or its options.
    """
    axes = _axes(axes)
    found = split(**options) if found is None else found
    for place, device in enumerate(found.devices):
        bars = [
            (place - 0.2, device.batch, device.time_us, COLORS[0]),
            (place + 0.2, device.even_batch, device.even_time_us, GRAY),
        ]
        for where, batch, time_us, color in bars:
            if time_us is not None:
                axes.bar(where, time_us / 1e3, width=0.4, color=color)
                axes.text(where, time_us / 1e3, str(batch), ha="center", va="bottom")
    axes.axhline(found.time_us / 1e3, linestyle="--", color=COLORS[0], label=f"uneven, {found.time_us / 1e3:.1f} ms")
    if found.even_time_us is not None:
        axes.axhline(found.even_time_us / 1e3, linestyle="--", color=GRAY, label=f"even, {found.even_time_us / 1e3:.1f} ms")
    axes.set_xticks(range(len(found.devices)), [device.name for device in found.devices])
    axes.set(ylabel="step [ms]")
    axes.set_title(f"{found.network}, mini-batch {found.batch}: samples of each device", loc="left")
    _legend(axes)
    return axes
