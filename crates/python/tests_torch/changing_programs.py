"""Random small programs that change between or within steps, each of which runs plain and fitted: every bit must be equal.

A program is a number: its blocks, its changes and its plan come from generators seeded by it. Blocks and changes have numbers too, so that a
program that fails can be made smaller by leaving some out.
"""

import changing_outside
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


# The number of a block that `changing_outside` makes, at any place in a program.
OUTSIDE = 90


class Clock:
    """The clock of a program's changes: the step, and how often the model was called."""

    def __init__(self):
        self.step = self.calls = 0


class Block(nn.Module):
    """A part of a program: what it computes, its own parts, and the steps at which it changes."""

    def __init__(self, run, rng, clock, **parts):
        super().__init__()
        self.run, self.clock = run, clock
        self.at, self.often = rng.choice([1, 2, 3, 3, 4, 99]), rng.random() < 0.3
        self.carried = None
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def now(self, *choices):
        """One of these, by the step."""
        step = self.clock.step
        return choices[step % len(choices)] if self.often else choices[0 if step < self.at else 1 + step % (len(choices) - 1)]

    def changed(self):
        return self.now(False, True)

    def forward(self, x):
        return self.run(self, x)


class Twice(torch.autograd.Function):
    """A custom function, which reads what it saved."""

    @staticmethod
    def forward(ctx, x, factor):
        y = torch.sin(x * factor)
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return y * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * 2 * y * torch.cos(x * ctx.factor) * ctx.factor, None


class Lost(Exception):
    """The error that a block raises on purpose."""


def _norm_stats(b, x):
    b.norm.training = b.now(True, False) if b.toggles else b.norm.training
    return b.norm(x)


def _gate(b, x):
    y = b.down(F.adaptive_avg_pool2d(x, 1))
    return x * b.now(torch.sigmoid, F.hardsigmoid)(b.up(F.silu(y, inplace=b.inplace)))


def _residual(b, x):
    y = b.inner(x)
    if y.shape != x.shape:
        return y
    if b.kind == "+=":
        y += x
        return y
    return y.add_(x, alpha=b.now(1, 2)) if b.kind == "add_" else x + b.now(1.0, 0.5) * y


def _dense(b, x):
    found = [x]
    for part in b.parts:
        found.append(part(torch.cat(found, 1)))
    return torch.cat(found[b.now(1, 0) :], 1)[:, : x.shape[1]]


def _buffer_after(b, x):
    y = b.kind(x, b.shift)
    with torch.no_grad():
        if b.changed():
            b.shift.add_(0.25)
    return torch.tanh(y) if b.tanh else y


def _buffer_before(b, x):
    with torch.no_grad():
        if b.changed():
            b.shift.mul_(1.1).add_(0.1)
    return b.kind(x, b.shift)


def _buffer_replaced(b, x):
    if b.changed():
        b.shift = b.shift + 0.5 if b.tanh else b.shift.clone().neg_()
    return b.kind(x, b.shift)


def _large_buffer(b, x):
    y = x * b.table[:, :, : x.shape[2], : x.shape[3]]
    if b.changed():
        if b.kind == "write":
            with torch.no_grad():
                b.table.add_(0.5)
        elif b.kind == "data":
            b.table = b.table * 1.5
    return y.sigmoid() if b.tanh else y


def _weight_written(b, x):
    y = torch.sigmoid(F.conv2d(x, b.weight, b.bias, padding=1))
    if b.changed():
        with torch.no_grad():
            (b.weight if b.both else b.bias).add_(0.1)
    return y


def _weight_used(b, x):
    weight = b.weight * b.now(1.0, 0.7) if b.both else b.weight / (b.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1) + 1e-3)
    return torch.relu(F.conv2d(x, weight, b.bias if b.changed() else None, padding=1))


def _average(b, x):
    mean = x.detach().mean(dim=(0, 2, 3)).view(1, -1, 1, 1)
    with torch.no_grad():
        b.mean.lerp_(mean, b.now(0.1, 0.5))
    return (x - b.mean) * b.now(1.0, 1.5)


def _carried(b, x):
    state = b.carried if b.carried is not None and b.carried.shape == x.shape else torch.zeros_like(x)
    y = torch.tanh(x + b.now(0.5, 0.25) * state)
    b.carried = y.detach() if b.both else y.detach().clone()
    return y * torch.sigmoid(x)


