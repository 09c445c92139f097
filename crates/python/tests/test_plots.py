"""The papers' figures: drawn, and showing the numbers that the optimizers give."""

import pytest

import tightfit

pytest.importorskip("matplotlib")
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
    assert len(axes.lines[0].get_xdata()) == len(points) == len(axes.texts)
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
    assert sum(int(text.get_text()) for text in axes.texts) == 3 * 256
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
