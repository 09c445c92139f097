"""A small training script for scripts/gpu-first-page.sh, which knows nothing of tightfit: MODEL BATCH [STEPS]. With `questions`, it prints the
answers of `largest_batch` and `sweep` next to measurements."""

import contextlib
import fcntl
import gc
import json
import os
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


@contextlib.contextmanager
def alone():
    """Waits until no other process of this script uses the GPU."""
    with open(os.environ.get("LOCK", os.devnull), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def step_of(name, batch, budget=None):
    """A function that runs a step, plain or within a budget, and returns its seconds and its peak in bytes."""
    import tightfit.torch as tt

    model, make, loss_of = build(name, batch)
    model = Autocast(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if budget is not None:
        tt.fit(model, budget, optimizer=optimizer)
    x = make(batch)

    def step():
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        loss_of(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin, int(torch.cuda.max_memory_allocated()) if DEVICE == "cuda" else 0

    return step


def measured(name, batch, budget=None, steps=12):
    """The highest peak of these steps, and their median time without the first four; or why they failed."""
    from tightfit import DoesNotFit

    gc.collect()
    torch.cuda.empty_cache()
    try:
        step = step_of(name, batch, budget)
        # The first step plans.
        ran = [step()]
        with alone():
            ran += [step() for _ in range(steps - 1)]
    except DoesNotFit as error:
        return {"refused_least_bytes": error.needed_bytes}
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    times = sorted(seconds for seconds, _ in ran[4:])
    return {"peak_bytes": max(peak for _, peak in ran), "first_s": ran[0][0]} | ({"step_ms": 1e3 * times[len(times) // 2]} if times else {})


def largest_by_hand(name, start, budget):
    """The largest plain mini-batch whose measured peak is within a budget, by bisection over real steps, and the next that was tried."""

    def fits(batch):
        return measured(name, batch, steps=2).get("peak_bytes", budget + 1) <= budget

    low, high = (start, start + max(1, start // 8)) if fits(start) else (0, start)
    while fits(high):
        low, high = high, high + max(1, high // 8)
    while high - low > max(1, low // 128):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def questions(name, batch):
    """Prints each answer and its measurement as soon as they are known."""
    import tightfit.torch as tt

    def say(**what):
        print(json.dumps({"model": name, **what, "at_s": round(time.time() - began, 1)}), flush=True)

    began = time.time()
    model, make, loss_of = build(name, batch)
    model = Autocast(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    budget = int(os.environ.get("BUDGET_GIB", 16)) << 30 if DEVICE == "cuda" else 16 << 20
    # A step within a budget comes first: it measures the operations, for the answers after it.
    say(measured="fit 60%", batch=batch, **measured(name, batch, "60%"))
    say(measured="plain", batch=batch, **measured(name, batch))
    begin = time.time()
    plan = tt.plan(model, make(batch), optimizer=optimizer)
    given = tt.plan(model, make(batch), optimizer=optimizer, loss=loss_of)
    say(question="plain", batch=batch, answer=plan.plain, with_its_loss=given.plain)
    sweep = plan.sweep((0.8, 0.6, 0.4))
    say(question="sweep", batch=batch, answer=sweep._rows(), least=sweep.least, plain=sweep.plain, seconds=time.time() - begin)
    for share in (0.8, 0.4):
        say(measured=f"fit {share:.0%}", batch=batch, **measured(name, batch, share))
    begin = time.time()
    found = tt.largest_batch(model, make, budget, optimizer=optimizer)
    say(question="largest_batch", budget=budget, answer=found.batch, plain=found.plain_batch, said=repr(found), seconds=time.time() - begin)
    del model, optimizer, plan, given, sweep
    if found.plain_batch:
        fits, fails = largest_by_hand(name, found.plain_batch, budget)
        say(measured="largest plain mini-batch", budget=budget, fits=fits, does_not_fit=fails)
    if found.batch:
        for more in (found.batch, found.batch + max(1, found.batch // 16)):
            say(measured="fit", budget=budget, batch=more, **measured(name, more, budget, steps=6))


if __name__ == "__main__":
    if sys.argv[1] == "questions":
        questions(sys.argv[2], int(sys.argv[3]))
    else:
        train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 60)