def _inplace_slice(b, x):
    y = x * b.now(1.5, 2.0)
    if b.kind == 0:
        y[:, 0] = 0
    elif b.kind == 1:
        y[:, :, b.now(0, 1) :: 2].mul_(0.5)
    elif b.kind == 2:
        y[:, 0] = y[:, 1] * b.now(1.0, 3.0)
    else:
        y.view(-1)[b.now(0, 3) :: 5].add_(1.0)
    return torch.sigmoid(y)


def _views(b, x):
    if b.kind == 0:
        first, second = x.chunk(2, 1)
        return torch.cat([torch.sigmoid(first) * second, b.now(torch.relu, torch.tanh)(second) + first], 1)
    if b.kind == 1:
        parts = x.unbind(1)
        return torch.stack([part * torch.sigmoid(parts[b.now(0, 1)]) for part in parts], 1)
    if b.kind == 2:
        y = torch.sigmoid(x).permute(b.now((0, 1, 2, 3), (0, 1, 3, 2))).contiguous()
        return torch.sigmoid(-y)
    if b.kind == 3:
        return torch.exp(-torch.roll(torch.sigmoid(x), b.now(1, 2), b.now(2, 3)))
    if b.kind == 4:
        return torch.tanh(x)[:, :, b.now(0, 1) :, : x.shape[3] - 1].exp()
    if b.kind == 5:
        size = x.shape
        return torch.sigmoid(x).reshape(size[0], -1).square().view(size).transpose(2, 3)
    first, second = x.split([1, x.shape[1] - 1], 1)
    return torch.cat([second * torch.sigmoid(first.expand_as(second)), torch.sigmoid(first)], 1)


def _pooled(b, x):
    if b.kind == 0:
        return F.max_pool2d(x, 3, b.now(1, 2), 1)
    if b.kind == 1:
        return F.avg_pool2d(x, b.now(2, 3), 1, 1)
    if b.kind == 2:
        return F.interpolate(F.adaptive_avg_pool2d(x, b.now(4, 3)), size=x.shape[2:], mode=b.now("nearest", "bilinear"))
    if b.kind == 3:
        return F.pixel_shuffle(torch.cat([x, x * 0.5, x.sigmoid(), -x], 1), 2)[:, :, ::2, ::2]
    if b.kind == 4:
        y, where = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(torch.sigmoid(y), where, 2, output_size=x.shape[2:])
    return F.pad(torch.sigmoid(x), (1, 1), value=float(b.now(0, 2)))[..., 1:-1] * x


def _masked(b, x):
    if b.kind == 0:
        return torch.sigmoid(x).masked_fill(x > b.now(0.5, 0.0), b.now(0.0, 0.1))
    if b.kind == 1:
        return torch.where(x > b.now(0.0, 0.2), torch.tanh(x), x * x)
    if b.kind == 2:
        where = torch.arange(x.shape[1]).flip(0) if b.changed() else torch.arange(x.shape[1])
        return torch.sigmoid(x)[:, where].square()
    if b.kind == 3:
        mask = torch.rand_like(x) > b.now(0.2, 0.5)
        return torch.exp(torch.tanh(x)) * mask
    y = torch.sigmoid(x)
    y.masked_fill_(x < b.now(-1.0, -0.5), 0.5)
    return y * x


def _numbers(b, x):
    k = b.clock.step * 0.25 + 1 if b.often else b.now(1.0, 1.7)
    kinds = (lambda: torch.sigmoid(x * k), lambda: (x + k).tanh() / k, lambda: (k - x).exp().clamp(max=4.0), lambda: torch.sigmoid(x).pow(k + 1),
             lambda: F.leaky_relu(x, 0.1 * k), lambda: F.elu(x * 1.1, k), lambda: F.softplus(x, k), lambda: (x.abs() + 0.1) ** (k / 2))  # fmt: skip
    return kinds[b.kind]()


def _branch(b, x):
    if b.kind == 1 and float(x.detach().mean()) > 0.02 * b.now(1, -1) or b.kind == 0 and b.changed():
        return b.right(torch.sigmoid(x))
    return b.left(x)


def _raises(b, x):
    y = torch.sigmoid(b.inner(x))
    if b.changed():
        try:
            z = torch.tanh(y) * y
            raise Lost
        except Lost:
            if b.both:
                return y.exp() + z
    return y * y


