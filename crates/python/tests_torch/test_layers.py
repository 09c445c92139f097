"""Layer names, as a library would hear them: a small C library in place of the preloaded one writes down its calls."""

import os
import subprocess
import sys
import textwrap

import pytest

# Each convolution of the program below happens between two lines of this library's.
LISTENER = """
#include <stdio.h>
#include <unistd.h>
#include <string.h>
void tightfitSetLayer(const char *name) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s\\n", name ? name : "-");
    if (write(1, line, length) != length) _exit(3);
}
"""
MODEL = """
import torch
from torch import nn
model = nn.Sequential()
model.add_module("first", nn.Conv2d(3, 4, 3, padding=1))
model.add_module("relu", nn.ReLU(inplace=True))
model.add_module("block", nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)))
x = torch.randn(2, 3, 8, 8, requires_grad=True)
"""
NAMES = ["first", "-", "block.0", "-", "block.0", "-", "first", "-"]


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listener")
    (folder / "listener.c").write_text(LISTENER)
    library = folder / "listener.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "listener.c"], check=True)
    return str(library)


def heard(tmp_path, program, listener=None, through_names=False):
    """The lines that the program printed and the library wrote."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    preload = {"LD_PRELOAD": listener} if listener else {}
    command = [sys.executable, *(["-m", "tightfit.names"] if through_names else []), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **preload}, check=True)
    return done.stdout.split()


def test_forward_and_backward_of_each_layer_are_named(tmp_path, listener):
    program = MODEL + "import tightfit.torch\nnames = tightfit.torch.name_layers(model)\nmodel(x).sum().backward()\n"
    assert heard(tmp_path, program, listener) == NAMES
    assert heard(tmp_path, program) == []


def test_an_unmodified_program_is_named_when_its_model_is_first_called(tmp_path, listener):
    program = MODEL + "model(x).sum().backward()\nmodel(x).sum().backward()\n"
    assert heard(tmp_path, program, listener, through_names=True) == NAMES * 2
    assert heard(tmp_path, program, listener) == []
    assert heard(tmp_path, program, through_names=True) == []


def test_wrappers_and_prefixes(tmp_path, listener):
    program = MODEL + (
        "import tightfit.torch\nholder = nn.Module()\nholder.module = model\n"
        "print(*tightfit.torch.name_layers(holder, 'net.').layers, *tightfit.torch.name_layers(nn.Conv1d(1, 1, 1)).layers)\n"
    )
    assert heard(tmp_path, program, listener) == ["net.first", "net.block.0", "conv1d"]


def test_a_layer_that_raises_leaves_no_name_behind_and_removed_names_are_silent(tmp_path, listener):
    program = MODEL + (
        "import tightfit.torch\nnames = tightfit.torch.name_layers(model)\n"
        "try:\n    model(torch.randn(2, 5, 8, 8))\nexcept RuntimeError:\n    pass\n"
        "names.remove()\nmodel(x).sum().backward()\n"
    )
    assert heard(tmp_path, program, listener) == ["first", "-"]


def test_gradients_are_the_same(tmp_path, listener):
    program = MODEL + (
        "import sys, tightfit.torch\nmodel(x).sum().backward()\nplain = x.grad.clone()\nx.grad = None\n"
        "tightfit.torch.name_layers(model)\nmodel.train()\nmodel(x).sum().backward()\n"
        "assert torch.equal(plain, x.grad)\n"
    )
    assert heard(tmp_path, program, listener) == NAMES
