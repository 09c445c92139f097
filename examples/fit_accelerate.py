"""Trains under Accelerate within a budget of memory: fit the model before `prepare`, which may wrap it for several GPUs.

pip install accelerate; on a GPU, give the budget of the GPU, such as "8GiB".
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

import tightfit.torch as tt


def network():
    blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


if __name__ == "__main__":
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = network().to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters())
    tt.fit(model, budget="12MiB", optimizer=optimizer)
    samples = torch.utils.data.TensorDataset(torch.randn(128, 3, 32, 32), torch.randint(10, (128,)))
    model, optimizer, batches = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(samples, batch_size=32))
    for images, labels in batches:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    print("trained within 12MiB")
