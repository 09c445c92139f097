"""Figures of the papers, each drawn from a profile in one call. Requires matplotlib.

Each function draws on ``axes`` (new ones by default) and returns them. Times are in ms, workspaces in MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._mixed import split
from ._optimize import front, optimize
from ._profile import Size
from .errors import DoesNotFit
from .results import MixedSplit, Optimized

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = float(1 << 20)
SIZES = ("undivided", "power-of-two", "all")
SHORT = {"forward": "F", "backward-data": "BD", "backward-filter": "BF"}


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    from matplotlib.figure import Figure

    return Figure(layout="constrained").add_subplot()


def _division(parts: Iterable[Any]) -> str:
    return "+".join(str(part.micro_batch) for part in parts)


def plot_front(
    network: str, layer: str, operation: str = "forward", batch: int | None = None, *, axes: Axes | None = None, **source: Any
) -> Axes:
    """Plots one kernel's configurations by time and workspace, each with its division (Oyama et al. 2018, figure 6).

    ``source`` and the other options are those of :func:`tightfit.front`.
    """
    points = front(network, layer, operation, batch, **source).points
    axes = _axes(axes)
    axes.step(
        [point.workspace_bytes / MIB for point in points], [point.time_us / 1e3 for point in points], where="post", marker="o"
    )
    for point in points:
        where = (point.workspace_bytes / MIB, point.time_us / 1e3)
        label = _division(point.configuration)
        axes.annotate(label if len(label) < 24 else f"{len(point.configuration)} parts", where, rotation=30, fontsize="x-small")
    axes.set(xlabel="workspace [MiB]", ylabel="time [ms]", title=f"{network} {layer} {operation}", ylim=(0, None))
    return axes


def plot_speedups(
    network: str,
    batch: int | None = None,
    *,
    devices: Sequence[str | None] = (None,),
    workspace: Size = "64MiB",
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the speed-up of each kernel over undivided, sorted, with one curve per device (figure 8).

    Leaves out kernels for which nothing fits undivided. Options are those of :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    for device in devices:
        found = optimize(network, batch, workspace=workspace, device=device, **source)
        gains = sorted(kernel.undivided.time_us / kernel.time_us for kernel in found.kernels if kernel.undivided)
        axes.plot(range(1, len(gains) + 1), gains, marker=".", label=f"{found.device}, {found.types}")
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set(xlabel="kernels, by gain", ylabel="speed-up over undivided", title=f"{network}, {workspace}")
    axes.legend()
    return axes


def plot_breakdown(
    network: str,
    batch: int | None = None,
    *,
    limits: Sequence[Size] = ("8MiB", "64MiB", "512MiB"),
    sizes: Sequence[str] = SIZES,
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the time of a network by layer, with one bar per limit and rule of sizes (u, p, a as in figure 9).

    Leaves a gap where a rule does not fit the limit. Options are those of :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    found: list[tuple[str, Optimized | None]] = []
    for limit in limits:
        for rule in sizes:
            try:
                answer: Optimized | None = optimize(network, batch, workspace=limit, sizes=rule, **source)
            except DoesNotFit:
                answer = None
            found.append((f"{rule[0]}\n{limit}", answer))
    layers = list(dict.fromkeys(kernel.layer for _, answer in found if answer for kernel in answer.kernels))
    bottom = [0.0] * len(found)
    for layer in layers:
        heights = [
            sum(kernel.time_us for kernel in answer.kernels if kernel.layer == layer) / 1e3 if answer else 0.0
            for _, answer in found
        ]
        axes.bar(range(len(found)), heights, bottom=bottom, label=layer)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.set_xticks(range(len(found)), [label for label, _ in found], fontsize="small")
    axes.set(ylabel="time [ms]", title=network)
    axes.legend(fontsize="small")
    return axes


def plot_divisions(
    network: str,
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

    Options are those of :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    colors: dict[str, str] = {}
    for place, rule in enumerate(sizes):
        found = optimize(
            network, batch, workspace=workspace, sizes=rule, layers=[layer], operations=[operation], **source
        )
        start = 0.0
        for part in found.kernels[0].configuration:
            color = colors.setdefault(part.algorithm, f"C{len(colors)}")
            axes.barh(place, part.time_us / 1e3, left=start, color=color, edgecolor="white")
            axes.text(start + part.time_us / 2e3, place, str(part.micro_batch), ha="center", va="center", fontsize="small")
            start += part.time_us / 1e3
    axes.set_yticks(range(len(sizes)), sizes)
    for algorithm, color in colors.items():
        axes.barh(0, 0, color=color, label=algorithm)
    axes.set(xlabel="time [ms]", title=f"{network} {layer} {operation}, {workspace}")
    axes.legend(fontsize="small")
    return axes


def plot_allotment(
    network: str,
    batch: int | None = None,
    *,
    total_workspace: Size = "120MiB",
    workspace: Size = "8MiB",
    axes: Axes | None = None,
    **source: Any,
) -> Axes:
    """Plots the workspace of each kernel: undivided under a limit per kernel, and under one divided total (figure 12).

    Options are those of :func:`tightfit.optimize`.
    """
    axes = _axes(axes)
    divided = optimize(network, batch, total_workspace=total_workspace, **source)
    apiece = optimize(network, batch, workspace=workspace, sizes="undivided", **source)
    bars = [(f"WR {workspace} each", apiece), (f"WD {total_workspace} total", divided)]
    for place, (_, found) in enumerate(bars):
        bottom = 0.0
        for kernel in found.kernels:
            height = kernel.workspace_bytes / MIB
            axes.bar(place, height, bottom=bottom, edgecolor="white", color=f"C{list(SHORT).index(kernel.operation)}")
            if height > 0.02 * divided.workspace_bytes / MIB:
                label = f"{kernel.layer} {SHORT[kernel.operation]}"
                axes.text(place, bottom + height / 2, label, ha="center", va="center", fontsize="x-small")
            bottom += height
    axes.set_xticks(range(len(bars)), [label for label, _ in bars])
    axes.set(ylabel="workspace [MiB]", title=f"{network}: {apiece.time_us / 1e3:.1f} and {divided.time_us / 1e3:.1f} ms")
    return axes


def plot_split(found: MixedSplit | None = None, *, axes: Axes | None = None, **options: Any) -> Axes:
    """Plots each device's step time for an uneven mini-batch and for the even split, labeled with samples (figure 13).

    Pass the result of :func:`tightfit.split`, or its options.
    """
    axes = _axes(axes)
    found = split(**options) if found is None else found
    for place, device in enumerate(found.devices):
        bars = [(place - 0.2, device.batch, device.time_us, "C0"), (place + 0.2, device.even_batch, device.even_time_us, "C7")]
        for where, batch, time_us, color in bars:
            if time_us is not None:
                axes.bar(where, time_us / 1e3, width=0.4, color=color)
                axes.text(where, time_us / 1e3, str(batch), ha="center", va="bottom")
    axes.axhline(found.time_us / 1e3, linestyle="--", color="C0", label="uneven")
    if found.even_time_us is not None:
        axes.axhline(found.even_time_us / 1e3, linestyle="--", color="C7", label="even")
    axes.set_xticks(range(len(found.devices)), [device.name for device in found.devices])
    axes.set(ylabel="step [ms]", title=f"{found.network}, mini-batch {found.batch}")
    axes.legend()
    return axes
