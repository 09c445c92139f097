"""Unmodified programs under a budget that the command gives them."""

import pytest
from fit_support import PROGRAM, launched


def test_an_unmodified_program_is_fitted(tmp_path):
    plain, fitted = launched(tmp_path, ""), launched(tmp_path, "4MiB")
    assert plain.returncode == fitted.returncode == 0, fitted.stderr
    assert plain.stdout == fitted.stdout and "done" in plain.stdout
    assert "training Model in 4.00 MiB" in fitted.stderr and "2.50 MiB offloaded" in fitted.stderr, fitted.stderr
    assert "AdamW" not in fitted.stderr, "the program's own optimizer is found"
    assert plain.stderr == ""


def test_an_unmodified_program_ends_before_its_first_step_if_the_budget_cannot_be_met(tmp_path):
    refused = launched(tmp_path, "1MiB", PROGRAM.replace("value = loss", "print('step')\n    value = loss"))
    assert refused.returncode == 3, refused.stderr
    assert refused.stdout == "step\n" and "it needs at least" in refused.stderr


def test_a_later_form_of_the_inputs_that_does_not_fit_is_offloaded(tmp_path):
    """Only a budget that cannot be met from the start ends a program."""
    changed = PROGRAM.replace("value = loss(model(x,", "x = torch.randn(8 if step != 1 else 32, 3, 32, 32)\n    value = loss(model(x,")
    changed = changed.replace("torch.zeros(8,", "torch.zeros(len(x),")
    plain, fitted = launched(tmp_path, "", changed), launched(tmp_path, "4MiB", changed)
    assert plain.returncode == fitted.returncode == 0, fitted.stderr
    assert plain.stdout == fitted.stdout and "done" in plain.stdout
    assert "does not fit in 4.00 MiB" in fitted.stderr and "is offloaded" in fitted.stderr


def test_a_program_without_torch_and_the_sites_own_customization_run_as_before(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('own site')\n")
    ran = launched(tmp_path, "1MiB", "import sys; print('torch' in sys.modules, 'tightfit' in sys.modules)", str(own))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "own site\nFalse False\n", "")


SETTINGS = "import os, torch; print(os.environ.get('PYTORCH_ALLOC_CONF'), os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", ""])
def test_segments_are_expandable_under_a_budget_unless_the_user_set_the_allocator_up(name, tmp_path, monkeypatch):
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    if name:
        monkeypatch.setenv(name, "garbage_collection_threshold:0.8")
    ran = launched(tmp_path, "1GiB", SETTINGS)
    assert ran.returncode == 0, ran.stderr
    found = ran.stdout.split()
    expected = {"PYTORCH_ALLOC_CONF": None, "PYTORCH_CUDA_ALLOC_CONF": None}
    if name:
        expected[name] = "garbage_collection_threshold:0.8"
    else:
        expected["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    assert found == [str(value) for value in expected.values()]
    assert launched(tmp_path, "", "import os; print(os.environ.get('PYTORCH_ALLOC_CONF'))").stdout.strip() == (
        "garbage_collection_threshold:0.8" if name == "PYTORCH_ALLOC_CONF" else "None"
    )
