"""Measures what no backward pass reads: frozen networks and networks of ReLUs, plain and within budgets, a JSON line each in OUT/unread.jsonl.

The nodes and the kernels of signs are checked first. SMALL=1 tries it without a GPU; SECONDS_LEFT is the time after which no case begins.
"""
import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback

import tightfit.torch as tt
import torch
import torchvision
from tightfit._budget.api import session_of
from tightfit._budget.memory import masks
from tightfit._budget.plan import fitted as plans
from tightfit._budget.plan import unread
from torch import nn
from torch.nn import functional as F

OUT = open(os.path.join(os.environ.get("OUT", "."), "unread.jsonl"), "a")
SMALL = os.environ.get("SMALL") == "1"
DEVICE = torch.device("cpu" if SMALL else "cuda")
END = time.time() + float(os.environ.get("SECONDS_LEFT", "170"))


def tell(**line):
    print(json.dumps(line), flush=True)
    OUT.write(json.dumps(line) + "\n")
    OUT.flush()


def frozen(model, trained=()):
    model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in trained))
    return model


class Res(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, a), nn.Conv2d(a, b, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(32, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.c2(F.silu(self.n2(self.c1(F.silu(self.n1(x))))))


class Attend(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.q, self.k, self.v, self.o = nn.GroupNorm(32, c), *[nn.Linear(c, c) for _ in range(4)]

    def forward(self, x):
        w = self.n(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.q(w)[:, None], self.k(w)[:, None], self.v(w)[:, None])[:, 0]
        return x + self.o(y).transpose(1, 2).reshape(x.shape)


class Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return self.c(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Module):
    """The decoder of Stable Diffusion's autoencoder, by its shapes."""

    def __init__(self):
        super().__init__()
        parts = [nn.Conv2d(4, 512, 3, padding=1), Res(512, 512), Attend(512), Res(512, 512)]
        last = 512
        for level, c in enumerate((512, 512, 256, 128)):
            parts += [Res(last, c), Res(c, c), Res(c, c)] + ([Up(c)] if level < 3 else [])
            last = c
        self.parts = nn.Sequential(*parts, nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))

    def forward(self, x):
        return self.parts(x)


class LowRank(nn.Module):
    def __init__(self, inner, rank=16):
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(inner.weight.shape[0], rank, bias=False), nn.Linear(rank, inner.weight.shape[1], bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24 if not SMALL else 2, n_head=16, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    for block in model.transformer.h:
        block.attn.c_attn, block.mlp.c_fc = LowRank(block.attn.c_attn), LowRank(block.mlp.c_fc)
    frozen(model, ("down", "up")).train()

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).logits

    return Logits(), torch.randint(0, 50000, (8, 512) if not SMALL else (2, 64))


def image(n, size, c=3, grad=True):
    n, size = (2, max(size // 8, 32)) if SMALL else (n, size)
    return torch.randn(n, c, size, size).to(DEVICE).contiguous(memory_format=torch.channels_last).requires_grad_(grad)


V = torchvision.models
CASES = {
    "resnet50-frozen": (lambda: frozen(V.resnet50(num_classes=100), ("fc",)), lambda: image(128, 224), ["drop", 0.4]),
    "decoder-frozen": (lambda: frozen(Decoder()), lambda: image(4, 64, 4), ["drop", 0.5]),
    "vgg16-features-frozen": (lambda: frozen(V.vgg16().features), lambda: image(64, 224), ["drop", 0.4]),
    "gpt2-medium-lora": (None, None, [0.8]),
    "vgg16-training": (lambda: V.vgg16(num_classes=100, dropout=0.0), lambda: image(128, 224, grad=False), [0.6, "0.6 without masks", 0.4, "0.4 without masks"]),
    "resnet50-training": (lambda: V.resnet50(num_classes=100), lambda: image(128, 224, grad=False), [0.6, "0.6 without masks"]),
    "squeezenet-training": (lambda: V.squeezenet1_0(num_classes=100), lambda: image(256, 224, grad=False), ["drop"]),
    "googlenet-training": (lambda: V.googlenet(num_classes=100, aux_logits=False, init_weights=False), lambda: image(128, 224, grad=False), ["drop"]),
}


def one_step(model, x):
    for parameter in model.parameters():
        parameter.grad = None
    x.grad = None
    torch.manual_seed(0)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        y = model(x)
    y.float().square().mean().backward()


def gradients(model, x):
    found = {name: parameter.grad.float().cpu() for name, parameter in model.named_parameters() if parameter.grad is not None}
    if x.grad is not None:
        found["input"] = x.grad.float().cpu()
    return found


def run(model, x, steps=8):
    for _ in range(3):
        one_step(model, x)
    if not SMALL:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        one_step(model, x)
        if not SMALL:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    peak = 0 if SMALL else torch.cuda.max_memory_allocated()
    return {"peak_bytes": peak, "step_ms": round(statistics.median(times), 2), "best_ms": round(min(times), 2)}, gradients(model, x)


def case(name):
    make, give, budgets = CASES[name]
    torch.manual_seed(0)
    if make is None:
        model, x = gpt2()
        model, x = model.to(DEVICE), x.to(DEVICE)
    else:
        model, x = make().to(DEVICE).to(memory_format=torch.channels_last), give()
    state = copy.deepcopy(model.state_dict())
    plain, wanted = run(model, x)
    model.load_state_dict(state)
    _, again = run(model, x, 1)
    repeats = all(torch.equal(wanted[key], again[key]) for key in wanted)
    tell(case=name, variant="plain", **plain, repeats=repeats)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        whole = tt.plan(model, x, optimizer=torch.optim.SGD([p for p in model.parameters()], lr=0.1))
    fitted = whole._fitted
    lives = fitted.lives
    saved = sum(size for tensor, size in enumerate(lives.bytes) if lives.movable[tensor] and lives.saved[tensor])
    step = plans._unsaved(*fitted.whole, fitted.recorder, DEVICE)[0]
    dropped = sum(lives.bytes[tensor] for tensor in step.dropped if tensor not in step.masked)
    masked = sum(lives.bytes[tensor] for tensor in step.masked)
    tell(case=name, variant="saved", saved_bytes=saved, may_be_dropped=dropped, may_be_signs=masked)
    for budget in budgets:
        if time.time() > END:
            tell(case=name, variant=str(budget), skipped=True)
            continue
        model.load_state_dict(state)
        before, after = None, plans._least_unsaved
        top = plain["peak_bytes"] or whole.plain
        size = int(top - (dropped // 2 if budget == "drop" else 0)) if budget == "drop" else int(top * float(str(budget).split()[0]))
        if "without" in str(budget):
            plans._least_unsaved = lambda step, lives, *others: (step, lives)
        sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))], lr=0.1)
        try:
            begin = time.time()
            tt.fit(model, size, optimizer=sgd)
            numbers, found = run(model, x)
            last = session_of(model).last
            bits = all(torch.equal(wanted[key], found[key]) for key in wanted)
            off = max((float((wanted[key] - found[key]).abs().max() / (wanted[key].abs().max() + 1e-30)) for key in wanted), default=0.0)
            tell(case=name, variant=str(budget), budget_bytes=size, **numbers, bits=bits, off=off, dropped_bytes=last.dropped, masked_bytes=last.masked,
                 predicted_bytes=last.peak, line=last.line(name), calls=last.counts.calls, seconds=round(time.time() - begin, 1))
        except Exception as error:
            tell(case=name, variant=str(budget), budget_bytes=size, error=f"{type(error).__name__}: {str(error)[:300]}")
        finally:
            plans._least_unsaved = after
            tt.unfit(model)
    del model, x


def check_nodes():
    """No node reads what it is said not to, on this device."""
    import test_fit_unread as tests

    unread.fills = True
    torch.set_default_device(DEVICE)
    done, kinds = 0, set()
    for name, (d, call) in tests.CASES.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for layout in tests.LAYOUTS[d]:
                x = torch.randn(tests.SPACE[d]).to(dtype).contiguous(memory_format=layout).requires_grad_()
                try:
                    torch.use_deterministic_algorithms(True, warn_only=True)
                    wanted, _ = tests.gradient(call, x)
                    found, given = tests.gradient(call, x, blanks=True)
                    kinds.add(type(call(x).grad_fn).__name__)
                    if given != 1 or not torch.equal(wanted, found):
                        tell(case="nodes", name=name, dtype=str(dtype), layout=str(layout), given=given, wrong=True, nan=bool(found.isnan().any()))
                    done += 1
                except Exception as error:
                    tell(case="nodes", name=name, dtype=str(dtype), error=str(error)[:120])
    torch.use_deterministic_algorithms(False)
    torch.set_default_device("cpu")
    unread.fills = False
    tell(case="nodes", checked=done, kinds=sorted(kinds))


def check_masks():
    for dtype in masks.TYPES:
        right = True
        for count in (1, 7, 8, 9, 1001, 5_000_003):
            x = torch.randn(count, device=DEVICE).to(dtype)
            for begin, value in enumerate((0.0, -0.0, float("nan"), float("inf"), -float("inf"))):
                x[begin :: 11 + begin] = value
            right &= torch.equal(masks.mask_of(x).tensor(), (~(x <= 0)).to(dtype))
        x = torch.randn(1 << (20 if SMALL else 28), device=DEVICE).to(dtype)
        line = {"bytes": x.numel() * x.itemsize, "kernels": masks._kernels(dtype, DEVICE, True) is not None}
        mask = masks.mask_of(x)
        for what, call in (("pack_us", lambda: masks.mask_of(x)), ("unpack_us", mask.tensor), ("relu_us", lambda: torch.relu(x))):
            found = []
            for _ in range(5):
                begin = time.perf_counter()
                call()
                if not SMALL:
                    torch.cuda.synchronize()
                found.append(1e6 * (time.perf_counter() - begin))
            line[what] = round(min(found), 1)
        tell(case="masks", dtype=str(dtype), right=right, **line)


DRIVER = "" if SMALL else subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()[0]
VERSION = torch.backends.cudnn.version() or 0
tell(about={"device": torch.cuda.get_device_name() if not SMALL else "cpu", "driver": DRIVER, "cuda": torch.version.cuda, "torch": torch.__version__,
            "cudnn": "{}.{}.{}".format(VERSION // 10000, VERSION // 100 % 100, VERSION % 100), "date": time.strftime("%Y-%m-%d"), "command": "OUT=OUTPUT python3 scripts/gpu-unread.py"})
torch.backends.cudnn.deterministic = True
for part in (check_masks, check_nodes):
    try:
        part()
    except Exception:
        tell(case=part.__name__, error=traceback.format_exc()[-600:])
for name in sys.argv[1:] or CASES:
    if time.time() > END:
        tell(case=name, skipped=True)
        continue
    try:
        case(name)
    except Exception:
        tell(case=name, error=traceback.format_exc()[-600:])
    gc.collect()
    if not SMALL:
        torch.cuda.empty_cache()
