"""Blocks of random programs whose calls depend on more than the numbers that they get: constants that overlap, bytes written through `.data`,
settings of PyTorch, positions in tensors, and tensors of inference mode; and blocks that compute gradients inside."""

import contextlib

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def spread(values, kind):
    """A constant whose elements lie several at one address, or apart: of shape 1 x c x 1 x 1 from 2 c + 1 values."""
    c = len(values) // 2
    if kind == "expanded":
        return values[:1].view(1, 1, 1, 1).expand(1, c, 1, 1)
    if kind == "windows":
        return values.as_strided((1, c, 1, 1), (0, 1, 0, 0), 1)
    return values.unfold(0, 2, 1)[:c].mean(1).expand(1, 1, c).transpose(1, 2)[..., None] if kind == "folded" else values[1::2].view(1, c, 1, 1)


def _spread(b, x):
    y = b.operator(x, b.scale if b.kind == "buffer" else b.constant)
    weight = b.constant.view(-1, 1, 1, 1).expand(-1, 1, 3, 3) if b.convolves else None
    y = torch.sigmoid(y) if weight is None else torch.sigmoid(F.conv2d(y, weight, padding=1, groups=len(weight)))
    return y * b.now(1.0, 0.5)


def _through_data(b, x):
    """Tensors of these sizes are copied together when a pass begins."""
    y = x * torch.sigmoid(b.one).mean()
    if b.changed():
        with torch.set_grad_enabled(b.graded):
            if b.kind == "set":
                b.two.data = b.two.data * 0.9 + 0.1
            elif b.kind == "copy":
                b.two.data.copy_(b.one.data * 0.7)
            else:
                (b.one if b.kind == "one" else b.two).data.add_(0.1)
    return y * torch.tanh(torch.sigmoid(b.two) + torch.sigmoid(b.one)).sum()


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _precision():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@contextlib.contextmanager
def _in_doubles():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class Scaled(TorchFunctionMode):
    """Changes what functions give."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return out * 1.5 if function in (torch.tanh, torch.sigmoid) else out


class ScaledInside(TorchDispatchMode):
    """Changes what operations give."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return out * 1.5 if function is torch.ops.aten.tanh.default else out


SETTINGS = {
    "function mode": Scaled, "dispatch mode": ScaledInside,
    "math": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), "deterministic": _deterministic, "precision": _precision,
    "without mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False, allow_tf32=False), "in doubles": _in_doubles,
}  # fmt: skip


def _under_settings(b, x):
    words = b.first(x).flatten(2).transpose(1, 2)
    with SETTINGS[b.kind]() if b.now(True, b.both) else contextlib.nullcontext():
        q, k, v = b.project(words).chunk(3, -1)
        y = torch.tanh(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]) * torch.ones(1)
        y = y.to(x.dtype).transpose(1, 2).reshape(x.shape)
        return torch.sigmoid(b.last(torch.sigmoid(y))) + x


def _at_position(b, x):
    y = torch.tanh(x)
    y = torch.cat([y, y], 2)[:, :, b.place : x.shape[2] + (b.place if b.both else 0)]
    y = torch.sigmoid(y)
    with torch.no_grad():
        b.place.add_(1).remainder_(b.now(3, 2))
    return torch.exp(-y)


def _of_inference(b, x):
    with torch.inference_mode():
        mean = torch.sigmoid(b.frozen(x.detach()))
    y = torch.sigmoid(x + mean) if b.changed() else torch.sigmoid(torch.tanh(x) - mean)
    return torch.exp(-y) * y


def _gradient_inside(b, x):
    """As models of molecules, which give forces."""
    z = x.detach().clone().requires_grad_() if b.both else torch.sigmoid(x)
    if not z.requires_grad:
        return torch.sigmoid(x)
    (grad,) = torch.autograd.grad(torch.tanh(b.inner(z)).square().sum(), z, create_graph=b.now(True, b.graded), retain_graph=True)
    return x + torch.sigmoid(-grad) * torch.sigmoid(z)


OPERATORS = [lambda x, s: x * s, lambda x, s: torch.tanh(x) + s, lambda x, s: torch.sigmoid(x - s), lambda x, s: torch.addcmul(x, x, s)]


def block(make, rng, c):
    """A random block for images of `c` channels; `make` makes it of a function and its parts."""

    def of_constant():
        values, kind = torch.randn(2 * c + 1) * 0.5, rng.choice(["expanded", "windows", "folded", "apart"])
        made = make(_spread, scale=spread(values, kind), kind=rng.choice(["buffer", "constant"]), operator=rng.choice(OPERATORS), convolves=rng.random() < 0.5)
        # An attribute, not a buffer.
        object.__setattr__(made, "constant", spread(values, kind))
        return made

    kinds = [
        of_constant,
        of_constant,
        lambda: make(_through_data, one=nn.Parameter(torch.randn(64)), two=nn.Parameter(torch.randn(64)), graded=rng.random() < 0.5,
                     kind=rng.choice(["one", "two", "set", "copy"])),
        lambda: make(_under_settings, first=nn.Conv2d(c, c, 3, padding=1), last=nn.Conv2d(c, c, 3, padding=1), project=nn.Linear(c, 3 * c),
                     kind=rng.choice(sorted(SETTINGS)), both=rng.random() < 0.5),
        lambda: make(_at_position, place=torch.zeros((), dtype=torch.long), both=rng.random() < 0.5),
        lambda: make(_gradient_inside, inner=nn.Conv2d(c, c, 3, padding=1), both=rng.random() < 0.5, graded=rng.random() < 0.5),
        lambda: make(_of_inference, frozen=nn.Conv2d(c, c, 1).requires_grad_(False)),
    ]  # fmt: skip
    return rng.choice(kinds)()
