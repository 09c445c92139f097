"""The models of scripts/gpu_run/fit.py, each with its input, its loss, and the modules that a checkpoint is put around."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import models


class ResBlock(nn.Module):
    """Two convolutions after group norm and SiLU. Source: Rombach et al. 2022, the autoencoder."""

    def __init__(self, before, after):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, before), nn.Conv2d(before, after, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(32, after), nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.c2(F.silu(self.n2(self.c1(F.silu(self.n1(x))))))


class Vae(nn.Module):
    """Encoder and decoder of Stable Diffusion's size, 128 to 512 channels, without attention."""

    def __init__(self, widths=(128, 256, 512, 512)):
        super().__init__()
        down, up, c = [nn.Conv2d(3, widths[0], 3, padding=1)], [], widths[0]
        for level, width in enumerate(widths):
            down += [ResBlock(c, width), ResBlock(width, width)]
            c = width
            if level < len(widths) - 1:
                down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
        down += [nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 4, 3, padding=1)]
        up.append(nn.Conv2d(4, c, 3, padding=1))
        for level, width in enumerate(widths[::-1]):
            up += [ResBlock(c, width), ResBlock(width, width), ResBlock(width, width)]
            c = width
            if level < len(widths) - 1:
                up += [nn.Upsample(scale_factor=2.0), nn.Conv2d(c, c, 3, padding=1)]
        up += [nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1)]
        self.encoder, self.decoder = nn.Sequential(*down), nn.Sequential(*up)

    def forward(self, x):
        return self.decoder(self.encoder(x))


class TimedBlock(nn.Module):
    """A residual block with the time as an input. Source: Rombach et al. 2022, the U-Net."""

    def __init__(self, before, after, time):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, before), nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.n2, self.c2 = nn.GroupNorm(32, after), nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, t):
        y = self.c1(F.silu(self.n1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(y)))


