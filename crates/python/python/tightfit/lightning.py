"""A callback that fits the network of a Lightning module within a budget::

    trainer = lightning.Trainer(callbacks=[tightfit.lightning.Budget("8GiB")])

Unmodified programs need none: ``tightfit run --budget 8GiB -- python train.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
from torch import nn

from ._budget.api import fit, stats, unfit
from ._budget.eager.hooks import fitted_by
from .errors import BadInput

__all__ = ["Budget"]


class Budget(lightning.Callback):
    """Fits the network once it is on its device, before the first step, and logs the work of its plan.

    Parameters
    ----------
    budget
        As for :func:`tightfit.torch.fit`.
    network
        Returns the network that ``training_step`` calls, from the Lightning module; by default, its only child with parameters.
    """

    def __init__(self, budget: int | float | str, network: Callable[[Any], nn.Module] | None = None) -> None:
        self.budget = budget
        self.network = network
        self._fitted: nn.Module | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by the trainer."""
        network = self.network(pl_module) if self.network is not None else _only_child(pl_module)
        if fitted_by(network) is None:
            optimizers = trainer.optimizers
            self._fitted = fit(network, self.budget, optimizer=optimizers[0] if len(optimizers) == 1 else None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by the trainer."""
        if self._fitted is not None:
            numbers = {f"tightfit/{name}": float(value) for name, value in stats(self._fitted).items() if isinstance(value, int | float)}
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by the trainer."""
        if self._fitted is not None:
            unfit(self._fitted)
            self._fitted = None


def _only_child(module: nn.Module) -> nn.Module:
    found = [(name, child) for name, child in module.named_children() if next(child.parameters(), None) is not None]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise BadInput(f"the module has several networks or none ({names}); name one: Budget(budget, lambda module: module.net)")
    return found[0][1]
