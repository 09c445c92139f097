"""Measures tensors that no backward pass reads: frozen networks and networks of ReLUs, plain and within budgets, JSON lines in OUT/unread.jsonl.

The kernels of signs are checked as well, and the nodes. SMALL=1 tries it without a GPU; SECONDS_LEFT is the time after which no case begins.
"""
import contextlib
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
from tightfit._budget.memory.allocator import Cap
from tightfit._budget.memory import masks
from tightfit._budget.plan import fitted as plans
from tightfit._budget.plan import make
from tightfit._budget.plan import unread
from tightfit.errors import DoesNotFit
from torch import nn
from torch.nn import functional as F

OUT = open(os.path.join(os.environ.get("OUT", "."), "unread.jsonl"), "a")
SMALL = os.environ.get("SMALL") == "1"
DEVICE = torch.device("cpu" if SMALL else "cuda")
if SMALL:
    plans.SURE_PASSES = 1
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


class Attends(nn.Module):
    """A transformer block of Stable Diffusion's U-Net: attention among places, attention to a text, and a gated layer."""

    def __init__(self, c, text=768):
        super().__init__()
        self.norm, self.into, self.out = nn.GroupNorm(32, c), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.n1, self.n2, self.n3 = nn.LayerNorm(c), nn.LayerNorm(c), nn.LayerNorm(c)
        self.attn1 = nn.ModuleList([nn.Linear(c, c, bias=False) for _ in range(3)] + [nn.Linear(c, c)])
        self.attn2 = nn.ModuleList([nn.Linear(c, c, bias=False)] + [nn.Linear(text, c, bias=False) for _ in range(2)] + [nn.Linear(c, c)])
        self.up, self.down = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def attend(self, parts, x, y):
        q, k, v = (part(one).unflatten(2, (8, -1)).transpose(1, 2) for part, one in zip(parts, (x, y, y)))
        return parts[3](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x, text):
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        z = self.n1(y)
        y = y + self.attend(self.attn1, z, z)
        y = y + self.attend(self.attn2, self.n2(y), text)
        z, gate = self.up(self.n3(y)).chunk(2, 2)
        y = y + self.down(z * F.gelu(gate))
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Denoiser(nn.Module):
    """Stable Diffusion's U-Net, by its shapes, without the time of a step."""

    def __init__(self):
        super().__init__()
        widths = (32, 64) if SMALL else (320, 640, 1280, 1280)
        self.first, self.parts, last, kept = nn.Conv2d(4, widths[0], 3, padding=1), nn.ModuleList(), widths[0], [widths[0]]
        self.text = nn.Parameter(torch.randn(1, 77, 768), requires_grad=False)
        self.words = []
        for level, c in enumerate(widths):
            for _ in range(2):
                self.add("down", Res(last, c), c if level < len(widths) - 1 else 0)
                last = c
                kept.append(c)
            if level < len(widths) - 1:
                self.add("half", nn.Conv2d(c, c, 3, 2, 1), 0)
                kept.append(c)
        self.add("middle", Res(last, last), last)
        for level, c in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.add("up", Res(last + kept.pop(), c), c if level < len(widths) - 1 else 0)
                last = c
            if level:
                self.add("twice", Up(c), 0)
        self.last = nn.Sequential(nn.GroupNorm(32, last), nn.SiLU(), nn.Conv2d(last, 4, 3, padding=1))

    def add(self, word, part, attends):
        self.words.append(word)
        self.parts.append(nn.ModuleList([part] + ([Attends(attends)] if attends else [])))

    def forward(self, x):
        y = self.first(x)
        kept, text = [y], self.text.expand(len(x), -1, -1)
        for word, (part, *attends) in zip(self.words, self.parts):
            y = part(torch.cat([y, kept.pop()], 1) if word == "up" else y)
            for one in attends:
                y = one(y, text)
            if word in ("down", "half"):
                kept.append(y)
        return self.last(y)


# For each case: the model, its input, and budgets in shares of plain's peak. Where a budget is "drop", what nobody reads is all that has to go.
CASES = {
    "resnet50-frozen": (lambda: frozen(V.resnet50(num_classes=100), ("fc",)), lambda: image(128, 224), ["drop"]),
    "decoder-frozen": (lambda: frozen(Decoder()), lambda: image(4, 64, 4), ["drop"]),
    "vgg16-features-frozen": (lambda: frozen(V.vgg16().features), lambda: image(64, 224), ["drop", 0.6]),
    "gpt2-medium-lora": (None, None, ["drop", 0.8]),
    "unet-attention": (lambda: frozen(Denoiser(), ("attn",)).train(), lambda: image(4, 64, 4, grad=False), ["drop"]),
    "vgg16-training": (lambda: V.vgg16(num_classes=100, dropout=0.0), lambda: image(128, 224, grad=False), [0.6, "0.6 without masks", 0.4, "0.4 without masks"]),
    "resnet50-training": (lambda: V.resnet50(num_classes=100), lambda: image(128, 224, grad=False), [0.6, "0.6 without masks", 0.4, "0.4 without masks"]),
    "convnext-tiny-frozen": (lambda: frozen(V.convnext_tiny(num_classes=100), ("classifier",)), lambda: image(64, 224), ["drop"]),
    "squeezenet-training": (lambda: V.squeezenet1_0(num_classes=100), lambda: image(256, 224, grad=False), ["drop"]),
    "googlenet-training": (lambda: V.googlenet(num_classes=100, aux_logits=False, init_weights=False), lambda: image(128, 224, grad=False), ["drop"]),
    "densenet121-training": (lambda: V.densenet121(num_classes=100), lambda: image(64, 224, grad=False), ["drop"]),
    "resnet50-frozen-less": (lambda: frozen(V.resnet50(num_classes=100), ("fc",)), lambda: image(128, 224), [0.4]),
}


