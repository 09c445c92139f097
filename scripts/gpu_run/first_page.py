"""A small training script for scripts/gpu-first-page.sh, which knows nothing of tightfit: MODEL BATCH [STEPS]. With `questions`, it prints the
answers of `largest_batch` and `sweep` next to measurements."""

import json
import sys
import time

import torch
from torch import nn


# Without a GPU, the script runs on the CPU, with the model `tiny`.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def build(name, batch, device=DEVICE):
    """A model, a function that makes its inputs for a number of samples, and its loss."""
    torch.manual_seed(0)
    if name == "tiny":
        layers = [nn.Sequential(nn.Conv2d(3 if at == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for at in range(4)]
        return nn.Sequential(*layers).to(device), lambda n: torch.randn(n, 3, 32, 32, device=device), lambda out: out.float().square().mean()
    if name == "resnet50":
        import torchvision

        model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
        criterion = nn.CrossEntropyLoss()
        x = lambda n: torch.randn(n, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)  # noqa: E731
        y = torch.randint(1000, (batch,), device=device)
        return model, x, lambda out: criterion(out.float(), y)
    if name == "unet3d":
        def block(i, o):
            return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True),
                                 nn.Conv3d(o, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True))  # fmt: skip

        class UNet3d(nn.Module):
            def __init__(self):
                super().__init__()
                widths = (32, 64, 128, 256)
                self.down = nn.ModuleList(block(i, o) for i, o in zip((1, *widths), widths))
                self.up = nn.ModuleList(nn.ConvTranspose3d(o, i, 2, 2) for i, o in zip(widths, widths[1:]))
                self.join = nn.ModuleList(block(2 * i, i) for i in widths[:-1])
                self.head = nn.Conv3d(32, 2, 1)

            def forward(self, x):
                kept = []
                for at, down in enumerate(self.down):
                    x = down(x if at == 0 else nn.functional.max_pool3d(x, 2))
                    kept.append(x)
                for up, join, beside in list(zip(self.up, self.join, kept[:-1]))[::-1]:
                    x = join(torch.cat([up(x), beside], 1))
                return self.head(x)

        return UNet3d().to(device), lambda n: torch.randn(n, 1, 96, 96, 96, device=device), lambda out: out.float().square().mean()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=24, n_embd=1024, n_head=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).to(device)
    return model, lambda n: torch.randint(50257, (n, 1024), device=device), lambda out: nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), y_of_gpt(batch, device))


def y_of_gpt(batch, device):
    return torch.zeros(batch * 1023, dtype=torch.long, device=device)


def train(name, batch, steps):
    model, make, loss_of = build(name, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = make(batch)
    for step in range(steps):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


class Autocast(nn.Module):
    """A model under autocast, as one module."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast(DEVICE, torch.bfloat16):
            return self.model(x)


def peak_of(name, batch, budget=None):
    """The measured peak of five steps in bytes, or None if they do not fit the GPU or the budget."""
    import tightfit.torch as tt
    from tightfit import DoesNotFit

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.empty_cache()
    model, make, loss_of = build(name, batch)
    model = Autocast(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if budget is not None:
        tt.fit(model, budget, optimizer=optimizer)
    x = make(batch)
    most, times = 0, []
    try:
        for _ in range(12):
            if gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            loss_of(model(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if gpu:
                torch.cuda.synchronize()
                most = int(torch.cuda.max_memory_allocated())
            times.append(time.perf_counter() - begin)
    except (torch.OutOfMemoryError, DoesNotFit) as error:
        return {"failed": str(error)[:200]}
    return {"peak_bytes": most, "step_ms": 1e3 * sorted(times[4:])[len(times[4:]) // 2]}


def questions(name, batch):
    """Prints each answer and its measurement as soon as they are known."""
    import tightfit.torch as tt

    def say(**what):
        print(json.dumps({"model": name, **what}), flush=True)

    model, make, loss_of = build(name, batch)
    model = Autocast(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    budget = "16GiB" if DEVICE == "cuda" else "16MiB"
    begin = time.time()
    plan = tt.plan(model, make(batch), optimizer=optimizer)
    sweep = plan.sweep((1.0, 0.8, 0.6, 0.4))
    say(question="sweep", batch=batch, answer=sweep._rows(), least=sweep.least, plain=sweep.plain, seconds=time.time() - begin)
    say(measured="plain", batch=batch, **peak_of(name, batch))
    for share in ("60%", "80%"):
        say(measured=f"fit {share}", batch=batch, **peak_of(name, batch, share))
    begin = time.time()
    found = tt.largest_batch(model, make, budget, optimizer=optimizer)
    say(question=f"largest_batch {budget}", answer=found.batch, plain=found.plain_batch, said=repr(found), seconds=time.time() - begin)
    del model, optimizer
    if found.batch:
        say(measured=f"fit {budget}", batch=found.batch, **peak_of(name, found.batch, budget))
    if found.plain_batch:
        say(measured="plain", batch=found.plain_batch, **peak_of(name, found.plain_batch))


if __name__ == "__main__":
    if sys.argv[1] == "questions":
        questions(sys.argv[2], int(sys.argv[3]))
    else:
        train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 60)
