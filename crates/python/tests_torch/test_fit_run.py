"""Unmodified programs under a budget, as `tightfit run --budget` starts them: what they import, save and replace."""

import subprocess
import sys

import pytest
from fit_support import PROGRAM, launched

LOOKS = """
import importlib.util
assert importlib.util.find_spec("torch").name == importlib.util.find_spec("torch").name == "torch"
"""


def test_a_program_that_looks_for_torch_before_it_imports_it_is_fitted(tmp_path):
    plain, fitted = launched(tmp_path, "", LOOKS + PROGRAM), launched(tmp_path, "4MiB", LOOKS + PROGRAM)
    assert plain.returncode == fitted.returncode == 0, fitted.stderr
    assert plain.stdout == fitted.stdout
    assert "offloaded" in fitted.stderr and fitted.stderr.count("tightfit: Model: predicted") == 1, fitted.stderr


@pytest.mark.parametrize("budget", ["", "1GiB"])
def test_an_import_that_fails_in_the_sites_own_customization_is_told_as_by_python(budget, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import nothing_of_this_name\n")
    ran = launched(tmp_path, budget, "print('ran')", str(own))
    assert ran.stdout == "ran\n" and "Error in sitecustomize" in ran.stderr and "nothing_of_this_name" in ran.stderr


LATER = """
big = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.ReLU()) for i in range(6)])
for _ in range(2):
    big.zero_grad()
    big(torch.randn(8, 3, 32, 32)).square().mean().backward()
print("second model ran", sum(p.grad.double().sum().item() for p in big.parameters()).hex())
"""


def test_a_second_model_that_does_not_fit_ends_no_program_that_has_trained(tmp_path):
    plain, fitted = launched(tmp_path, "", PROGRAM + LATER), launched(tmp_path, "4MiB", PROGRAM + LATER)
    assert plain.returncode == fitted.returncode == 0, fitted.stderr
    assert plain.stdout == fitted.stdout and "second model ran" in plain.stdout
    assert fitted.stderr.count("Sequential does not fit in 4.00 MiB") == 1 and "is offloaded" in fitted.stderr


def test_weights_that_do_not_fit_end_no_program_that_has_trained(tmp_path):
    """Of a model that cannot be rehearsed, these are looked at before its first step."""
    later = """
class Reads(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1.0 if x.mean().item() < 9 else 2.0)
big = Reads(2048, 2048)
for _ in range(2):
    big.zero_grad()
    big(torch.randn(8, 2048)).square().mean().backward()
print("second model ran")
"""
    fitted = launched(tmp_path, "4MiB", PROGRAM + later)
    assert fitted.returncode == 0 and "second model ran" in fitted.stdout, fitted.stderr
    assert fitted.stderr.count("weights, gradients and the optimizer's state alone take") == 1


TRACES = """
with torch.no_grad():
    traced, scripted = torch.jit.trace(model.body, x), torch.jit.script(model.body)
    assert torch.equal(traced(x), model.body(x)) and torch.equal(scripted(x), model.body(x))
torch.jit.trace(model.body, x)
for module in (traced, scripted):
    for _ in range(2):
        module(x).square().mean().backward()
print("traced")
"""


def test_a_model_is_traced_and_scripted_as_without_a_budget(tmp_path):
    begin, end = PROGRAM.split("for step in range(3):")
    for program in (PROGRAM + TRACES, f"{begin}{TRACES}for step in range(3):{end}"):
        fitted = launched(tmp_path, "4MiB", program)
        assert fitted.returncode == 0 and "traced\n" in fitted.stdout and "done\n" in fitted.stdout, fitted.stderr
        assert fitted.stderr.count("Model: predicted peak") == 1 and fitted.stderr.count("has modules of TorchScript") == 2
        assert "cannot be rehearsed" not in fitted.stderr


SAVES = """
from tightfit._budget.record import cost
rates = cost._CPU
cost._CPU = cost.Rates(rates.wide, rates.narrow, rates.memory, 1e6, rates.call_us)
layers = [nn.Sequential(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(6)]
model = nn.Sequential(*layers)
for step in range(2):
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
torch.jit.script(model)
torch.save(model, "model.pt")
assert b"tightfit" not in open("model.pt", "rb").read()
"""


def test_a_model_is_saved_and_scripted_as_without_a_budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted = launched(tmp_path, "2400KiB", "import torch\nfrom torch import nn\n" + SAVES)
    assert fitted.returncode == 0, fitted.stderr
    assert "0 bytes offloaded" in fitted.stderr
    read = launched(tmp_path, "", "import torch; print(len(torch.load('model.pt', weights_only=False)))")
    assert read.stdout == "6\n", read.stderr


@pytest.mark.parametrize("options", ["", "-I", "-E"])
def test_a_python_that_ignores_its_environment_is_held_to_its_budget_beside_a_file_of_our_name(options, tmp_path):
    """The other ways of starting a program are in `tests/test_run_budget.py`, with packages that stand in for torch."""
    (tmp_path / "tightfit.py").write_text("note = 'my first try'\n")
    (tmp_path / "program.py").write_text("import sys, tightfit; print(sys.flags.isolated or tightfit.note)\n" + PROGRAM)
    command = [sys.executable, "-I", "-m", "tightfit", "run", "--budget", "1MiB", "--", sys.executable, *options.split(), str(tmp_path / "program.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    # An isolated Python does not import from the folder of the script.
    assert (ran.returncode, ran.stdout) == (3, "1\n" if options == "-I" else "my first try\n"), ran.stderr
    assert "Model does not fit in 1.00 MiB" in ran.stderr


APART = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)

def layers(count=6):
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Conv2d(8, 8, 3, 1, 1), nn.SiLU())))

