"""Pages and pictures in a real browser: phones and wide screens, light and dark.

Skipped without Chromium. ``apt-get install chromium`` installs it, and TIGHTFIT_BROWSER names another browser.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import browser
import pytest
from conftest import ROOT

import tightfit

pytestmark = pytest.mark.long

WIDTHS = [400, 1280, 1920]
SCHEMES = ["light", "dark"]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))
PLANS = {
    "small": "digits-net --batch 4 --budget 8MiB --policy vdnn-all",
    "wide": "resnet50 --batch 32 --budget 2GiB",
}
#: What a page looks like: its widths, the color behind its text, and what is wrong with the text of its pictures. Faint is text
#: with little contrast to the shape that it is on, by the formula of the Web Content Accessibility Guidelines.
LOOK = """(() => {
  const wrong = [], faint = [];
  const channels = color => (color.match(/[0-9.]+/g) || []).slice(0, 3).map(Number);
  const light = color => channels(color).map(one => one / 255).map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (x, y) => document.elementsFromPoint(x, y)
    .filter(one => ["rect", "path", "circle", "polygon"].includes(one.tagName)).map(one => getComputedStyle(one).fill).find(fill => fill.startsWith("rgb"));
  const texts = [...document.querySelectorAll("svg text")];
  for (const text of texts) {
    const svg = text.ownerSVGElement, all = svg.getBoundingClientRect(), box = text.getBoundingClientRect();
    const inside = box.left >= all.left - 1 && box.right <= all.right + 1 && box.top >= all.top - 1 && box.bottom <= all.bottom + 1;
    if (!inside) wrong.push(`cut off: ${text.textContent}`);
    const drawn = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b);
    if (drawn < 9) wrong.push(`${drawn.toFixed(1)} px: ${text.textContent}`);
    const under = behind((box.left + box.right) / 2, (box.top + box.bottom) / 2);
    if (!under) continue;
    const [dark, bright] = [light(getComputedStyle(text).fill), light(under)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 3) faint.push(`${contrast.toFixed(1)}: ${text.textContent}`);
  }
  const paper = document.querySelector(".paper"), root = document.documentElement;
  const outer = document.body ? getComputedStyle(document.body).backgroundColor : null;
  return {
    window: innerWidth, scroll: root.scrollWidth, client: root.clientWidth, wrong, faint, texts: texts.length,
    paper: paper && getComputedStyle(paper).fill, ink: texts.length ? getComputedStyle(texts[0]).fill : null, outer,
  };
})()"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    binary = browser.find()
    if binary is None:
        pytest.skip("no Chromium; `apt-get install chromium` brings it, or name a browser in TIGHTFIT_BROWSER")
    with browser.Browser(binary, tmp_path_factory.mktemp("browser")) as window:
        yield window


def check_page(window: browser.Browser, page: Path) -> None:
    """Fails if the page scrolls sideways, or its pictures have text that is cut off, small, or the same in the dark."""
    for width in WIDTHS:
        looks = {}
        for scheme in SCHEMES:
            window.show(page, width, scheme)
            looks[scheme] = look = window.evaluate(LOOK)
            assert look["window"] == width, f"{page.name} takes {look['window']} px on a screen of {width}"
            assert look["scroll"] <= look["client"], f"{page.name} at {width} px is {look['scroll']} px wide"
            assert look["texts"] > 20 and not look["wrong"], f"{page.name} at {width} px: {look['wrong'][:5]}"
        for part in ("paper", "ink", "outer"):
            assert looks["light"][part] != looks["dark"][part], f"{part} of {page.name} does not change in the dark"


