#!/usr/bin/env python3
"""Trains a vision transformer or a ResNet with the Trainer of Transformers or of Lightning, or a 3-D U-Net with a loop as in nnU-Net, on random pictures.

usage: [tightfit run .. --] python scripts/gpu_run/trainers.py transformers|lightning|segmentation vit|resnet|unet [--batch 128] [--compile] [--tiny]
"""

import argparse

import torch
from torch.nn import functional as F


class Pictures(torch.utils.data.Dataset):
    def __init__(self, size, names=("pixel_values", "labels")):
        self.size, self.names = size, names

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        values = torch.randn(3, self.size, self.size, generator=torch.Generator().manual_seed(index)), index % 10
        return dict(zip(self.names, values, strict=True)) if self.names else values


def transformers(options, size):
    from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    if options.network == "vit":
        tiny = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 128, "patch_size": 8}
        model = ViTForImageClassification(ViTConfig(num_labels=10, image_size=size, **(tiny if options.tiny else {})))
    else:
        tiny = {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}
        model = ResNetForImageClassification(ResNetConfig(num_labels=10, **(tiny if options.tiny else {})))
    arguments = TrainingArguments(
        "output", per_device_train_batch_size=options.batch, max_steps=1000, save_strategy="no", report_to=[],
        dataloader_num_workers=options.workers, bf16=torch.cuda.is_available(), logging_steps=10, torch_compile=options.compile,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=Pictures(size)).train()


def lightning(options, size):
    import pytorch_lightning as L
    from torchvision import models

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            if options.network == "vit":
                tiny = {"patch_size": 8, "num_layers": 4, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 128}
                large = {"patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
                self.net = models.VisionTransformer(image_size=size, num_classes=10, **(tiny if options.tiny else large))
            else:
                self.net = (models.resnet18 if options.tiny else models.resnet50)(num_classes=10)

        def training_step(self, batch, _):
            images, labels = batch
            return F.cross_entropy(self.net(images), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    precision = "bf16-mixed" if torch.cuda.is_available() else "32-true"
    trainer = L.Trainer(
        max_steps=1000, devices=1, precision=precision, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    model = torch.compile(Classifier()) if options.compile else Classifier()
    trainer.fit(model, torch.utils.data.DataLoader(Pictures(size, ()), batch_size=options.batch, num_workers=options.workers))


def segmentation(options, size):
    from models import UNet3d

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 16 if options.tiny else 128
    model = UNet3d(*((4,) if options.tiny else ())).to(device)
    net = torch.compile(model) if options.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    scaler = torch.amp.GradScaler(device)
    for step in range(1000):
        numbers = torch.Generator().manual_seed(step)
        x = torch.randn(options.batch, 1, size, size, size, generator=numbers).to(device)
        y = torch.randint(0, 2, (options.batch, size, size, size), generator=numbers).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, enabled=device == "cuda"):
            out = net(x)
            first = out.float().softmax(1)[:, 1]
            loss = F.cross_entropy(out, y) - 2 * (first * y).sum() / (first.sum() + y.sum())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", choices=("transformers", "lightning", "segmentation"))
    parser.add_argument("network", choices=("vit", "resnet", "unet"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    options = parser.parse_args()
    globals()[options.trainer](options, 32 if options.tiny else 224)
