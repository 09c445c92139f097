#!/usr/bin/env python3
"""Trains a vision transformer or a ResNet with the Trainer of Transformers or of Lightning, on random pictures.

usage: [tightfit run .. --] python scripts/gpu_run/trainers.py transformers|lightning vit|resnet [--batch 128] [--tiny]
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
        dataloader_num_workers=options.workers, bf16=torch.cuda.is_available(), logging_steps=10,
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
    trainer.fit(Classifier(), torch.utils.data.DataLoader(Pictures(size, ()), batch_size=options.batch, num_workers=options.workers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", choices=("transformers", "lightning"))
    parser.add_argument("network", choices=("vit", "resnet"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    options = parser.parse_args()
    globals()[options.trainer](options, 32 if options.tiny else 224)