def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
"""
METHODS = """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = layers(), layers()

model = Autoencoder()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    x = torch.randn(8, 8, 32, 32)
    step(optimizer, (model.decoder(model.encoder(x)) - x).square().mean())
"""
ADVERSARIAL = """
one, other = layers(), layers()
optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (one, other)]
for _ in range(5):
    z, real = torch.randn(2, 8, 8, 32, 32)
    made = one(z)
    step(optimizers[1], (other(real) - 1).square().mean() + other(made.detach()).square().mean())
    step(optimizers[0], (other(made) - 1).square().mean())
"""
PERCEPTUAL = """
model, frozen = layers(), layers().requires_grad_(False).eval()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    x = torch.randn(8, 8, 32, 32)
    with torch.no_grad():
        wanted = frozen(x)
    step(optimizer, (frozen(model(x)) - wanted).square().mean())
"""
# A backward pass that raises, and calls without one, between the steps.
BROKEN = """
one, other = layers(), layers()
optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 1e-3)
for number in range(6):
    x = torch.randn(8, 8, 32, 32)
    try:
        y = one(x)
        if number == 2:
            raise ValueError
        y = other(y)
        if number == 3:
            y.register_hook(lambda _: 1 / 0)
        step(optimizer, (y - x).square().mean())
    except (ValueError, ZeroDivisionError) as error:
        print(type(error).__name__)
    with torch.no_grad():
        other(one(x))
"""


@pytest.mark.parametrize("program", [METHODS, ADVERSARIAL, PERCEPTUAL, BROKEN], ids=["methods", "adversarial", "perceptual", "broken"])
def test_models_that_are_called_in_one_step_have_one_plan(program, tmp_path):
    plain, fits, fitted = (launched(tmp_path, budget, APART + program) for budget in ("", "1GiB", "3500KiB"))
    assert fits.stdout == plain.stdout and fits.stderr.count("planned together") == 1 and "Conv2d" not in fits.stderr, fits.stderr
    assert plain.returncode == fitted.returncode == 0, fitted.stderr
    assert plain.stdout == fitted.stdout and plain.stdout.count("loss") >= 4
    said = [line for line in fitted.stderr.splitlines() if "planned together" not in line]
    assert len(said) < len(fitted.stderr.splitlines()) and any("offloaded," in line and "3.42 MiB" in line for line in said), fitted.stderr
