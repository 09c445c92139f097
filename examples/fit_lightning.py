"""Trains a model of Lightning within a budget of memory: one line in `configure_model`, or the callback that ships with tightfit, as here.

pip install lightning torchvision; on a GPU, give the budget of the GPU, such as "8GiB".
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F

from tightfit.lightning import Budget


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(6)]
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    samples = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    trainer = L.Trainer(
        max_epochs=1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Budget("12MiB")],
    )  # fmt: skip
    trainer.fit(Classifier(), torch.utils.data.DataLoader(samples, batch_size=32))
    print("trained within 12MiB")
