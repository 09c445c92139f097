"""The callbacks that ship with the package, on a CPU: trained to the weights of plain PyTorch, and logged."""

import copy

import pytest
import tightfit
import torch
from torch import nn
from torch.nn import functional as F

BUDGET = "80%"


def network():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(48, 3, 16, 16, generator=generator), torch.randint(10, (48,), generator=generator))


def test_a_network_of_lightning_is_fitted_and_logged(tmp_path):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger
    from tightfit.lightning import Budget

    class Module(lightning.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net
            self.seen = []

        def training_step(self, batch, _):
            images, labels = batch
            self.seen.append(bool(tightfit.torch.stats(self.net)) if callbacks else False)
            return F.cross_entropy(self.net(images), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trained = []
    for callbacks in ([], [Budget(BUDGET)]):
        module, logger = Module(network()), CSVLogger(tmp_path, name=f"{len(trained)}")
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=logger, callbacks=callbacks, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(samples(), batch_size=16))
        trained.append(copy.deepcopy(module.net.state_dict()))
    assert module.seen == [False, True, True]
    assert all(torch.equal(one, other) for one, other in zip(*(state.values() for state in trained), strict=True))
    logged = (tmp_path / "1/version_0/metrics.csv").read_text()
    assert "tightfit/peak_bytes" in logged and "tightfit/overhead" in logged
    with pytest.raises(tightfit.BadInput, match="not fitted"):
        tightfit.torch.stats(module.net)
    with pytest.raises(tightfit.BadInput, match="one, other"):
        Budget(BUDGET).on_train_start(trainer, nn.ModuleDict({"one": network(), "other": network()}))


def test_a_model_of_transformers_is_fitted_and_logged(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from tightfit.transformers import Budget

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, pixels, labels=None):
            outputs = self.net(pixels)
            return {"loss": F.cross_entropy(outputs, labels), "logits": outputs}

    class Sees(transformers.TrainerCallback):
        def on_log(self, args, state, control, **others):
            logs.append(dict(others["logs"]))

    data = [{"pixels": pixels, "labels": label} for pixels, label in samples()]
    trained, logs = [], []
    for callbacks in ([], [Budget(BUDGET)]):
        arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=16, max_steps=3, save_strategy="no", report_to=[],
                                                   logging_steps=1, use_cpu=True, seed=0, disable_tqdm=True)  # fmt: skip
        model = Classifier()
        trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[*callbacks, Sees()])
        logs.clear()
        trainer.train()
        trained.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(one, other) for one, other in zip(*(state.values() for state in trained), strict=True))
    assert logs[0]["tightfit_peak_bytes"] <= logs[0]["tightfit_budget_bytes"] < logs[0]["tightfit_plain_bytes"]