# Cases whose attention repeats itself only with deterministic algorithms. For one head of 512, only the plain kernels repeat themselves.
REPEATED = {"decoder-frozen": True, "unet-attention": False, "gpt2-medium-lora": False}


@contextlib.contextmanager
def repeated(name):
    """Lets plain steps of these cases have the same bits again."""
    torch.use_deterministic_algorithms(name in REPEATED, warn_only=True)
    # Nothing is filled: the time of a step would be another one.
    torch.utils.deterministic.fill_uninitialized_memory = False
    others = REPEATED.get(name, False)
    torch.backends.cuda.enable_flash_sdp(not others)
    torch.backends.cuda.enable_mem_efficient_sdp(not others)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.backends.cuda.enable_mem_efficient_sdp(True)


def synchronize():
    if not SMALL:
        torch.cuda.synchronize()


def one_step(model, x, waits=True):
    """The time until everything is queued, and until it has run, in ms."""
    for parameter in model.parameters():
        parameter.grad = None
    x.grad = None
    torch.manual_seed(0)
    begin = time.perf_counter()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        y = model(x)
    y.float().square().mean().backward()
    queued = time.perf_counter()
    if waits:
        synchronize()
    return 1e3 * (queued - begin), 1e3 * (time.perf_counter() - begin)


def gradients(model, x):
    found = {name: parameter.grad.float().cpu() for name, parameter in model.named_parameters() if parameter.grad is not None}
    if x.grad is not None:
        found["input"] = x.grad.float().cpu()
    return found


def peak_of(model, x):
    synchronize()
    if not SMALL:
        torch.cuda.reset_peak_memory_stats()
    one_step(model, x)
    return 0 if SMALL else torch.cuda.max_memory_allocated()


