"""The last line of a program under a budget, and the notes of `tightfit compare` about a program."""

import json
import re

import pytest

from fit_support import PACKAGE, launched

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(layer for at in range(6) for layer in (nn.Conv2d(3 if at == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())))
optimizer = torch.optim.AdamW(model.parameters())
other = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)
for step in range(30):
    loss = model(torch.randn(4, 3, 16, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    other.step()
print("done", flush=True)
"""


def noted(tmp_path, monkeypatch, budget, program=TRAIN, steps="12"):
    """The notes about a program, and its exit code."""
    file = tmp_path / f"notes-{budget or 'plain'}.json"
    monkeypatch.setenv("TIGHTFIT_COMPARE", str(file))
    monkeypatch.setenv("TIGHTFIT_COMPARE_STEPS", steps)
    ran = launched(tmp_path, budget, program)
    assert ran.returncode == 0, ran.stderr
    return json.loads(file.read_text()) if file.exists() else None, ran


def test_steps_and_losses_are_noted_and_the_program_ends_after_enough(tmp_path, monkeypatch):
    plain, ran = noted(tmp_path, monkeypatch, "")
    ours, fitted = noted(tmp_path, monkeypatch, "70%")
    assert "done" not in ran.stdout + fitted.stdout, "ended in its 20th step"
    assert len(plain["steps_ms"]) == len(ours["steps_ms"]) == 12 and min(plain["steps_ms"]) > 0
    assert plain["bits"] == ours["bits"] and len(plain["bits"]) == 20, "steps of the second optimizer are none, rehearsed losses neither"
    assert plain["losses"] == [float.fromhex(value) for value in plain["bits"]] and plain["peak_bytes"] is None
    assert "training Sequential in" in fitted.stderr and "tightfit" not in ran.stderr
    other, _ = noted(tmp_path, monkeypatch, "", TRAIN.replace("manual_seed(0)", "manual_seed(1)"))
    assert other["bits"] != plain["bits"]


def test_a_program_that_ends_by_itself_is_noted_as_far_as_it_went(tmp_path, monkeypatch):
    notes, ran = noted(tmp_path, monkeypatch, "", steps="1000")
    assert "done" in ran.stdout and len(notes["steps_ms"]) == 22
    notes, ran = noted(tmp_path, monkeypatch, "1GiB", "import torch; print('done')")
    assert notes is None and ran.stdout == "done\n"


@pytest.mark.parametrize("budget", ["70%", "1GiB"])
def test_the_end_of_a_program_says_what_was_done(budget, tmp_path, monkeypatch):
    report = tmp_path / "report-%p.json"
    monkeypatch.setenv("TIGHTFIT_BUDGET_REPORT", str(report))
    ran = launched(tmp_path, budget, TRAIN)
    assert ran.returncode == 0 and ran.stdout == "done\n", ran.stderr
    said = [line for line in ran.stderr.splitlines() if "Sequential: predicted" not in line]
    first, last = said[0], said[-1]
    assert re.match(r"tightfit: 30 steps of [\d.]+ ms, predicted peak .* of ", last), ran.stderr
    written = json.loads(next(tmp_path.glob("report-*.json")).read_text())
    model = written["models"][0]
    assert written["steps"] == 30 and written["peak_bytes"] is None and len(written["models"]) == 1
    if budget == "1GiB":
        assert first.endswith("fits in 1.00 GiB; nothing is changed") and last.endswith("everything fit, so nothing was changed")
        assert model["peak_bytes"] == model["plain_bytes"] and model["moved_bytes"] == 0
    else:
        assert first.startswith("tightfit: training Sequential in ") and "(predicted; `tightfit compare` measures it)" in last
        # A share of the first step's need.
        assert abs(model["budget_bytes"] / model["plain_bytes"] - 0.7) < 0.05 and model["peak_bytes"] <= model["budget_bytes"]
        assert ran.stderr.count("no GPU here, so no memory is saved") + ran.stderr.count("the model is on the CPU, so no memory is saved") == 1


def test_a_program_without_a_model_says_nothing_at_its_end(tmp_path):
    ran = launched(tmp_path, "1GiB", "import torch; print('done')")
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_the_statistics_of_a_launched_model_are_there(tmp_path):
    program = TRAIN + f"import sys; sys.path.append({str(PACKAGE.parent)!r})\nimport tightfit.torch\nprint(sorted(tightfit.torch.stats(model)))\n"
    ran = launched(tmp_path, "70%", program)
    assert "'budget_bytes', 'device'" in ran.stdout, ran.stderr


def test_a_sweep_ends_the_program_before_its_first_step(tmp_path, monkeypatch):
    page = tmp_path / "sweep.html"
    monkeypatch.setenv("TIGHTFIT_SWEEP", str(page))
    ran = launched(tmp_path, "100%", TRAIN)
    assert ran.returncode == 0 and "done" not in ran.stdout, ran.stderr
    shares = [int(share) for share in re.findall(r" (\d+)% +[\dd]", ran.stdout)]
    assert shares == sorted(shares, reverse=True) and shares[0] == 100 and shares[-1] <= 30, "down to the least"
    assert "<svg" in page.read_text() and "of plain" in page.read_text()


COMPILED = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(layer for at in range(6) for layer in (nn.Conv2d(3 if at == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())))
import sys
from tightfit._budget.compiled.backend import tightfit
from tightfit._budget.compiled.held import all_held
compiled = torch.compile(model, backend=tightfit, options={"budget": "80%", "inner": "eager"})
for _ in range(3):
    compiled(torch.randn(8, 3, 24, 24)).square().mean().backward()
held, = all_held()
planned, = held.planned
print(planned.peak <= held.budget == int(0.8 * planned.plain), planned.is_plain)
"""


def test_a_compiled_model_is_held_to_a_share(tmp_path):
    ran = launched(tmp_path, "", COMPILED)
    assert ran.stdout == "True False\n", ran.stderr
    assert "training a compiled model in" in ran.stderr and "predicted for this CPU" in ran.stderr
