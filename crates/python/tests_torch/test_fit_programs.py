"""The surroundings of a fitted model in programs: several processes, gradient scalers, adapters; and models that are left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tightfit
import tightfit.torch as tt
import torch
from fit_models import Resnet, image
from fit_support import FAST, decided, default_loss, fitted_copy, last_plan, same_bits, sgd, train
from torch import nn

PACKAGE = Path(tightfit.__file__).parent.parent
EXAMPLES = Path(__file__).parents[3] / "examples"


RANK = """
import copy, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import tightfit.torch as tt
from fit_models import Resnet, image
from fit_support import FAST, SLOW, decided, last_plan, tight_budget
from tightfit._budget.record import cost

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
model = Resnet(blocks=3).train()
for link in (FAST, SLOW):
    rates = cost._CPU
    cost._CPU = cost.Rates(rates.wide, rates.narrow, rates.memory, link, rates.call_us)
    torch.manual_seed(1 + rank)
    x = image(4)
    found = []
    for fitted in (False, True):
        net = copy.deepcopy(model)
        if fitted:
            tt.fit(net, int(tight_budget(net, x, 0.7) * 1.1), optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        wrapped = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
        gradients = []
        for step in range(3):
            optimizer.zero_grad()
            if step == 1:
                with wrapped.no_sync():
                    wrapped(x * 2).square().mean().backward()
            wrapped(x).square().mean().backward()
            gradients += [p.grad.clone() for p in wrapped.parameters()]
            optimizer.step()
        found.append(gradients)
    assert all(map(torch.equal, *found)), "other gradients"
    assert sum(decided(last_plan(net)).values()) > 0 and last_plan(net).counts.packs > 0
    dist.barrier()
dist.destroy_process_group()
print("same")
"""


def test_two_ranks_have_the_gradients_of_plain_ddp(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{Path(__file__).parent}", "TIGHTFIT_QUIET": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "rank.py"), str(rank), str(tmp_path / "store")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0 and out == "same\n", err[-2000:]


def test_a_gradient_scaler_unscales_and_skips_as_in_plain_training(link):
    torch.manual_seed(1)
    model, x = Resnet(blocks=3).train(), image(4)
    with torch.autocast("cpu", torch.bfloat16):
        fitted = fitted_copy(model, x)
    found = []
    for net in (model, fitted):
        optimizer, scaler = sgd(net), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
        values = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = net(x).float().square().mean()
            # An overflow in the third step, which the scaler skips.
            scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            values += [scaler.get_scale(), *(p.detach().clone() for p in net.parameters())]
        found.append(values)
    assert all(a == b if isinstance(a, float) else torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert last_plan(fitted).counts.packs > 0


class Adapter(nn.Module):
    """A frozen layer, to which the trained product of two narrow layers is added: LoRA."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class AdaptedMlp(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), Adapter(nn.Linear(width, 4 * width)), nn.GELU(), Adapter(nn.Linear(4 * width, width)))
            for _ in range(depth)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def test_adapters_on_frozen_layers_are_trained_with_the_same_bits(link):
    torch.manual_seed(1)
    model, x = AdaptedMlp().train(), torch.randn(32, 16, 64)
    fitted = fitted_copy(model, x)
    assert same_bits(train(model, 3, x), train(fitted, 3, x))
    assert decided(last_plan(fitted))["offload" if link == FAST else "recompute"] > 0
    assert all(p.grad is None for name, p in fitted.named_parameters() if ".layer." in name)


def told(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("tightfit:")]


def test_function_transforms_are_left_alone_with_one_line(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    model, x = Resnet(blocks=2).eval(), image(2)
    tt.fit(model, "1MiB")
    values = {name: p.detach() for name, p in model.named_parameters()}
    for _ in range(2):
        found = torch.func.grad(lambda v: torch.func.functional_call(model, v, (x,)).square().mean())(values)
        assert all(torch.isfinite(value).all() for value in found.values())
    lines = told(capfd)
    assert len(lines) == 1 and "torch.func" in lines[0], lines


def test_a_fitted_model_that_is_compiled_as_a_whole_runs():
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(4, 8)
    default_loss(model, x).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(tt.fit(model, "1GiB"), backend="eager")
    default_loss(compiled, x).backward()
    assert all(torch.allclose(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
    torch._dynamo.reset()


def test_nested_inputs_are_left_alone_with_one_line(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    model = tt.fit(nn.Linear(8, 8), "1KiB")
    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
    for _ in range(2):
        model(x).values().sum().backward()
    lines = told(capfd)
    assert len(lines) == 1 and "nested" in lines[0], lines


class Sharded(torch.Tensor):
    """Stands for the parameters of FSDP: a subclass of tensors."""


def test_sharded_parameters_are_left_alone_with_one_line(monkeypatch, capfd):
    monkeypatch.setenv("TIGHTFIT_QUIET", "0")
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(model.weight.detach().as_subclass(Sharded))
    tt.fit(model, "1KiB")
    for _ in range(2):
        model(torch.randn(2, 8)).sum().backward()
    lines = told(capfd)
    assert len(lines) == 1 and "Sharded" in lines[0], lines


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_examples_run(name, tmp_path):
    pytest.importorskip(name)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "HF_HUB_OFFLINE": "1", "TIGHTFIT_QUIET": "0"}
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"fit_{name}.py")], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "tightfit: training " in ran.stderr and "moves " in ran.stderr, ran.stderr[-2000:]
    assert ran.stdout.strip().splitlines()[-1].startswith("trained within"), ran.stdout[-2000:]


TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return {"pixel_values": torch.randn(3, 64, 64), "labels": index % 10}

torch.manual_seed(0)
config = ViTConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=8)
config.num_labels = 10
model = ViTForImageClassification(config)
arguments = TrainingArguments("output", per_device_train_batch_size=16, max_steps=3, save_strategy="no", report_to=[], use_cpu=True)
Trainer(model, arguments, train_dataset=Images()).train()
print("weights", [p.double().sum().item().hex() for p in model.parameters()])
"""

LIGHTNING = """
import lightning as L
import torch
from torch import nn
from torch.nn import functional as F

class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(6)]
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