def in_turns(plain, fitted, x, share):
    """Medians of the steps of both, which take turns, without a bound on the allocator; what begins a fitted pass; and steps that wait for none before."""
    Cap.begin, begin = lambda *_: False, Cap.begin
    session_of(fitted).cap.lift()
    # The copy's bytes are not the plan's fault.
    session_of(fitted).last.watch.passes = 1 << 30
    try:
        with timed(session_of(fitted), "before") as begins:
            for _ in range(1 if SMALL else 3):
                one_step(plain, x), one_step(fitted, x)
            end = time.time() + share
            turns = []
            while len(turns) < (2 if SMALL else 60) and (len(turns) < 8 or time.time() < end):
                turns.append((one_step(plain, x), one_step(fitted, x)))
            queued = [[in_a_row(model, x) for model in (plain, fitted)] for _ in range(1 if SMALL else 2)]
    finally:
        Cap.begin = begin
    host, whole = ([[round(statistics.median(turn[side][at] for turn in turns), 3) for side in (0, 1)] for at in (0, 1)])
    ratios = sorted(turn[1][1] / turn[0][1] - 1 for turn in turns)
    quarters = [round(100 * ratios[len(ratios) * part // 4], 2) for part in (1, 2, 3)]
    row = [round(statistics.median(pair[side] for pair in queued), 3) for side in (0, 1)]
    return {"plain_ms": whole[0], "fitted_ms": whole[1], "plain_host_ms": host[0], "fitted_host_ms": host[1], "turns": len(turns), "over_percent_quarters": quarters,
            "begins_us": round(1e6 * statistics.median(begins), 1), "plain_row_ms": row[0], "fitted_row_ms": row[1]}


@contextlib.contextmanager
def timed(thing, name):
    """The times of a method's calls, in seconds."""
    call, times = getattr(thing, name), []

    def timed_call(*args, **kwargs):
        begin = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            times.append(time.perf_counter() - begin)

    setattr(thing, name, timed_call)
    try:
        yield times
    finally:
        delattr(thing, name)


def in_a_row(model, x, steps=4 if SMALL else 8):
    """The time of a step where nothing waits for the one before."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        one_step(model, x, waits=False)
    synchronize()
    return 1e3 * (time.perf_counter() - begin) / steps


def case(name):
    build, give, budgets = CASES[name]
    torch.manual_seed(0)
    if build is None:
        model, x = gpt2()
        model, x = model.to(DEVICE), x.to(DEVICE)
    else:
        model, x = build().to(DEVICE).to(memory_format=torch.channels_last), give()
    # On the host: a copy on the device would count in both peaks.
    state = {key: value.to("cpu", copy=True) for key, value in model.state_dict().items()}
    for _ in range(1 if SMALL else 3):
        one_step(model, x)
    plain_peak = tt.plan(model, x).plain if SMALL else peak_of(model, x)
    model.load_state_dict(state)
    one_step(model, x)
    wanted = gradients(model, x)
    model.load_state_dict(state)
    one_step(model, x)
    again = gradients(model, x)
    tell(case=name, variant="plain", peak_bytes=plain_peak, repeats=all(torch.equal(wanted[key], again[key]) for key in wanted))
    for budget in budgets:
        if time.time() > END:
            tell(case=name, variant=str(budget), skipped=True)
            continue
        model.load_state_dict(state)
        after = make._least_unsaved, make._unsaved
        share = 0.98 if budget == "drop" else float(str(budget).split()[0])
        size = int(plain_peak * share)
        if "without" in str(budget):
            make._least_unsaved = lambda step, lives, *others: (step, lives)
            make._unsaved = lambda step, lives, *others: (step, lives)
        sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))], lr=0.1)
        try:
            begin = time.time()
            tt.fit(model, size, optimizer=sgd)
            try:
                one_step(model, x)
                needs = session_of(model).last.plain if budget == "drop" and session_of(model).last.schedule is None else 0
            except DoesNotFit as error:
                needs = error.needed_bytes if budget == "drop" else 0
                if not needs:
                    raise
            first = time.time() - begin
            if needs:
                # Less than that share can be dropped, or the prediction was a little off.
                size = needs - 1 if needs < size else needs
                tt.unfit(model)
                model.load_state_dict(state)
                tt.fit(model, size, optimizer=sgd)
                one_step(model, x)
            found = gradients(model, x)
            for _ in range(plans.SURE_PASSES + (1 if SMALL else 6)):
                one_step(model, x)
            peak, last = peak_of(model, x), session_of(model).last
            saved = sum(size for tensor, size in enumerate(last.whole[1].bytes) if last.whole[1].movable[tensor] and last.whole[1].saved[tensor])
            model.load_state_dict(state)
            one_step(model, x)
            late = gradients(model, x)
            bits = all(torch.equal(wanted[key], found[key]) and torch.equal(wanted[key], late[key]) for key in wanted)
            tell(case=name, variant=str(budget), budget_bytes=size, peak_bytes=peak, bits=bits, saved_bytes=saved, dropped_bytes=last.dropped, masked_bytes=last.masked,
                 predicted_bytes=last.peak, notes=len(last.schedule.noted) if last.schedule else 0, looks=len(last.schedule.looks) if last.schedule else 0,
                 line=last.line(name), calls=last.counts.calls, first_s=round(first, 1))
            other = copy.deepcopy(model)
            tell(case=name, variant=f"{budget}, times", **in_turns(other, model, x, 4.0), seconds=round(time.time() - begin, 1))
            del other
        except Exception as error:
            tell(case=name, variant=str(budget), budget_bytes=size, error=f"{type(error).__name__}: {str(error)[:300]}")
        finally:
            make._least_unsaved, make._unsaved = after
            tt.unfit(model)
    del model, x


def check_nodes():
    """No node reads a tensor that it is listed not to read, on this device."""
    # The cases have tensors.
    torch.set_default_device(DEVICE)
    import test_fit_unread as tests

    unread.fills = True
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
                    again, _ = tests.gradient(call, x)
                    # Some kernels do not repeat themselves, and some calls are others here.
                    if given and (found.isnan().any() or torch.equal(wanted, again) and not torch.equal(wanted, found)):
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


PARTS = {"masks": check_masks, "nodes": check_nodes}
DRIVER = "" if SMALL else subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()[0]
VERSION = torch.backends.cudnn.version() or 0
tell(about={"device": torch.cuda.get_device_name() if not SMALL else "cpu", "driver": DRIVER, "cuda": torch.version.cuda, "torch": torch.__version__,
            "cudnn": "{}.{}.{}".format(VERSION // 10000, VERSION // 100 % 100, VERSION % 100), "date": time.strftime("%Y-%m-%d"), "command": "OUT=OUTPUT python3 scripts/gpu-unread.py"})
torch.backends.cudnn.deterministic = True
for name in sys.argv[1:] or ["masks", *CASES, "nodes"]:
    if time.time() > END:
        tell(case=name, skipped=True)
        continue
    try:
        with repeated(name):
            PARTS.get(name, lambda: case(name))()
    except Exception:
        tell(case=name, error=traceback.format_exc()[-600:])
    gc.collect()
    if not SMALL:
        torch.cuda.empty_cache()
