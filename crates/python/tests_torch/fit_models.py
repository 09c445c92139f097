"""Small networks of the kinds that are fitted, with inputs; each saves its tensors in its own way."""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Batch norm, in-place ReLU, in-place addition: as in ResNet."""

    def __init__(self, c):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.c2, self.n2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.n2(self.c2(self.relu(self.n1(self.c1(x)))))
        y += x
        return self.relu(y)


class Resnet(nn.Sequential):
    def __init__(self, c=16, blocks=4):
        super().__init__(
            nn.Conv2d(3, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            *[Residual(c) for _ in range(blocks)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10),
        )  # fmt: skip


class Dense(nn.Module):
    """Concatenates everything before: as in DenseNet."""

    def __init__(self, c=8, layers=6):
        super().__init__()
        self.first = nn.Conv2d(3, c, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c * (i + 1)), nn.ReLU(), nn.Conv2d(c * (i + 1), c, 3, padding=1)) for i in range(layers)
        )

    def forward(self, x):
        maps = [self.first(x)]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, 1)))
        return torch.cat(maps, 1).mean((2, 3))


class Efficient(nn.Module):
    """In-place SiLU, squeeze and excitation, depthwise convolutions: as in EfficientNet."""

    def __init__(self, c=16, blocks=3):
        super().__init__()
        self.first = nn.Conv2d(3, c, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "wide": nn.Conv2d(c, 4 * c, 1, bias=False), "n1": nn.BatchNorm2d(4 * c),
                "depth": nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c, bias=False), "n2": nn.BatchNorm2d(4 * c),
                "squeeze": nn.Conv2d(4 * c, c, 1), "excite": nn.Conv2d(c, 4 * c, 1), "out": nn.Conv2d(4 * c, c, 1),
            }) for _ in range(blocks)
        )  # fmt: skip

    def forward(self, x):
        x = self.first(x)
        for b in self.blocks:
            y = F.silu(b["n1"](b["wide"](x)), inplace=True)
            y = F.silu(b["n2"](b["depth"](y)), inplace=True)
            s = torch.sigmoid(b["excite"](F.silu(b["squeeze"](y.mean((2, 3), keepdim=True)), inplace=True)))
            x = x + b["out"](y * s)
        return x


class Mobile(nn.Module):
    """In-place hard swish and ReLU6: as in MobileNetV3."""

    def __init__(self, c=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, c, 3, padding=1), nn.BatchNorm2d(c), nn.Hardswish(inplace=True),
            nn.Conv2d(c, 4 * c, 1), nn.BatchNorm2d(4 * c), nn.Hardswish(inplace=True),
            nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c), nn.BatchNorm2d(4 * c), nn.ReLU6(inplace=True),
            nn.Conv2d(4 * c, c, 1), nn.BatchNorm2d(c), nn.Hardsigmoid(inplace=True), nn.Conv2d(c, c, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


class Vit(nn.Module):
    """Layer norm, attention, GELU, dropout: as in ViT."""

    def __init__(self, d=32, depth=3, dropout=0.0):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, stride=8)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(d, 10)

    def forward(self, x):
        return self.head(self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class Vae(nn.Module):
    """Group norm, SiLU, nearest upsampling: as in the decoder of a VAE."""

    def __init__(self, c=16):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "n1": nn.GroupNorm(4, c), "c1": nn.Conv2d(c, c, 3, padding=1),
                "n2": nn.GroupNorm(4, c), "c2": nn.Conv2d(c, c, 3, padding=1),
            }) for _ in range(3)
        )  # fmt: skip

    def forward(self, x):
        x = self.first(x)
        for i, b in enumerate(self.blocks):
            x = x + b["c2"](F.silu(b["n2"](b["c1"](F.silu(b["n1"](x))))))
            if i < 1:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.last(x)


class Unet(nn.Module):
    """Instance norm in place of batch norm, 3-D, skips that wait for the way up: as in nnU-Net."""

    def __init__(self, widths=(4, 8, 16)):
        super().__init__()

        def block(i, o):
            return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True))

        self.down, self.up, self.back = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        c = 1
        for w in widths:
            self.down.append(nn.Sequential(block(c, w), block(w, w)))
            c = w
        for w in widths[-2::-1]:
            self.back.append(nn.ConvTranspose3d(c, w, 2, 2))
            self.up.append(nn.Sequential(block(2 * w, w), block(w, w)))
            c = w
        self.out = nn.Conv3d(c, 2, 1)

    def forward(self, x):
        skips = []
        for i, down in enumerate(self.down):
            x = down(x)
            if i < len(self.down) - 1:
                skips.append(x)
                x = F.max_pool3d(x, 2)
        for back, up in zip(self.back, self.up, strict=True):
            x = up(torch.cat([back(x), skips.pop()], 1))
        return self.out(x)


class Half(nn.Module):
    """A network under autocast, which pools in f32 on a CPU: of what pooling makes, the maxima are cast, and the indices saved."""

    def __init__(self):
        super().__init__()
        self.network = Unet()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.network(x)


class Frozen(nn.Module):
    """A frozen stem in evaluation mode, and a trained head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(*list(Resnet(16, 1))[:5]).requires_grad_(False)
        self.head = nn.Sequential(*[Residual(16) for _ in range(3)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def train(self, mode=True):
        super().train(mode)
        self.stem.eval()
        return self

    def forward(self, x):
        return self.head(self.stem(x))


class Listed(nn.Module):
    """Skips wait in a list until the outputs are there, and their ReLUs may be kept as signs."""

    def __init__(self, widths=(8, 16, 32)):
        super().__init__()

        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

        self.down = nn.ModuleList(block(i, o) for i, o in zip((3, *widths), widths, strict=False))
        self.join = nn.ModuleList(block(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True))

    def forward(self, x):
        kept = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for join, skip in zip(self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skip, F.interpolate(x, scale_factor=2.0)], 1))
        return x