torch.manual_seed(0)
samples = torch.utils.data.TensorDataset(torch.randn(96, 3, 32, 32), torch.randint(10, (96,)))
model = Classifier()
L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
          enable_model_summary=False).fit(model, torch.utils.data.DataLoader(samples, batch_size=32))
print("weights", [p.double().sum().item().hex() for p in model.parameters()])
"""


@pytest.mark.parametrize(("name", "program", "model"), [("transformers", TRANSFORMERS, "ViTForImageClassification"), ("lightning", LIGHTNING, "Sequential")])
def test_trainers_are_fitted_unmodified_and_train_the_same_weights(name, program, model, tmp_path):
    """As `tightfit run --budget` starts them."""
    pytest.importorskip(name)
    (tmp_path / "program.py").write_text(program)
    found = []
    for budget in ("", "14MiB", "1MiB"):
        path = f"{PACKAGE / 'tightfit/_budget/site'}:{PACKAGE}"
        environment = {**os.environ, "PYTHONPATH": path, "TIGHTFIT_BUDGET": budget, "TIGHTFIT_QUIET": "0", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "program.py"]
        found.append(subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False))
    plain, fitted, refused = found
    assert plain.returncode == fitted.returncode == 0, fitted.stderr[-2000:]
    weights = [line for line in plain.stdout.splitlines() if line.startswith("weights")]
    assert len(weights) == 1 and weights[0] in fitted.stdout
    assert f"tightfit: {model}: predicted peak" in fitted.stderr and "tightfit" not in plain.stderr
    assert refused.returncode == 3 and f"tightfit: {model} does not fit in 1.00 MiB" in refused.stderr
