"""The recorded steps that are planned without torch equal the steps that are recorded now."""

import gzip
import json

import pytest

from fit_recorded import STEPS, path_of, step_of


@pytest.mark.parametrize("name", STEPS)
def test_step_files_are_what_is_recorded(name):
    written = json.loads(gzip.decompress(path_of(name).read_bytes()))
    assert step_of(name) == written, "write them anew: python crates/python/tests_torch/fit_recorded.py"
