"""The models of scripts/gpu-compiled.py, each with its input and its loss; random weights, random data.

`build(name, device, tiny)` returns the model and a function that computes the loss of a network, which may be the compiled model. Source of `deep`:
the shape of pytorch#197838, a language model of 32 narrow layers.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH = {
    "resnet50": 256, "convnext": 128, "gpt2": 8, "vit_l": 128, "efficientnet": 128, "unet3d": 2, "unet2d": 16, "vae": 4, "diffusers_unet": 16,
    "diffusers_vae": 4, "swin": 128, "regnet": 128, "densenet": 64, "mixer": 128, "bert": 32, "deep": 1, "small_resnet": 512, "small_gpt": 64,
    "small_vit": 256,
}  # fmt: skip
# By name: torchvision's or timm's.
VISION = {
    "resnet50": "resnet50", "convnext": "convnext_base", "vit_l": "vit_l_16", "efficientnet": "efficientnet_v2_s", "swin": "swin_t",
    "regnet": "regnet_y_3_2gf", "densenet": "densenet121", "small_resnet": "resnet18",
}  # fmt: skip
TIMM = {"mixer": "mixer_b16_224", "small_vit": "vit_tiny_patch16_224"}
# Other arguments, and the edge of the pictures where it is not 224.
ARGUMENTS = {"small_vit": {"img_size": 96, "drop_rate": 0.1, "proj_drop_rate": 0.1}}
EDGES = {"small_resnet": 64, "small_vit": 96}


class Layer(nn.Module):
    """Attention, and a gated feed-forward part of four times the width, each after a normalization."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.wide, self.narrow = (nn.Linear(*size, bias=False) for size in ((width, 4 * width), (width, 4 * width), (4 * width, width)))

    def forward(self, x):  # [batch, places, width]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.narrow(F.silu(self.gate(y)) * self.wide(y))


def texts(name, tiny):
    """A language model, the number of its words, and of the words in a text."""
    if name == "bert":
        from transformers import BertConfig, BertForMaskedLM

        return BertForMaskedLM(BertConfig(**({"num_hidden_layers": 2} if tiny else {}))), 30522, 64 if tiny else 512
    if name == "deep":
        layers, width = (4, 64) if tiny else (32, 256)
        return nn.Sequential(nn.Embedding(1000, width), *(Layer(width, 4) for _ in range(layers)), nn.Linear(width, 1000)), 1000, 128 if tiny else 2048
    from transformers import GPT2Config, GPT2LMHeadModel

    # The small one also drops embeddings and weights of attention.
    shape = {"n_layer": 24, "n_embd": 1024, "n_head": 16} if name == "gpt2" else {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 5000}
    words, places = shape.get("vocab_size", 50257), 1024 if name == "gpt2" else 256
    if tiny:
        shape, places = {**shape, "n_layer": 2, "n_embd": 96, "n_head": 4}, 64
    return GPT2LMHeadModel(GPT2Config(**shape, n_positions=places, resid_pdrop=0.1, use_cache=False)), words, places


def diffusion(name, batch, device, tiny):
    """A network for latents or pictures, with a function that computes its loss. Networks of diffusers have the sizes of Stable Diffusion 1.5."""
    latents, edge = (16, 64) if tiny else (64, 512)
    if name == "unet2d":
        from fit_models import Unet2d

        x = torch.randn(batch, 4, latents, latents, device=device)
        return Unet2d(*(((32, 64), (1,)) if tiny else ())), lambda net: F.mse_loss(net(x).float(), x)
    if name == "vae":
        from fit_models import Vae

        x = torch.randn(batch, 3, edge, edge, device=device)
        return Vae(*(((32, 64),) if tiny else ())), lambda net: F.mse_loss(net(x).float(), x)
    if name == "diffusers_unet":
        from diffusers import UNet2DConditionModel

        model = UNet2DConditionModel(cross_attention_dim=768, **({"block_out_channels": (32, 64, 64, 64)} if tiny else {}))
        x, c = torch.randn(batch, 4, latents, latents, device=device), torch.randn(batch, 77, 768, device=device)
        t = torch.full((batch,), 5, device=device)
        return model, lambda net: net(x, t, c).sample.float().square().mean()
    from diffusers import AutoencoderKL

    widths = (32, 64, 64, 64) if tiny else (128, 256, 512, 512)
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=widths, layers_per_block=2
    )
    x = torch.randn(batch, 3, edge // 2, edge // 2, device=device)
    return model, lambda net: F.mse_loss(net(x).sample.float(), x)


def build(name, device, tiny=False):
    """A model in training, its loss as a function of the network, and its mini-batch."""
    batch = min(BATCH[name], 2) if tiny else BATCH[name]
    if name in ("gpt2", "small_gpt", "bert", "deep"):
        model, words, places = texts(name, tiny)
        x, y = (torch.randint(0, words, (batch, places), device=device) for _ in range(2))

        def loss(net):
            out = net(x)
            return F.cross_entropy(getattr(out, "logits", out).flatten(0, 1), y.flatten())
    elif name in ("unet2d", "vae") or name.startswith("diffusers"):
        model, loss = diffusion(name, batch, device, tiny)
    elif name == "unet3d":
        from models import UNet3d

        size = 16 if tiny else 128
        model = UNet3d(*((4,) if tiny else ()))
        x, y = torch.randn(batch, 1, size, size, size, device=device), torch.randint(0, 2, (batch, size, size, size), device=device)

        def loss(net):
            return F.cross_entropy(net(x), y)
    else:
        edge = EDGES.get(name, 224)
        if name in TIMM:
            import timm

            model = timm.create_model(TIMM[name], **ARGUMENTS.get(name, {}))
        else:
            import torchvision

            edge = 64 if tiny else edge
            model = getattr(torchvision.models, VISION[name])()
        model = model.to(memory_format=torch.channels_last)
        x = torch.randn(batch, 3, edge, edge, device=device).to(memory_format=torch.channels_last)
        y = torch.randint(0, 1000, (batch,), device=device)

        def loss(net):
            return F.cross_entropy(net(x), y)

    return model.to(device).train(), loss, batch
