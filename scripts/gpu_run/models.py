"""The networks that docs/results.md measures under PyTorch, with their inputs; random weights, random data.

    step.network   alexnet resnet18 resnet50 vgg16 googlenet densenet40 unet3d small
    precision      fp32 (no tensor cores), tf32, fp16, bf16 (channels last)
"""

import torch
from torch import nn
from torch.nn import functional as F

PRECISIONS = ["fp32", "tf32", "fp16", "bf16"]
TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}


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


def small():
    """Four convolutions for 32 x 32 images, small enough to train for hundreds of steps."""
    layers, channels = [], 3
    for width in (32, 64, 64, 128):
        layers += [nn.Conv2d(channels, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 4, 10))


def build(network, batch, precision, device="cuda", size=None):
    """A network in training, its input and its target, all of one precision, the same for one seed.

    Dropout is off, so that two runs compute the same. `size` is the edge of the input where it is not the usual one.
    """
    torch.manual_seed(0)
    shape, classes = (3, size or 224, size or 224), 1000
    if network == "unet3d":
        model, shape = UNet3d(), (1, *[size or 96] * 3)
    elif network in ("densenet40", "small"):
        model, shape, classes = {"densenet40": densenet40, "small": small}[network](), (3, 32, 32), 10
    else:
        import torchvision

        options = {"aux_logits": False, "init_weights": True} if network == "googlenet" else {}
        model = getattr(torchvision.models, network)(weights=None, **options)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout3d)):
            module.p = 0.0
    x = torch.randn(batch, *shape)
    target = torch.randint(2, (batch, *shape[1:])) if network == "unet3d" else torch.randint(classes, (batch,))
    model, x = model.to(device, TYPES[precision]), x.to(device, TYPES[precision])
    if precision == "bf16":
        layout = torch.channels_last_3d if x.dim() == 5 else torch.channels_last
        model, x = model.to(memory_format=layout), x.to(memory_format=layout)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return model.train(), x, target.to(device)


def loss_of(model, x, target):
    """The loss of one step, in 32 bits or more."""
    out = model(x)
    return F.cross_entropy(out if out.dtype == torch.float64 else out.float(), target)
