"""Fine-tunes a vision transformer with the Trainer of Hugging Face within a budget of memory: a callback.

pip install transformers accelerate; on a GPU, give the budget of the GPU, such as "8GiB".
"""

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from tightfit.transformers import Budget


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"pixel_values": torch.randn(3, 64, 64), "labels": index % 10}


if __name__ == "__main__":
    config = ViTConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=8)
    config.num_labels = 10
    model = ViTForImageClassification(config)
    arguments = TrainingArguments("output", per_device_train_batch_size=16, max_steps=2, save_strategy="no", report_to=[])
    Trainer(model, arguments, train_dataset=Images(), callbacks=[Budget("14MiB")]).train()
    print("trained within 14MiB")