@pytest.mark.parametrize("name", PLANS)
def test_the_page_of_a_plan_fits_every_screen(
    name: str, window: browser.Browser, command: Callable[..., str], tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    command("plan", *PLANS[name].split(), "--assume", "--html", str(page))
    check_page(window, page)


def test_a_page_that_does_not_fit_is_found(window: browser.Browser, command: Callable[..., str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    command("plan", *PLANS["wide"].split(), "--assume", "--html", str(page))
    right = page.read_text()
    for broken, said in [
        (right.replace('<meta name="viewport"', '<meta name="other"'), "on a screen of 400"),
        (right.replace("svg { display: block }", "svg { max-width: 100%; height: auto }"), "px: "),
        # A phone shows wider elements at their own width.
        (right.replace("div { overflow-x: auto }", ""), "on a screen of 400"),
        (right.replace(".paper { fill: #16181c }", ""), "paper of plan.html"),
    ]:
        assert broken != right, said
        page.write_text(broken)
        with pytest.raises(AssertionError, match=said):
            check_page(window, page)


def test_the_page_of_a_report_fits_every_screen(
    window: browser.Browser, command: Callable[..., str], tmp_path: Path
) -> None:
    part = {"micro_batch": 128, "algorithm": "fft", "time_us": 400.0, "workspace_bytes": 48 << 20}
    kernel = {
        "problem": "forward n256 c64 h27 w27 k192 r5 s5 pad2 f32",
        "device": 0,
        "calls": 10,
        "framework": {"algorithm": "engine0", "time_us": 1600.0, "workspace_bytes": 96 << 20},
        "ours": {"configuration": [part, part], "time_us": 800.0, "workspace_bytes": 48 << 20},
        "decision": "divided",
    }
    report = {
        "device": "NVIDIA H200 (cudnn 9.19.0)",
        "cudnn": "/a/long/path/of/the/library/libcudnn.so.9",
        "workspace_limit_bytes": 64 << 20,
        "kernels": [kernel | {"name": f"conv{number}"} for number in range(60)],
        "passed_through": [],
        "totals": {"tuning_us": 1e6, "tuning_measurements": 9, "cache_hits": 2, "less_accurate": 0, "planned_only": 0},
    }
    file, page = tmp_path / f"{'a-long-name-of-a-report' * 5}.json", tmp_path / "report.html"
    file.write_text(json.dumps(report))
    command("report", str(file), "--html", str(page))
    check_page(window, page)


#: What a notebook shows of a result: its text and picture, and what is behind them.
RESULT = """(() => {
  const picture = document.images[0], cells = [...document.querySelectorAll("td, th, p")];
  return {
    inks: [...new Set(cells.map(cell => getComputedStyle(cell).color))], outer: getComputedStyle(document.body).backgroundColor,
    natural: picture.naturalWidth, right: picture.getBoundingClientRect().right, window: innerWidth,
    behind: [...new Set(cells.map(cell => getComputedStyle(cell).backgroundColor))], cells: cells.length,
  };
})()"""


@pytest.mark.parametrize("paper, ink", [("rgb(17, 17, 17)", "rgb(221, 221, 221)"), ("rgb(255, 255, 255)", "rgb(0, 0, 0)")])
def test_a_result_takes_the_colors_of_its_notebook(paper: str, ink: str, window: browser.Browser, tmp_path: Path) -> None:
    result = tightfit.plan("vgg16", 64, budget="5GiB", policy="overlap", assume=True)
    page = tmp_path / "notebook.html"
    style = f"background: {paper}; color: {ink}; margin: 8px"
    page.write_text(f"<!DOCTYPE html><meta charset='utf-8'><body style='{style}'>{result._repr_html_()}")
    for width in WIDTHS[1:]:
        for scheme in SCHEMES:
            window.show(page, width, scheme)
            look = window.evaluate(RESULT)
            assert look["cells"] > 10 and (look["inks"], look["outer"]) == ([ink], paper)
            assert look["behind"] == ["rgba(0, 0, 0, 0)"], "nothing hides the notebook's background"
            assert look["natural"] > 500 and look["right"] <= look["window"], "the picture is drawn, and fits"


def check_picture(window: browser.Browser, picture: Path, tmp_path: Path) -> None:
    """Fails if a picture does not shrink to its page, or has text that is cut off, faint, or the same in the dark."""
    page = tmp_path / "page.html"
    # As on a page of documents, whose pictures are as wide as its text at most.
    page.write_text(
        "<!DOCTYPE html><meta name='viewport' content='width=device-width'><style>body { margin: 0 } img { max-width: 100% }"
        f"</style><img src='{picture.as_uri()}'>"
    )
    for width in WIDTHS:
        window.show(page, width, "light")
        natural = window.evaluate("document.images[0].naturalWidth")
        assert natural > 0, "no picture"
        assert window.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"wider than {width} px"
    looks = {}
    for scheme in SCHEMES:
        # All of it is in the window, so that the elements behind its text can be found.
        window.show(picture, 2000, scheme, height=4000)
        looks[scheme] = look = window.evaluate(LOOK)
        assert not [fault for fault in look["wrong"] if fault.startswith("cut off")], look["wrong"]
        assert not look["faint"], f"hard to read: {look['faint'][:5]}"
        # Without it, a browser cuts the picture off where it would shrink it.
        assert window.evaluate("document.documentElement.hasAttribute('viewBox')"), "no viewBox"
    for part in ("paper", "ink"):
        assert looks["light"][part] != looks["dark"][part], f"{part} does not change in the dark"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_of_the_documents_fits_its_page_light_and_dark(
    picture: Path, window: browser.Browser, tmp_path: Path
) -> None:
    check_picture(window, picture, tmp_path)


@pytest.mark.parametrize("name", ["h200-totals", "h200-run-vgg"])
def test_a_picture_drawn_for_white_pages_alone_is_found(name: str, window: browser.Browser, tmp_path: Path) -> None:
    right = (ROOT / f"docs/pictures/{name}.svg").read_text()
    picture = tmp_path / "picture.svg"
    for rule, said in [(".paper { fill: #16181c }", "hard to read"), ("text { fill: #dddddd }", "hard to read")]:
        assert rule in right
        picture.write_text(right.replace(rule, ""))
        with pytest.raises(AssertionError, match=said):
            check_picture(window, picture, tmp_path)
    picture.write_text(right.replace("prefers-color-scheme: dark", "prefers-color-scheme: other"))
    with pytest.raises(AssertionError, match="does not change in the dark"):
        check_picture(window, picture, tmp_path)
