"""The networks that docs/results.md measures under PyTorch, with their inputs; random weights, random data.

    step.network   densenet40 unet2d unet3d imagedecoder videodecoder, or torchvision's name
    precision      fp32 (no tensor cores), tf32, fp16, bf16 (channels last)
"""

import torch
from torch import nn
from torch.nn import functional as F

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def densenet40(growth=40):
    """DenseNet-40 for 32 x 32 images. Source: Huang et al. 2017, section 3; growth 40 as in Oyama et al. 2018, table V."""

    class Dense(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm = nn.BatchNorm2d(channels)
            self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

        def forward(self, x):
            return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)

    layers, channels = [nn.Conv2d(3, 16, 3, padding=1, bias=False)], 16
    for block in range(3):
        for _ in range(12):
            layers.append(Dense(channels))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if block < 2:
            layers += [nn.Conv2d(channels, channels, 1, bias=False), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class UNet3d(nn.Module):
    """A 3-D U-Net of four levels with 32 to 256 channels. Source: Çiçek et al. 2016, figure 2, with padding."""

    def __init__(self, width=32):
        super().__init__()

        def double(before, after):
            convs = [nn.Conv3d(before, after, 3, padding=1), nn.BatchNorm3d(after), nn.ReLU()]
            return nn.Sequential(*convs, nn.Conv3d(after, after, 3, padding=1), nn.BatchNorm3d(after), nn.ReLU())

        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(double(before, after) for before, after in zip([1, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * after, after, 2, stride=2) for after in widths[-2::-1])
        self.join = nn.ModuleList(double(2 * after, after) for after in widths[-2::-1])
        self.out = nn.Conv3d(width, 2, 1)

    def forward(self, x):
        kept = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool3d(x, 2) if level else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.out(x)


class UNet2d(nn.Module):
    """A U-Net of five levels with 64 to 1024 channels. Source: Ronneberger et al. 2015, figure 1, with padding."""

    def __init__(self, width=64):
        super().__init__()

        def double(before, after):
            convs = [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*convs)

        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(double(before, after) for before, after in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * after, after, 2, stride=2) for after in widths[-2::-1])
        self.join = nn.ModuleList(double(2 * after, after) for after in widths[-2::-1])
        self.out = nn.Conv2d(width, 2, 1)

    def with_input(self, size):
        return self, (3, size or 256, size or 256)

    def forward(self, x):
        kept = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.out(x)


def decoder(widths, conv, scale):
    """Residual pairs of 3-wide convolutions with nearest-neighbor steps up in between, as in image and video autoencoders."""

    class Pair(nn.Module):
        def __init__(self, before, after):
            super().__init__()
            self.first, self.second = conv(before, after, 3, padding=1), conv(after, after, 3, padding=1)
            self.norms = nn.ModuleList([nn.GroupNorm(32, before), nn.GroupNorm(32, after)])
            self.skip = conv(before, after, 1) if before != after else nn.Identity()

        def forward(self, x):
            y = self.first(F.silu(self.norms[0](x)))
            return self.skip(x) + self.second(F.silu(self.norms[1](y)))

    layers = [conv(16, widths[0], 3, padding=1)]
    for before, after in zip([widths[0], *widths], widths, strict=False):
        layers += [Pair(before, after), Pair(after, after)]
        if after != widths[-1]:
            layers += [nn.Upsample(scale_factor=scale), conv(after, after, 3, padding=1)]
    return nn.Sequential(*layers, conv(widths[-1], 3, 3, padding=1))


class ImageDecoder(nn.Module):
    """The decoder of an image autoencoder: 512 to 128 channels, eight times the size of its input."""

    def __init__(self):
        super().__init__()
        self.layers = decoder([512, 512, 256, 128], nn.Conv2d, 2.0)

    def with_input(self, size):
        return self, (16, size or 64, size or 64)

    def forward(self, x):
        return self.layers(x)


class VideoDecoder(nn.Module):
    """The decoder of a video autoencoder: 256 to 64 channels, four times the frames' edge of its input."""

    def __init__(self):
        super().__init__()
        self.layers = decoder([256, 128, 64], nn.Conv3d, (1.0, 2.0, 2.0))

    def with_input(self, size):
        return self, (16, 16, size or 32, size or 32)

    def forward(self, x):
        return self.layers(x)


def build(network, batch, precision, device="cuda", size=None):
    """A network in training, its input and its target, all of one precision, the same for one seed.

    Dropout is off, so that two runs compute the same. `size` is the edge of the input where it is not the usual one.
    """
    torch.manual_seed(0)
    shape, classes = (3, size or 224, size or 224), 1000
    if network == "unet3d":
        model, shape = UNet3d(), (1, *[size or 96] * 3)
    elif network == "densenet40":
        model, shape, classes = densenet40(), (3, 32, 32), 10
    elif network in ("unet2d", "imagedecoder", "videodecoder"):
        model, shape = {"unet2d": UNet2d, "imagedecoder": ImageDecoder, "videodecoder": VideoDecoder}[network]().with_input(size)
    else:
        import torchvision

        options = {"aux_logits": False, "init_weights": True} if network in ("googlenet", "inception_v3") else {}
        if network.startswith(("deeplab", "fcn")):
            options["weights_backbone"] = None
            model = getattr(torchvision.models.segmentation, network)(weights=None, **options)
        else:
            model = getattr(torchvision.models, network)(weights=None, **options)
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    x = torch.randn(batch, *shape)
    if network in ("unet3d", "unet2d"):
        target = torch.randint(2, (batch, *shape[1:]))
    elif network.startswith(("deeplab", "fcn")):
        target = torch.randint(21, (batch, *shape[1:]))
    elif network.endswith("decoder"):
        target = torch.zeros(1)
    else:
        target = torch.randint(classes, (batch,))
    model, x = model.to(device, TYPES[precision]), x.to(device, TYPES[precision])
    if precision == "bf16":
        layout = torch.channels_last_3d if x.dim() == 5 else torch.channels_last
        model, x = model.to(memory_format=layout), x.to(memory_format=layout)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return model.train(), x, target.to(device)


def loss_of(model, x, target):
    """The loss of one step, in 32 bits."""
    out = model(x)
    if isinstance(out, dict):
        out = out["out"]
    if target.is_floating_point():
        return out.float().square().mean()
    return F.cross_entropy(out.float(), target)