def _ungraded(b, x):
    with torch.no_grad():
        y = torch.sigmoid(b.inner(x))
    return x * y.mean() if b.changed() or y.shape != x.shape else x * torch.sigmoid(x) + y


def _hooked(b, x):
    y = torch.sigmoid(x)
    if y.requires_grad:
        k = b.now(1.0, 0.5)
        y.register_hook(lambda grad: grad * k)
    return y * x


def _checkpointed(b, x):
    y = checkpoint(b.inner, x, use_reentrant=False, preserve_rng_state=True) if b.now(True, b.both) else b.inner(x)
    return torch.sigmoid(y)


def _cast(b, x):
    with torch.autocast("cpu", torch.bfloat16, enabled=b.now(*b.kind)):
        y = b.inner(x)
    return y.float() if b.both else y.to(x.dtype)


def _attended(b, x):
    batch, channels = x.shape[:2]
    words = x.flatten(2).transpose(1, 2)
    if b.kind == 0:
        y = b.attention(words, words, words, need_weights=b.now(False, True))[0]
    elif b.kind == 1:
        q, k, v = (part.view(batch, -1, 2, channels // 2).transpose(1, 2) for part in b.project(words).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=b.now(0.0, 0.2) if b.training else 0.0, is_causal=b.both)
        y = y.transpose(1, 2).reshape(words.shape)
    elif b.kind == 2:
        q, k, v = b.project(words).chunk(3, -1)
        y = torch.bmm(torch.softmax(q @ k.transpose(1, 2) * b.now(0.5, 0.25), -1), v)
    elif b.kind == 3:
        q, k, v = b.project(words).unflatten(-1, (3, channels)).unbind(2)
        y = torch.einsum("bts,bsc->btc", F.dropout(torch.einsum("btc,bsc->bts", q, k).softmax(-1), b.now(0.1, 0.0), b.training), v)
    else:
        y = b.attention(words)
    y = b.norm(words + y)
    return y.transpose(1, 2).reshape(x.shape)


def _recurrent(b, x):
    words = x.permute(0, 2, 3, 1).flatten(0, 1)
    state = None
    if b.both and b.carried is not None and b.carried.shape[1] == len(words):
        state = b.carried if isinstance(b.cells, nn.GRU) else (b.carried, b.carried * 0.5)
    y, last = b.cells(words, state)
    b.carried = (last if isinstance(b.cells, nn.GRU) else last[0]).detach()
    return y.unflatten(0, (len(x), -1)).permute(0, 3, 1, 2)


def _embedded(b, x):
    where = (x.detach().mean(dim=(2, 3)) * 4).long().abs().remainder(16)
    y = b.table(where)
    return x + y.mean(1)[:, : x.shape[1], None, None] * torch.sigmoid(x) * b.now(1.0, 0.5)


def _linear(b, x):
    y = b.inner(x.permute(0, 2, 3, 1))
    if b.kind == 0:
        return F.layer_norm(y, y.shape[-1:]).permute(0, 3, 1, 2)
    return b.now(F.gelu, F.silu)(y).movedim(-1, 1)


def _detached(b, x):
    y = torch.sigmoid(x)
    z = y.detach()
    if b.changed() and b.both:
        return y * z.mean() + (z * z).exp()
    return y * z


def _inplace_unsaved(b, x):
    y = x + b.now(1.0, 2.0)
    y.mul_(b.now(0.5, 0.7))
    y.add_(x) if b.both else y.clamp_(-2, 2)
    return torch.sigmoid(y)


def _rewritten(b, x):
    y = torch.sigmoid(x)
    z = y * x if b.both else y.exp()
    w = y.clone() if b.changed() else y + 0.0
    w.mul_(2.0)
    w[:, :1].zero_()
    return z + torch.tanh(w)


def _through_data(b, x):
    y = x * 1.25
    y.data.add_(b.now(0.0, 0.25))
    return torch.sigmoid(y)


ACTIVATIONS = [nn.ReLU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.RReLU, nn.Mish, nn.Hardsigmoid, nn.Dropout,
               nn.Dropout2d, nn.Softplus, nn.ReLU6, nn.SELU]  # fmt: skip
IN_PLACE = {nn.ReLU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.RReLU, nn.Mish, nn.Dropout, nn.ReLU6, nn.SELU}
OPERATORS = [lambda x, s: x + s, lambda x, s: x * s, lambda x, s: torch.sigmoid(x - s), lambda x, s: torch.addcmul(x, x, s),
             lambda x, s: x / (s * s + 1)]  # fmt: skip


def _activation(rng):
    kind = rng.choice(ACTIVATIONS)
    return kind(inplace=rng.random() < 0.5) if kind in IN_PLACE else kind()


def _convolution(rng, c):
    groups = rng.choice([1, 1, 1, 2, c])
    conv = nn.Conv2d(c, c, rng.choice([1, 3, 3]), padding=rng.choice([0, 1, "same"]), groups=groups, bias=rng.random() < 0.7)
    kind = rng.random()
    if kind < 0.1:
        return parametrizations.weight_norm(conv)
    return parametrizations.spectral_norm(conv) if kind < 0.2 else conv


def _normalization(rng, c):
    kind = rng.randrange(8)
    if kind < 4:
        return nn.BatchNorm2d(c, affine=rng.random() < 0.7, track_running_stats=rng.random() < 0.8, momentum=rng.choice([0.1, 0.5, None]))
    if kind == 4:
        return nn.GroupNorm(2, c, affine=rng.random() < 0.7)
    if kind == 5:
        return nn.InstanceNorm2d(c, affine=rng.random() < 0.5, track_running_stats=rng.random() < 0.5)
    return nn.LocalResponseNorm(3) if kind == 6 else nn.GroupNorm(1, c)


def block(rng, c, clock, depth=0):
    """A random block for images of `c` channels."""

    def make(run, **parts):
        return Block(run, rng, clock, **parts)

    def inner():
        return block(rng, c, clock, depth + 1)

    def shift():
        return torch.randn(1, c, 1, 1) * 0.5

    def flip():
        return rng.random() < 0.5

    simple = [
        lambda: _convolution(rng, c),
        lambda: nn.Sequential(_convolution(rng, c), _normalization(rng, c), _activation(rng)),
        lambda: nn.Sequential(_normalization(rng, c), _activation(rng), _convolution(rng, c)),
        lambda: _activation(rng),
        lambda: make(_norm_stats, norm=_normalization(rng, c), toggles=flip()),
        lambda: make(_gate, down=nn.Conv2d(c, 4, 1), up=nn.Conv2d(4, c, 1), inplace=flip()),
        lambda: make(_buffer_after, shift=shift(), kind=rng.choice(OPERATORS), tanh=flip()),
        lambda: make(_buffer_before, shift=shift(), kind=rng.choice(OPERATORS), tanh=flip()),
        lambda: make(_buffer_replaced, shift=shift(), kind=rng.choice(OPERATORS), tanh=flip()),
        lambda: make(_large_buffer, table=torch.randn(1, c, 16, 16), kind=rng.choice(["write", "data", ""]), tanh=flip()),
        lambda: make(_weight_written, weight=nn.Parameter(torch.randn(c, c, 3, 3) * 0.2), bias=nn.Parameter(torch.zeros(c)), both=rng.random() < 0.2),
        lambda: make(_weight_used, weight=nn.Parameter(torch.randn(c, c, 3, 3) * 0.2), bias=nn.Parameter(torch.zeros(c)), both=flip()),
        lambda: make(_average, mean=torch.zeros(1, c, 1, 1)),
        lambda: make(_carried, both=flip()),
        lambda: make(_inplace_slice, kind=rng.randrange(4)),
        lambda: make(_views, kind=rng.randrange(7)),
        lambda: make(_views, kind=rng.randrange(7)),
        lambda: make(_pooled, kind=rng.randrange(6)),
        lambda: make(_masked, kind=rng.randrange(5)),
        lambda: make(_numbers, kind=rng.randrange(8)),
        lambda: make(_numbers, kind=rng.randrange(8)),
        lambda: make(_hooked),
        lambda: make(_attended, kind=rng.randrange(1, 4), both=flip(), norm=nn.LayerNorm(c), project=nn.Linear(c, 3 * c)),
        lambda: make(_attended, kind=0, norm=nn.LayerNorm(c), attention=nn.MultiheadAttention(c, 2, rng.choice([0.0, 0.1]), batch_first=True)),
        lambda: make(_attended, kind=4, norm=nn.LayerNorm(c), attention=nn.TransformerEncoderLayer(c, 2, 16, batch_first=True)),
        lambda: make(_recurrent, cells=rng.choice([nn.LSTM, nn.GRU])(c, c, batch_first=True), both=flip()),
        lambda: make(_embedded, table=nn.Embedding(16, max(c, 8))),
        lambda: make(_linear, inner=nn.Linear(c, c), kind=rng.randrange(2)),
        lambda: make(_detached, both=flip()),
        lambda: make(_inplace_unsaved, both=flip()),
        lambda: make(_rewritten, both=flip()),
        lambda: make(_through_data),
        lambda: make(lambda b, x: Twice.apply(x, b.now(1.0, 0.5))),
    ]  # fmt: skip
    nested = [
        lambda: make(_residual, inner=inner(), kind=rng.choice(["+", "+=", "add_"])),
        lambda: make(_dense, parts=nn.ModuleList(nn.Conv2d(c * (n + 1), c, 3, padding=1) for n in range(rng.randint(1, 3)))),
        lambda: make(_branch, left=inner(), right=inner(), kind=rng.randrange(2)),
        lambda: make(_raises, inner=inner(), both=flip()),
        lambda: make(_ungraded, inner=inner()),
        lambda: make(_checkpointed, inner=nn.Sequential(inner(), inner()), both=flip()),
        lambda: make(_cast, inner=nn.Sequential(_convolution(rng, c), inner()), both=flip(),
                     kind=rng.choice([(False, True), (True, False), (True, True)])),
        lambda: make(lambda b, x: b.inner(torch.sigmoid(b.inner(x))), inner=inner()),
        lambda: nn.Sequential(inner(), inner(), inner()),
    ]  # fmt: skip
    return rng.choice(nested if depth < 2 and rng.random() < 0.35 else simple)()


class Root(nn.Module):
    """Calls its blocks one after another: some as modules, and some as functions, as a program does."""

    def __init__(self, blocks, inline, channels, clock):
        super().__init__()
        self.first, self.blocks = nn.Conv2d(3, channels, 3, padding=1), nn.ModuleList(blocks)
        self.inline, self.clock = inline, clock

    def forward(self, x):
        self.clock.calls += 1
        x = self.first(x)
        for part, inline in zip(self.blocks, self.inline, strict=True):
            x = part.run(part, x) if inline and isinstance(part, Block) else part(x)
        return x


def root(rng_of, seed, left_out=()):
    """The network of a program, and its description; `rng_of` returns the generator of a part of the program by its number."""
    rng, clock = rng_of("network"), Clock()
    channels, count = rng.choice([4, 6, 8]), rng.randint(2, 8)
    blocks, inline, words = [], [], []
    for number in range(count):
        torch.manual_seed(seed * 1000 + number)
        if number not in left_out:
            of_block = rng_of(number)
            blocks.append(block(of_block, channels, clock))
            inline.append(of_block.random() < 0.3)
            words.append(f"{number}:{in_words(blocks[-1])}{' inline' if inline[-1] else ''}")
    of_block = rng_of(OUTSIDE)
    if OUTSIDE not in left_out and of_block.random() < 0.4:
        torch.manual_seed(seed * 1000 + OUTSIDE)
        made = changing_outside.block(lambda run, **parts: Block(run, of_block, clock, **parts), of_block, channels)
        place = of_block.randint(0, len(blocks))
        blocks.insert(place, made)
        inline.insert(place, of_block.random() < 0.3)
        words.append(f"{OUTSIDE}:{in_words(made)}")
    torch.manual_seed(seed)
    return Root(blocks, inline, channels, clock), words


def in_words(part):
    """The description of a block."""
    if isinstance(part, Block):
        name = getattr(part.run, "__name__", "").strip("_<>")
        own = [str(getattr(part, key)) for key in ("kind", "both", "tanh", "toggles") if isinstance(getattr(part, key, None), bool | int | str)]
        found = f"{name}({' '.join(own)}{' often' if part.often else f' at {part.at}'})"
    else:
        found = type(part).__name__
    inner = [in_words(child) for name, child in part.named_children() if isinstance(child, Block | nn.Sequential) or isinstance(part, nn.Sequential)]
    return f"{found}[{', '.join(inner)}]" if inner else found