class Transformer(nn.Module):
    """Self-attention with 8 heads over all places, and a gated feed-forward part of four times the width."""

    def __init__(self, width, heads=8):
        super().__init__()
        self.heads = heads
        self.n0, self.n1, self.n2 = nn.GroupNorm(32, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # [batch, width, height, breadth]
        batch, width, height, breadth = x.shape
        y = self.n0(x).flatten(2).transpose(1, 2)  # [batch, places, width]
        q, k, v = self.qkv(self.n1(y)).view(batch, -1, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = y + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, width))
        value, gate = self.wide(self.n2(y)).chunk(2, -1)
        y = y + self.narrow(value * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(batch, width, height, breadth)


class Unet2d(nn.Module):
    """A diffusion U-Net of Stable Diffusion's size on latents: 320 to 1280 channels, attention at the lower levels and in the middle."""

    def __init__(self, widths=(320, 640, 1280, 1280), attended=(1, 2)):
        super().__init__()
        self.width, time = widths[0], 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(self.width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.up, c = nn.ModuleList(), nn.ModuleList(), widths[0]
        saved = [c]
        for level, width in enumerate(widths):
            for _ in range(2):
                part = [TimedBlock(c, width, time), *([Transformer(width)] if level in attended else [])]
                self.down.append(nn.ModuleList(part))
                c = width
                saved.append(c)
            if level < len(widths) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(c, c, 3, stride=2, padding=1)]))
                saved.append(c)
        self.middle = nn.ModuleList([TimedBlock(c, c, time), Transformer(c), TimedBlock(c, c, time)])
        for level, width in reversed(list(enumerate(widths))):
            for place in range(3):
                part = [TimedBlock(c + saved.pop(), width, time), *([Transformer(width)] if level in attended else [])]
                c = width
                if place == 2 and level:
                    part += [nn.Upsample(scale_factor=2.0), nn.Conv2d(c, c, 3, padding=1)]
                self.up.append(nn.ModuleList(part))
        self.last = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 4, 3, padding=1))

    def forward(self, x):
        # Times spread over a thousand steps; a program draws them.
        t = torch.arange(x.shape[0], device=x.device) * (1000.0 / x.shape[0])
        angles = t[:, None] * torch.exp(torch.arange(self.width // 2, device=x.device) * (-math.log(1e4) / (self.width // 2)))
        t = self.time(torch.cat([angles.cos(), angles.sin()], 1))

        def run(part, y):
            for layer in part:
                y = layer(y, t) if isinstance(layer, TimedBlock) else layer(y)
            return y

        saved = [self.first(x)]
        for part in self.down:
            saved.append(run(part, saved[-1]))
        y = run(self.middle, saved[-1])
        for part in self.up:
            y = run(part, torch.cat([y, saved.pop()], 1))
        return self.last(y)


class Detector(nn.Module):
    """FCOS with ResNet-50 (torchvision), ten boxes an image; its losses read values, so it is recorded on a real step."""

    def __init__(self, batch):
        super().__init__()
        import torchvision

        self.net = torchvision.models.detection.fcos_resnet50_fpn(weights=None, weights_backbone=None, min_size=640, max_size=640)
        corner = torch.rand(batch, 10, 2) * 400
        self.register_buffer("boxes", torch.cat([corner, corner + 40 + torch.rand(batch, 10, 2) * 160], 2))
        self.register_buffer("labels", torch.randint(1, 91, (batch, 10)))

    def forward(self, x):
        targets = [{"boxes": boxes, "labels": labels} for boxes, labels in zip(self.boxes, self.labels, strict=True)]
        return sum(self.net(list(x.unbind(0)), targets).values())


def build(case):
    """The model, its input, its loss, and the modules that a checkpoint is put around."""
    name, _, batch = case.partition(":")
    batch = int(batch or 8)
    labels = torch.randint(1000, (batch,), device="cuda")
    if name == "smoke":
        import torchvision

        model, x = torchvision.models.resnet18(), torch.randn(32, 3, 224, 224)
        labels = torch.randint(1000, (32,), device="cuda")
        return model, x, lambda y: F.cross_entropy(y, labels), (torchvision.models.resnet.BasicBlock,)
    if name == "resnet50":
        import torchvision

        model, x = torchvision.models.resnet50(), torch.randn(batch, 3, 224, 224)
        return model, x, lambda y: F.cross_entropy(y, labels), (torchvision.models.resnet.Bottleneck,)
    if name == "vitl":
        import torchvision

        model, x = torchvision.models.vit_l_16(), torch.randn(batch, 3, 224, 224)
        block = torchvision.models.vision_transformer.EncoderBlock
        return model, x, lambda y: F.cross_entropy(y, labels), (block,)
    if name == "convnextb":
        import torchvision

        model, x = torchvision.models.convnext_base(stochastic_depth_prob=0.0), torch.randn(batch, 3, 224, 224)
        return model, x, lambda y: F.cross_entropy(y, labels), (torchvision.models.convnext.CNBlock,)
    if name == "detector":
        import torchvision

        return Detector(batch), torch.rand(batch, 3, 640, 640), lambda y: y, (torchvision.models.resnet.Bottleneck,)
    if name == "vae":
        x = torch.randn(batch, 3, 512, 512)
        target = x.cuda()
        return Vae(), x, lambda y: F.mse_loss(y.float(), target), (ResBlock,)
    if name == "unet3d":
        x = torch.randn(batch, 1, 128, 128, 128)
        volume = torch.randint(2, (batch, 128, 128, 128), device="cuda")
        model = models.UNet3d()
        blocks = {id(block) for part in (model.down, model.join) for block in part}
        return model, x, lambda y: F.cross_entropy(y.float(), volume), blocks
    if name == "unet2d":
        x = torch.randn(batch, 4, 64, 64)
        noise = x.cuda()
        return Unet2d(), x, lambda y: F.mse_loss(y.float(), noise), (TimedBlock, Transformer)
    if name == "gpt2":
        import transformers

        shape = transformers.GPT2Config(n_layer=24, n_embd=1024, n_head=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
        tokens = torch.randint(50257, (batch, 1024), device="cuda")

        def loss(outputs):
            return F.cross_entropy(outputs.logits.float().flatten(0, 1), tokens.flatten())

        block = transformers.models.gpt2.modeling_gpt2.GPT2Block
        return transformers.GPT2LMHeadModel(shape), tokens, loss, (block,)
    import torchvision

    # Any other classifier of torchvision by its name, with no checkpoints.
    if name in torchvision.models.list_models(torchvision.models):
        return torchvision.models.get_model(name), torch.randn(batch, 3, 224, 224), lambda y: F.cross_entropy(y, labels), set()
    raise SystemExit(f"{case}: not smoke, resnet50, vitl, convnextb, vae, unet2d, unet3d, detector or a classifier of torchvision")
