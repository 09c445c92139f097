"""A callback that fits the model of a Trainer of Transformers within a budget::

    trainer = transformers.Trainer(model, arguments, callbacks=[tightfit.transformers.Budget("8GiB")], ..)

Unmodified programs need none: ``tightfit run --budget 8GiB -- python train.py``.
"""

from __future__ import annotations

from typing import Any

import transformers
from torch import nn

from ._budget.api import fit, stats, unfit
from ._budget.eager.hooks import fitted_by

__all__ = ["Budget"]


class Budget(transformers.TrainerCallback):
    """Fits the model when training begins, and adds the work of its plan to the logs.

    Parameters
    ----------
    budget
        As for :func:`tightfit.torch.fit`.
    """

    def __init__(self, budget: int | float | str) -> None:
        self.budget = budget
        self._fitted: nn.Module | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Called by the trainer."""
        model = others["model"]
        if fitted_by(model) is None:
            self._fitted = fit(model, self.budget, optimizer=getattr(others.get("optimizer"), "optimizer", others.get("optimizer")))

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Called by the trainer."""
        logs = others.get("logs")
        if self._fitted is not None and logs is not None:
            logs.update({f"tightfit_{name}": value for name, value in stats(self._fitted).items() if isinstance(value, int | float)})

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Called by the trainer."""
        if self._fitted is not None:
            unfit(self._fitted)
            self._fitted = None
