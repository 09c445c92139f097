"""``set_limits`` without the preloaded library, with a small C library in its place, and with the library itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tightfit

ROOT = Path(__file__).resolve().parents[3]

# Prints its arguments; the layer "held" has three convolutions that cannot follow.
LISTENER = r"""
#include <stdio.h>
#include <string.h>
int tightfitSetLimits(const char *settings, const char *const *layers, int count) {
    printf("%s", settings);
    if (!layers) printf(" for all");
    for (int i = 0; i < count; i++) printf(" [%s]", layers[i]);
    printf("\n");
    fflush(stdout);
    if (strstr(settings, "guess")) return -1;
    if (strstr(settings, "cached")) return -2;
    return count && !strcmp(layers[0], "held") ? 3 : 0;
}
const char *tightfitLastError(void) { return "the words of the library"; }
"""


def run(program: str, **environment: str) -> list[str]:
    """The output of a program, line by line."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}
    done = subprocess.run(
        [sys.executable, "-c", "import tightfit\n" + program],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listener")
    (folder / "listener.c").write_text(LISTENER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "listener.so", folder / "listener.c"], check=True)
    return str(folder / "listener.so")


@pytest.fixture(scope="module")
def preload():
    library = ROOT / "target/debug/deps/libtightfit_preload.so"
    if not library.exists():
        pytest.skip(f"{library} is not built")
    return str(library)


def test_without_the_library_an_error_says_how_to_start():
    with pytest.raises(tightfit.NotPreloaded, match="tightfit run") as raised:
        tightfit.set_limits(workspace="64MiB")
    assert isinstance(raised.value, tightfit.Error)


def test_a_call_says_something():
    for call in [{}, {"layers": ["a"]}, {"sizes": "all,tune=cached"}, {"workspace": 1, "layers": ["a\0b"]}]:
        with pytest.raises(tightfit.BadInput):
            tightfit.set_limits(**call)


def test_settings_reach_the_library(listener):
    program = (
        "print(tightfit.set_limits(workspace=1024, sizes='all'), flush=True)\n"
        "print(tightfit.set_limits(total_workspace='1 GiB'), flush=True)\n"
        "print(tightfit.set_limits(tune='measure', layers=('held', 'b c')), flush=True)\n"
        "print(tightfit.set_limits(workspace='default', layers='a'), flush=True)\n"
        "print(tightfit.set_limits(workspace=1, layers=[]), flush=True)\n"
        "for tune in ['guess', 'cached']:\n"
        "    try: tightfit.set_limits(tune=tune)\n"
        "    except tightfit.Error as error: print(type(error).__name__, error, flush=True)\n"
    )
    assert run(program, LD_PRELOAD=listener) == [
        *("workspace=1024,sizes=all for all", "0"),
        *("total-workspace=1 GiB for all", "0"),
        *("tune=measure [held] [b c]", "3"),
        *("workspace=default [a]", "0"),
        *("workspace=1", "0"),
        *("tune=guess for all", "BadInput the words of the library"),
        *("tune=cached for all", "NotPreloaded the words of the library"),
    ]


def test_the_preloaded_library_names_allowed_settings(preload):
    program = (
        "print(tightfit.set_limits(workspace='64MiB', sizes='fit', tune='measure', layers=['conv1']))\n"
        "print(tightfit.set_limits(total_workspace=1 << 30))\n"
        "for wrong in [dict(sizes='some'), dict(workspace='64 apples'), dict(total_workspace='1GiB', layers=['conv1'])]:\n"
        "    try: tightfit.set_limits(**wrong)\n"
        "    except tightfit.BadInput as error: print(error)\n"
    )
    lines = run(program, LD_PRELOAD=preload)
    assert lines[:2] == ["0", "0"]
    for line, words in zip(lines[2:], [["some", "undivided", "power-of-two"], ["64 apples"], ["layers"]], strict=True):
        assert all(word in line for word in words), line
    off = "try: tightfit.set_limits(tune='cached')\nexcept tightfit.NotPreloaded as error: print(error)"
    assert "TIGHTFIT_OFF" in run(off, LD_PRELOAD=preload, TIGHTFIT_OFF="1")[0]
