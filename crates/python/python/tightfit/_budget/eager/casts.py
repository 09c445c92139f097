"""Shows which casts of parameters autocast may have made before the parameters were written.

Autocast keeps its casts until a program leaves its outermost context. If weights are updated inside, later calls read the old casts, and a rerun
would cast the new weights. So the versions of a model's parameters are noted in the first call of the model in each context.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Casts"]


class Casts:
    """The versions of a model's parameters in its first call in the running context of autocast."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        # A tensor that stands for a parameter, another one, and the cast of the first, which stays as long as the context does.
        self._mark: tuple[Tensor, Tensor, list[Tensor]] | None = None

    def begin(self, model: nn.Module, device: torch.device) -> None:
        """Called when the model is called."""
        if not torch.is_autocast_enabled(device.type) or not torch.is_autocast_cache_enabled() or torch.is_inference_mode_enabled():
            self._mark, self.versions = None, {}
        elif not self._goes_on(device):
            self.versions = {id(weight): weight._version for weight in model.parameters() if weight.requires_grad}

    def _goes_on(self, device: torch.device) -> bool:
        """Whether this is the context of the call before: that one still has the cast of the mark."""
        before = self._mark
        casts: list[Tensor] = []
        mark, other = before[:2] if before is not None else [torch.ones(1, 1, device=device, requires_grad=True) for _ in range(2)]

        def keep(tensor: Tensor) -> Any:
            casts.append(tensor.detach())
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            torch.mm(mark, other)
        self._mark = mark, other, casts
        return before is not None and [cast.data_ptr() for cast in casts] == [cast.data_ptr() for cast in before[2]]