class Turned(nn.Module):
    """Normalizations that copy what they are given, as on a GPU those do that are given channels last, and save the copy."""

    def __init__(self, c=16):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c if i else 3, c, 3, padding=1) for i in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(4, c) for _ in range(4))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x).transpose(2, 3)))
        return x


class Packed(nn.Module):
    """Attention whose queries, keys and values are views of one tensor, behind normalizations that autocast computes in 32 bits."""

    def __init__(self, c=32, layers=3):
        super().__init__()
        self.first = nn.Conv2d(3, c, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2 * layers))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(c, 4, batch_first=True) for _ in range(layers))
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)) for _ in range(layers))

    def forward(self, x):
        x = self.first(x).flatten(2).transpose(1, 2)
        for attention, part, before, between in zip(self.attentions, self.parts, self.norms[::2], self.norms[1::2], strict=True):
            y = before(x)
            x = x + attention(y, y, y, need_weights=False)[0]
            x = x + part(between(x))
        return x


def image(batch=8, size=32):
    return torch.randn(batch, 3, size, size)


NETWORKS = {
    "resnet": (Resnet, image),
    "densenet": (Dense, image),
    "efficientnet": (Efficient, image),
    "mobilenet": (Mobile, image),
    "vit": (Vit, lambda: image(8, 64)),
    "vit-dropout": (lambda: Vit(dropout=0.1), lambda: image(8, 64)),
    "vae": (Vae, lambda: image(2, 32)),
    "unet": (Unet, lambda: torch.randn(1, 1, 16, 16, 16)),
    "half": (Half, lambda: torch.randn(1, 1, 32, 32, 32)),
    "frozen": (Frozen, image),
    "listed": (Listed, image),
    "turned": (Turned, image),
    "packed": (Packed, lambda: image(16, 64)),
}


def resnet(blocks=3):
    """A small ResNet that trains, and its inputs: the same each time."""
    torch.manual_seed(1)
    return Resnet(blocks=blocks).train(), image(4)
