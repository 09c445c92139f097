"""The papers' figures: drawn, and showing the numbers that the optimizers give."""

import itertools
import math
import re

import pytest

import tightfit

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex  # noqa: E402

from tightfit import plots  # noqa: E402

SOURCE = {"network": "alexnet-1col", "batch": 256}


@pytest.fixture(scope="module")
def profile(recorded):
    return tightfit.Profile.open(recorded)


def drawn(axes, folder):
    """Draws for real: texts that cannot be laid out fail only then."""
    path = folder / "figure.svg"
    axes.figure.savefig(path)
    return path.read_text()


def test_front(profile, tmp_path):
    axes = plots.plot_front(layer="conv2", profile=profile, **SOURCE)
    points = tightfit.front(layer="conv2", profile=profile, **SOURCE).points
    assert len(axes.lines[0].get_xdata()) == len(points) > len(axes.texts) >= 3
    assert axes.texts[0].get_text() == "256" and "8 x 32" in [text.get_text() for text in axes.texts]
    assert "svg" in drawn(axes, tmp_path)


def test_speedups(profile, tmp_path):
    axes = plots.plot_speedups(profile=profile, **SOURCE)
    assert len(axes.lines[0].get_xdata()) == 15 and min(axes.lines[0].get_ydata()) >= 1
    assert "svg" in drawn(axes, tmp_path)


def test_breakdown(profile, tmp_path):
    axes = plots.plot_breakdown(limits=["8MiB", "64MiB"], profile=profile, **SOURCE)
    found = tightfit.optimize(workspace="64MiB", sizes="all", profile=profile, **SOURCE)
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches[5::6]]
    assert max(tops) == pytest.approx(found.time_us / 1e3)
    assert "svg" in drawn(axes, tmp_path)


def test_divisions(profile, tmp_path):
    axes = plots.plot_divisions(layer="conv2", profile=profile, **SOURCE)
    counts = [math.prod(int(number) for number in text.get_text().split(" x ")) for text in axes.texts]
    assert sum(counts) == 3 * 256
    assert "svg" in drawn(axes, tmp_path)


def test_allotment(profile, tmp_path):
    axes = plots.plot_allotment(profile=profile, **SOURCE)
    found = tightfit.optimize(total_workspace="120MiB", profile=profile, **SOURCE)
    assert axes.patches[-1].get_y() + axes.patches[-1].get_height() == pytest.approx(found.workspace_bytes / 2**20)
    assert "svg" in drawn(axes, tmp_path)


def test_split(mixed, tmp_path):
    axes = plots.plot_split(batch=32, devices=["K80", "K80", "K20Xm"], network="resnet18", profile=mixed)
    assert [text.get_text() for text in axes.texts] == ["12", "11", "12", "11", "8", "10"]
    assert "svg" in drawn(axes, tmp_path)


def test_limits(profile, tmp_path):
    limits = ["1MiB", "64MiB", 512 << 20]
    axes = plots.plot_limits(limits=limits, profile=profile, **SOURCE)
    assert [line.get_label() for line in axes.lines] == ["undivided", "power-of-two", "all", "fit"]
    for line in axes.lines:
        assert list(line.get_xdata()) == [1, 64, 512] and list(line.get_ydata()) == sorted(line.get_ydata(), reverse=True)
    assert "svg" in drawn(axes, tmp_path)


def every(profile, mixed):
    """Every figure."""
    source = {"profile": profile, **SOURCE}
    return {
        "front": plots.plot_front(layer="conv2", **source),
        "limits": plots.plot_limits(limits=["1MiB", "64MiB"], **source),
        "speedups": plots.plot_speedups(**source),
        "breakdown": plots.plot_breakdown(limits=["8MiB", "64MiB"], **source),
        "divisions": plots.plot_divisions(layer="conv2", **source),
        "allotment": plots.plot_allotment(**source),
        "split": plots.plot_split(batch=32, devices=["K80", "K80", "K20Xm"], network="resnet18", profile=mixed),
    }


def test_titles_equal_the_svg_pictures(profile, mixed):
    whole = tightfit.optimize(workspace="64MiB", profile=profile, **SOURCE).svg()
    kernel = tightfit.front(layer="conv2", profile=profile, **SOURCE).svg()
    for name, axes in every(profile, mixed).items():
        if name != "split":
            title = axes.get_title("left").removesuffix(", 64MiB")
            assert f">{title}<" in (kernel if name in ("front", "divisions") else whole), name
        assert all(label.endswith("]") or label in PLAIN for label in (axes.get_xlabel(), axes.get_ylabel())), name


#: What axes show that is no number with a unit, or has the unit at its ticks.
PLAIN = {
    *("", "workspace", "workspace limit per kernel", "kernels, by gain", "speed-up over undivided"),
    "u: undivided, p: power-of-two, a: all; workspace limit per kernel",
}


def colors(svg):
    """The color of each name in the legend of an SVG picture."""
    return {name: color for color, name in re.findall(r'fill="(#\w+)"[^>]*><title>([^<:]+)</title>', svg)}


def test_colors_equal_the_svg_pictures(profile, recorded, mixed, command, tmp_path):
    drawn_here = every(profile, mixed)
    operations = {line.get_label().split(" ")[0]: line.get_color() for line in drawn_here["allotment"].lines}
    theirs = colors(tightfit.optimize(total_workspace="120MiB", profile=profile, **SOURCE).svg())
    assert len(operations) == 3 and operations.items() <= theirs.items()
    picture = tmp_path / "limits.svg"
    arguments = ["--workspace", "64MiB", "--backend", f"replay:{recorded}", "--picture", "limits", "--plot", str(picture)]
    command("optimize", "alexnet-1col", "--batch", "256", *arguments)
    rules = {line.get_label(): line.get_color() for line in drawn_here["limits"].lines}
    assert len(rules) == 4 and rules.items() <= colors(picture.read_text()).items()
    # The order of names decides.
    names, bars = [], drawn_here["divisions"].containers
    for bar in bars:
        if not bar.get_label().startswith("_"):
            names.append((bar.get_label(), to_hex(bar[0].get_facecolor()).upper()))
    assert len(names) >= 2 and names == list(zip(sorted(name for name, _ in names), list(rules.values())))


def luminance(color):
    """Relative luminance, as WCAG 2 defines it."""
    from matplotlib.colors import to_rgb

    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_text_is_legible_on_every_background(style, profile, mixed, tmp_path):
    import matplotlib.style

    with matplotlib.style.context(style):
        figures = every(profile, mixed)
    for name, axes in figures.items():
        paper = axes.figure.get_facecolor()
        legend = axes.get_legend()
        outside = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
        for text in itertools.chain(outside, legend.get_texts() if legend else []):
            assert contrast(text.get_color(), paper) > 4.5, (name, text.get_text())
        for text in axes.texts:
            under = [patch for patch in axes.patches if patch.get_width() and patch.get_bbox().contains(*text.get_position())]
            ground = under[-1].get_facecolor() if under and name in ("divisions", "allotment") else paper
            assert contrast(text.get_color(), ground) > 3, (name, text.get_text())
        assert "svg" in drawn(axes, tmp_path)
