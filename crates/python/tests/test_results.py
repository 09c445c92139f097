"""Results in a notebook, in a terminal and without pandas."""

import base64
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

import pytest

import tightfit

#: Closed by themselves.
VOID = {"img"}


@pytest.fixture(scope="module")
def results(recorded, mixed):
    source = {"network": "alexnet-1col", "batch": 256, "profile": recorded}
    return {
        "optimize": tightfit.optimize(workspace="64MiB", **source),
        "total": tightfit.optimize(total_workspace="120MiB", **source),
        "front": tightfit.front(layer="conv2", **source),
        "split": tightfit.split(32, ["K80", "K80", "K20Xm"], network="resnet18", profile=mixed),
        "plan": tightfit.plan("vgg16", 64, budget="5GiB", policy="overlap", assume=True),
        "measure": tightfit.measure(convolution="alexnet-1col", layer="conv2", batch=256, profile=recorded),
        "verify": tightfit.verify("lenet", 4, workspace="1MiB", threads=1, backend="cpu", cache="none"),
        "profile": tightfit.Profile.open(recorded),
        "network": tightfit.network("vgg16"),
        "networks": tightfit.networks(),
    }


RESULTS = ["optimize", "total", "front", "split", "plan", "measure", "verify", "profile", "network", "networks"]


class Page(HTMLParser):
    """Tags that are open, the text, and the pictures."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.pictures, self.rows = [], [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.rows += tag == "tr"
        if tag == "img":
            self.pictures.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_table_and_the_picture(name, results):
    html = results[name]._repr_html_()
    page = Page(html)
    assert not page.open and page.words[0] == repr(results[name])
    assert 2 <= page.rows <= 25
    # Colors are the notebook's, dark or light; the picture has its own background.
    assert "color" not in re.sub(r'src="[^"]*"', "", html) and "<style" not in html
    has_picture = name not in ("split", "profile", "network", "networks")
    assert len(page.pictures) == has_picture
    for picture in page.pictures:
        head, data = picture["src"].split(",", 1)
        assert head == "data:image/svg+xml;base64"
        drawn = base64.b64decode(data).decode()
        assert drawn == results[name].svg()
        root = xml.fromstring(drawn)
        assert root.tag.endswith("svg") and 'class="paper"' in drawn and "prefers-color-scheme: dark" in drawn


@pytest.mark.parametrize("name", RESULTS)
def test_a_terminal_shows_80_columns(name, results):
    text = results[name].table()
    lines = text.splitlines()
    assert len(lines) >= 3 and max(map(len, lines)) <= 80 and lines[0].startswith("<")
    assert max(map(len, results[name].table(30).splitlines())) <= 30


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_prints_in_one_line(name, results):
    assert "\n" not in repr(results[name]) and len(repr(results[name])) < 200


def test_slices_count_as_divisions_and_print_as_the_command_prints_them():
    sliced = tightfit.MicroBatch(1, "2 x h16 fft + h8 fft", 10.0, 4096)
    whole = tightfit.MicroBatch(1, "fft", 10.0, 4096)
    configurations = [tightfit.Configuration([part]) for part in (sliced, whole)]
    assert [str(configuration) for configuration in configurations] == ["2 x h16 fft + h8 fft", "1 fft"]
    assert [configuration.is_divided for configuration in configurations] == [True, False]
    kernel = tightfit.Kernel("c", "forward", "", None, configurations[0], 10.0, 4096)
    assert repr(kernel).startswith("<Kernel c forward: 2 x h16 fft + h8 fft, ")
    assert str(tightfit.Configuration([sliced, sliced])) == "2 x 1 (2 x h16 fft + h8 fft)"


@pytest.mark.parametrize("name", RESULTS)
def test_frames_have_units_in_their_columns(name, results):
    pandas = pytest.importorskip("pandas")
    frame = results[name].frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) > 0
    for column in frame.columns:
        assert not re.search(r"(^|_)(time|workspace|limit|forward|backward|reuse)$", column), f"{column} has no unit"


def test_kernels_have_the_columns_of_the_command(results, recorded, command):
    import csv
    import io

    pytest.importorskip("pandas")
    arguments = ["optimize", "alexnet-1col", "--batch", "256", "--backend", f"replay:{recorded}", "--format", "csv"]
    for name, limit in (("optimize", ["--workspace", "64MiB"]), ("total", ["--total-workspace", "120MiB"])):
        rows = list(csv.DictReader(io.StringIO(command(*arguments, *limit))))
        ours = results[name]._rows()
        assert len(rows) == len(ours)
        for mine, theirs in zip(ours, rows):
            shared = {column: value for column, value in theirs.items() if column in mine}
            assert len(shared) == 11 and len(mine) == 12, "all but those of `verify`, and `configuration`"
            assert {column: type(mine[column])(value) for column, value in shared.items()} == {column: mine[column] for column in shared}


def test_the_picture_is_the_command_s(results, recorded, command, tmp_path):
    arguments = ["optimize", "alexnet-1col", "--batch", "256", "--backend", f"replay:{recorded}", "--plot"]
    for name, limit in (("optimize", ["--workspace", "64MiB"]), ("total", ["--total-workspace", "120MiB"])):
        path = tmp_path / f"{name}.svg"
        command(*arguments, str(path), *limit)
        assert results[name].svg() == path.read_text()


def test_names_cannot_break_a_page(tmp_path):
    layers = tmp_path / "<b onload=alert(1)>&amp;.txt"
    layers.write_text('<script>alert("x")</script> n4 c3 h8 w8 k4 r3 s3\n')
    opened = tightfit.network(layers)
    html = opened._repr_html_()
    page = Page(html)
    assert '<script>alert("x")</script>' in page.words and "<script" not in html and "<b " not in html
    found = tightfit.measure(opened, opened[1].layer, batch=None, sizes="undivided", backend="cpu", threads=1, cache="none")
    html = found._repr_html_()
    assert Page(html).pictures and "<script" not in html


def test_without_pandas_the_error_names_the_package_to_install(recorded):
    program = f"""
        import sys
        sys.modules["pandas"] = None
        import tightfit
        source = {{"network": "alexnet-1col", "batch": 256, "profile": {recorded!r}}}
        results = [
            tightfit.optimize(**source), tightfit.front(layer="conv2", **source), tightfit.Profile.open({recorded!r}),
            tightfit.network("lenet"), tightfit.plan("lenet", 8, assume=True),
        ]
        for result in results:
            result._repr_html_(), result.table()
            try:
                result.frame()
            except ImportError as error:
                assert "pip install pandas" in str(error)
            else:
                raise SystemExit(f"a frame without pandas: {{result}}")
        print(len(results))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.stdout == "5\n", done.stderr


def test_networks_are_still_lists():
    layers = tightfit.network("lenet")
    assert isinstance(layers, list) and layers == list(layers) and layers[1].layer == "conv1"
    import copy
    import pickle

    for again in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers))):
        assert again == layers and again.name == "lenet"
